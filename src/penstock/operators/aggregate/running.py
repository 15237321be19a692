"""Running aggregates per key: one updated row per touched key and epoch.

Slices are reduced to one row per key, at once or several together, without looking at the state and without keeping the
slice's memory.
At the end of the epoch the parts are combined, the state of all touched keys is looked up in one go, and written back
in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregate.accumulators import Accumulator, read_quickly
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.gathered import GatheredSlices
from penstock.operators.aggregate.parts import Pending, Reducer, bind_all, state_fields
from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OperatorDefaults
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.records import MAIN_STATE, Records, StateSchema
from penstock.state.keys import normalise_keys


@dataclass(frozen=True)
class RunningAggregate(KeyedSpec):
    """Aggregates of everything a key has seen so far, by output column."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate]

    def __post_init__(self) -> None:
        key_schema(self.name, self.input_schema, self.keys)
        values = self.state_schema.values
        refuse_doubles(self.name, (*self.keys, *self.aggregates), "an output column")
        refuse_doubles(self.name, (*self.keys, *values.names), "a state column")

    @property
    def kind(self) -> str:
        return "aggregate"

    @cached_property
    def accumulators(self) -> dict[str, Accumulator]:
        return bind_all(self.name, self.input_schema, self.aggregates)

    @property
    def output_schema(self) -> pa.Schema:
        results = [pa.field(name, accumulator.result_type) for name, accumulator in self.accumulators.items()]
        return pa.schema([*self.state_schema.keys, *results])

    @cached_property
    def state_schema(self) -> StateSchema:
        keys = key_schema(self.name, self.input_schema, self.keys)
        return StateSchema(keys, pa.schema(state_fields(self.name, self.accumulators)))

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return {MAIN_STATE: self.state_schema}

    @property
    def computed(self) -> Mapping[str, str]:
        return {name: aggregate.meaning for name, aggregate in self.aggregates.items()}

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningAggregateOperator(self, context)


def held_by(spec: RunningAggregate) -> GatheredSlices | None:
    """Room to hold slices back, unless an aggregate is dear, or looks at rows that are wide."""
    reads = [read_quickly(accumulator) for accumulator in spec.accumulators.values()]
    if any(columns is None for columns in reads):
        return None
    return GatheredSlices.of(
        spec.input_schema, [*spec.keys, *(name for columns in reads if columns for name in columns)]
    )


class RunningAggregateOperator(OperatorDefaults):
    """Keeps the epoch's parts until `finish`."""

    def __init__(self, spec: RunningAggregate, context: OperatorContext) -> None:
        self._keys = list(spec.keys)
        self._state = context.state
        self._values_schema = spec.state_schema.values
        self._output_schema = spec.output_schema
        self._reducer = Reducer(spec.name, spec.aggregates, spec.accumulators, context.max_parallelism)
        self._held = held_by(spec)
        self._pending = Pending(self._reducer)

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows and not self._hold(records):
            self._reduce_held()
            if not self._hold(records):
                self._reduce(records.hashes, records.batch)
        return iter(())

    def _hold(self, records: Records) -> bool:
        return self._held is not None and self._held.add(records.hashes, records.batch)

    def _reduce_held(self) -> None:
        held = None if self._held is None else self._held.take()
        if held is not None:
            self._reduce(*held)

    def _reduce(self, hashes: npt.NDArray[np.int64], batch: pa.RecordBatch) -> None:
        keys = normalise_keys(batch.select(self._keys), self._keys)
        self._pending.add(self._reducer.reduce(hashes, keys, batch))

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._reduce_held()
        part = self._pending.take()
        if part is None:
            return iter(())
        found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(found.values, found.found, part)
        values = pa.RecordBatch.from_arrays(part.columns(), schema=self._values_schema)
        self._state.update(part.hashes, part.keys, values)
        arrays = [*part.keys.columns, *self._reducer.results(part)]
        return iter((pa.RecordBatch.from_arrays(arrays, schema=self._output_schema),))
