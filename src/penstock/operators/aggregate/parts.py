"""Aggregates of an epoch on their way into the state: slices reduced to one row per key, and such parts combined.

Parts are combined oldest first, and looked-up state is simply the oldest part. The caller defines the key: the user's
key, or that and a pane of time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.display import record_of
from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.aggregate.accumulators import Accumulator, States
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.collecting import ApproximateDistinct
from penstock.operators.aggregate.reduce import Overflow
from penstock.operators.columns import refuse_doubles
from penstock.operators.grouping import Grouping, Groups, Numbered, group_rows
from penstock.protocol.keygroups import order_of
from penstock.state.keys import Flags

# Parts are combined once they hold this many rows and twice as many as the last combining left. So each row is combined
# a bounded number of times, and memory stays proportional to the number of touched keys.
_COMBINE_ROWS_MIN = 1 << 18


@dataclass(frozen=True, slots=True)
class Part:
    """One row per key: its hash, its key and the state columns of each aggregate."""

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    states: tuple[States, ...]

    @property
    def rows(self) -> int:
        return len(self.hashes)

    def columns(self) -> list[pa.Array]:
        """The state columns of all aggregates, one after the other."""
        return [array for states in self.states for array in states]

    def take(self, rows: npt.NDArray[np.int64]) -> Part:
        indices = pa.array(rows)
        states = tuple([array.take(indices) for array in columns] for columns in self.states)
        return Part(self.hashes[rows], self.keys.take(indices), states)


def by_name(operator: str, columns: object, aggregates: Mapping[str, Aggregate]) -> dict[str, Aggregate]:
    """The arguments of ``aggregate()``: a mapping, or None, and keywords. Raises: `PipelineError`."""
    given = {} if columns is None else columns
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise _no_aggregates(operator, given)
    return {**given, **aggregates}


def _no_aggregates(operator: str, given: object) -> PipelineError:
    return PipelineError(
        f"{operator}: got the aggregates {given!r:.200}",
        cause="aggregate() takes output columns and functions of Penstock, each with its column",
        next_step="write for example aggregate(n=pen.count(), total=pen.sum('amount'))",
        operator=operator,
    )


def bind_all(operator: str, schema: pa.Schema, aggregates: Mapping[str, Aggregate]) -> dict[str, Accumulator]:
    """The accumulators by output column. Raises: `PipelineError`."""
    if not aggregates or not all(isinstance(value, Aggregate) for value in aggregates.values()):
        raise _no_aggregates(operator, dict(aggregates))
    return {name: value.bind(operator, schema) for name, value in aggregates.items()}


def meanings(aggregates: Mapping[str, Aggregate], accumulators: Mapping[str, Accumulator]) -> dict[str, str]:
    """By output column, what is computed; and by column of hashes, the type of what they are of."""
    hashed = {
        f"{name}__hashes": f"values of {accumulator.hashed}"
        for name, accumulator in accumulators.items()
        if isinstance(accumulator, ApproximateDistinct)
    }
    return {**{name: aggregate.meaning for name, aggregate in aggregates.items()}, **hashed}


def state_fields(operator: str, accumulators: Mapping[str, Accumulator]) -> list[pa.Field]:
    """The state columns of all aggregates. Raises: `PipelineError` for two of one name."""
    fields = [
        pa.field(name + suffix, kind)
        for name, accumulator in accumulators.items()
        for suffix, kind in accumulator.state_types.items()
    ]
    refuse_doubles(operator, (field.name for field in fields), "a state column")
    return fields


def not_later(accumulators: Mapping[str, Accumulator]) -> frozenset[str]:
    """The state columns of aggregates that cannot begin with keys that are there: their null may be a value."""
    return frozenset(
        name + suffix
        for name, accumulator in accumulators.items()
        if not accumulator.null_is_nothing
        for suffix in accumulator.state_types
    )


class Reducer:
    """The aggregates of one operator, computed for all keys of a slice or part at once.

    The parts that it makes are sorted like the state, so that lookups need no sorting.
    """

    def __init__(
        self,
        operator: str,
        aggregates: Mapping[str, Aggregate],
        accumulators: Mapping[str, Accumulator],
        max_parallelism: int,
    ) -> None:
        self._operator = operator
        self._max_parallelism = max_parallelism
        self._aggregates = list(aggregates.items())
        self._accumulators = list(accumulators.values())

    def reduce(self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, batch: pa.RecordBatch) -> Part:
        """A slice as a part. All values are copied, so the slice's buffers may be reused."""
        grouping = self._grouped(hashes, keys)
        firsts = grouping.firsts
        return self.reduce_groups(hashes[firsts], keys.take(pa.array(firsts)), batch, grouping)

    def reduce_groups(
        self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, batch: pa.RecordBatch, groups: Groups
    ) -> Part:
        """The same for rows that are already grouped; `hashes` and `keys` are those of the groups."""
        states = self._each(keys, lambda _, accumulator: accumulator.partial(batch, groups))
        return Part(hashes, keys, states)

    def combine(self, parts: Sequence[Part]) -> Part:
        """One part out of several, oldest first."""
        if len(parts) == 1:
            return parts[0]
        together = concat_parts(parts)
        grouping = self._grouped(together.hashes, together.keys)
        firsts = grouping.firsts
        return self.combine_groups(
            together.hashes[firsts], together.keys.take(pa.array(firsts)), together.states, grouping
        )

    def behind(self, values: pa.RecordBatch, found: Flags, part: Part) -> Part:
        """The looked-up state followed by the part; keys that were not found have no state."""
        known = np.flatnonzero(found)
        if not len(known):
            return part
        columns = iter(values.filter(pa.array(found)) if len(known) < part.rows else values)
        stored = [[next(columns) for _ in states] for states in part.states]
        if any(self._begun_later(number, states) for number, states in enumerate(stored)):
            return self._behind_each(stored, known, part)
        together = [_concat([before, states]) for before, states in zip(stored, part.states, strict=True)]
        groups = Numbered(np.concatenate([known, np.arange(part.rows)]), part.rows)
        return self.combine_groups(part.hashes, part.keys, together, groups)

    def _behind_each(self, stored: Sequence[States], known: npt.NDArray[np.int64], part: Part) -> Part:
        """The same where an aggregate was added later, and has no state for some of the keys that are there."""

        def behind(number: int, accumulator: Accumulator) -> list[pa.Array]:
            before, states = stored[number], part.states[number]
            there = np.arange(len(known))
            if self._begun_later(number, before):
                there = np.flatnonzero(~_missing(before))
            before = [column.take(pa.array(there)) for column in before]
            groups = Numbered(np.concatenate([known[there], np.arange(part.rows)]), part.rows)
            return accumulator.combine(_concat([before, states]), groups)

        return Part(part.hashes, part.keys, self._each(part.keys, behind))

    def _begun_later(self, number: int, states: States) -> bool:
        """Whether an aggregate has no state at all for some of the keys that are there."""
        return self._accumulators[number].null_is_nothing and all(column.null_count for column in states)

    def combine_groups(
        self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch, states: Sequence[States], groups: Groups
    ) -> Part:
        """State rows reduced to one per group; `hashes` and `keys` are those of the groups."""
        combined = self._each(keys, lambda number, accumulator: accumulator.combine(states[number], groups))
        return Part(hashes, keys, combined)

    def results(self, part: Part) -> list[pa.Array]:
        """The output column of each aggregate."""
        results = self._each(part.keys, lambda number, accumulator: [accumulator.result(part.states[number])])
        return [result for (result,) in results]

    def split(self, columns: Sequence[pa.Array]) -> tuple[list[pa.Array], ...]:
        """State columns as they are stored, by aggregate."""
        rest = iter(columns)
        return tuple([next(rest) for _ in accumulator.state_types] for accumulator in self._accumulators)

    def _grouped(self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch) -> Grouping:
        return group_rows(order_of(hashes, self._max_parallelism).view(np.int64), keys)

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
        output, aggregate = self._aggregates[number]
        return OperatorFailed(
            f"{self._operator}: {output} = {aggregate} does not fit into {error.kind} for the key {key}",
            cause="the sum of this key has grown too large",
            next_step="cast the column to double or to a decimal with fewer digits before the aggregate",
            operator=self._operator,
            exception=type(error).__name__,
            record=key,
        )


class Pending:
    """Parts of the epoch that are not in the state yet."""

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._parts: list[Part] = []
        self._rows = 0
        self._combine_at_rows = _COMBINE_ROWS_MIN

    def add(self, part: Part) -> None:
        self._parts.append(part)
        self._rows += part.rows
        if self._rows >= self._combine_at_rows:
            self._parts = [self._reducer.combine(self._parts)]
            self._rows = self._parts[0].rows
            self._combine_at_rows = max(_COMBINE_ROWS_MIN, 2 * self._rows)

    def take(self) -> Part | None:
        """Returns everything as one part, if there is any, and becomes empty."""
        if not self._parts:
            return None
        part = self._reducer.combine(self._parts)
        self._parts, self._rows, self._combine_at_rows = [], 0, _COMBINE_ROWS_MIN
        return part


def _missing(states: States) -> Flags:
    missing = np.ones(len(states[0]), np.bool_)
    for column in states:
        missing &= column.is_null().to_numpy(zero_copy_only=False)
    return missing


def concat_parts(parts: Sequence[Part]) -> Part:
    """Parts one after the other; a key may then occur in several rows."""
    return Part(
        np.concatenate([part.hashes for part in parts]),
        pa.concat_batches([part.keys for part in parts]),
        tuple(_concat(states) for states in zip(*(part.states for part in parts), strict=True)),
    )


def _concat(parts: Sequence[States]) -> list[pa.Array]:
    """The state columns of one aggregate, from all parts."""
    return [pa.concat_arrays(columns) for columns in zip(*parts, strict=True)]
