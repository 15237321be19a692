"""Running aggregates per key (D2): one updated row per touched key and epoch.

Slices are reduced at once to one row per key, without looking at the state and without keeping the slice's memory.
At the end of the epoch the parts are combined, the state of all touched keys is looked up in one go, and written back
in one go. Looked-up state is treated as the oldest part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.accumulators import Accumulator, States
from penstock.operators.aggregates import Aggregate
from penstock.operators.base import MAIN_STATE, Operator, OperatorContext, Records, SpecDefaults, StateSchema
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.failing import record_of
from penstock.operators.grouping import Groups, group_rows
from penstock.operators.reduce import Overflow
from penstock.state.keys import Flags, normalise_keys

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState

# Parts are combined once they hold this many rows, and twice what the last time left: each row is combined
# a bounded number of times, and memory stays proportional to the number of touched keys.
_COMBINE_ROWS_MIN = 1 << 18


@dataclass(frozen=True)
class RunningAggregate(SpecDefaults):
    """Aggregates of everything a key has seen so far, by output column."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]

    def __post_init__(self) -> None:
        key_schema(self.name, self.input_schema, self.keys)
        if not self.aggregates or not all(isinstance(value, Aggregate) for value in self.aggregates.values()):
            raise PipelineError(
                f"{self.name}: got the aggregates {dict(self.aggregates)!r:.200}",
                cause="aggregate() takes output columns and functions of Penstock, each with its column",
                next_step="write for example aggregate(n=pen.count(), total=pen.sum('amount'))",
                operator=self.name,
            )
        refuse_doubles(self.name, (*self.keys, *self.aggregates), "an output column")
        refuse_doubles(self.name, (*self.keys, *self.state_schema.values.names), "a state column")

    @property
    def kind(self) -> str:
        return "aggregate"

    @cached_property
    def accumulators(self) -> dict[str, Accumulator]:
        return {name: value.bind(self.name, self.input_schema) for name, value in self.aggregates.items()}

    @property
    def output_schema(self) -> pa.Schema:
        results = [pa.field(name, accumulator.result_type) for name, accumulator in self.accumulators.items()]
        return pa.schema([*self.state_schema.keys, *results])

    @property
    def state_schema(self) -> StateSchema:
        values = [
            pa.field(name + suffix, kind)
            for name, accumulator in self.accumulators.items()
            for suffix, kind in accumulator.state_types.items()
        ]
        return StateSchema(key_schema(self.name, self.input_schema, self.keys), pa.schema(values))

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return {MAIN_STATE: self.state_schema}

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningAggregateOperator(self, context.state)


@dataclass(frozen=True, slots=True)
class Part:
    """One row per key: its hash, its key and the state columns of each aggregate."""

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    states: tuple[States, ...]

    @property
    def rows(self) -> int:
        return len(self.hashes)


class RunningAggregateOperator:
    """Keeps the epoch's parts until `finish`."""

    def __init__(self, spec: RunningAggregate, state: KeyedState) -> None:
        self._spec = spec
        self._state = state
        self._accumulators = list(spec.accumulators.values())
        self._values_schema = spec.state_schema.values
        self._output_schema = spec.output_schema
        self._parts: list[Part] = []
        self._combine_at_rows = _COMBINE_ROWS_MIN

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows:
            self._parts.append(self._reduce(records))
            if sum(part.rows for part in self._parts) >= self._combine_at_rows:
                self._parts = [self._combine(self._parts)]
                self._combine_at_rows = max(_COMBINE_ROWS_MIN, 2 * self._parts[0].rows)
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._parts:
            return iter(())
        part = self._combine(self._parts)
        self._parts.clear()
        found = self._state.lookup(part.hashes, part.keys)
        part = self._behind(found.values, found.found, part)
        arrays = [array for states in part.states for array in states]
        values = pa.RecordBatch.from_arrays(arrays, schema=self._values_schema)
        self._state.update(part.hashes, part.keys, values)
        return iter((self._results(part),))

    def _reduce(self, records: Records) -> Part:
        """A slice as a part; everything in it is copied, so the slice's buffers may be used again."""
        keys = normalise_keys(records.batch.select(list(self._spec.keys)), self._spec.keys)
        grouping = group_rows(records.hashes, keys)
        groups, firsts = grouping.groups(), grouping.firsts
        keys = keys.take(pa.array(firsts))
        states = self._each(keys, lambda _, accumulator: accumulator.partial(records.batch, groups))
        return Part(records.hashes[firsts], keys, states)

    def _combine(self, parts: Sequence[Part]) -> Part:
        """One part out of several, oldest first."""
        if len(parts) == 1:
            return parts[0]
        hashes = np.concatenate([part.hashes for part in parts])
        keys = pa.concat_batches([part.keys for part in parts])
        grouping = group_rows(hashes, keys)
        firsts = grouping.firsts
        together = [_concat(states) for states in zip(*(part.states for part in parts), strict=True)]
        return self._combined(hashes[firsts], keys.take(pa.array(firsts)), together, grouping.groups())

    def _behind(self, values: pa.RecordBatch, found: Flags, part: Part) -> Part:
        """The part with the looked-up state before it; keys that were not found have none."""
        known = np.flatnonzero(found)
        if not len(known):
            return part
        columns = iter(values.filter(pa.array(found)) if len(known) < part.rows else values)
        together = [_concat([[next(columns) for _ in states], states]) for states in part.states]
        groups = Groups(np.concatenate([known, np.arange(part.rows)]), part.rows)
        return self._combined(part.hashes, part.keys, together, groups)

    def _combined(
        self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, together: Sequence[States], groups: Groups
    ) -> Part:
        states = self._each(keys, lambda number, accumulator: accumulator.combine(together[number], groups))
        return Part(hashes, keys, states)

    def _results(self, part: Part) -> pa.RecordBatch:
        results = self._each(part.keys, lambda number, accumulator: [accumulator.result(part.states[number])])
        arrays = [*part.keys.columns, *(result for (result,) in results)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._output_schema)

    def _each(
        self, keys: pa.RecordBatch, compute: Callable[[int, Accumulator], list[pa.Array]]
    ) -> tuple[list[pa.Array], ...]:
        """What `compute` gives for each aggregate; `keys` are those of its groups."""
        computed = []
        for number, accumulator in enumerate(self._accumulators):
            try:
                computed.append(compute(number, accumulator))
            except Overflow as error:
                raise self._overflown(number, record_of(keys, error.group), error) from error
        return tuple(computed)

    def _overflown(self, number: int, key: str, error: Overflow) -> OperatorFailed:
        output, aggregate = list(self._spec.aggregates.items())[number]
        return OperatorFailed(
            f"{self._spec.name}: {output} = {aggregate} does not fit into {error.kind} for the key {key}",
            cause="the sum of this key has grown too large",
            next_step="cast the column to double or to a decimal with fewer digits before the aggregate",
            operator=self._spec.name,
            exception=type(error).__name__,
            record=key,
        )


def _concat(parts: Sequence[States]) -> list[pa.Array]:
    """The state columns of one aggregate, from all parts."""
    return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]
