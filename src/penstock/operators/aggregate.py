"""Running aggregates per key (D2): one updated row per touched key and epoch.

Slices are reduced at once to one row per key, without looking at the state and without keeping the slice's memory.
At the end of the epoch the parts are combined, the state of all touched keys is looked up in one go, and written back
in one go.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.operators.accumulators import Accumulator
from penstock.operators.aggregate_base import Aggregate
from penstock.operators.base import MAIN_STATE, Operator, OperatorContext, Records, SpecDefaults, StateSchema
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.parts import Pending, Reducer, bind_all, state_fields
from penstock.state.keys import normalise_keys

if TYPE_CHECKING:
    from penstock.state.keyed import KeyedState


@dataclass(frozen=True)
class RunningAggregate(SpecDefaults):
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
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningAggregateOperator(self, context.state)


class RunningAggregateOperator:
    """Keeps the epoch's parts until `finish`."""

    def __init__(self, spec: RunningAggregate, state: KeyedState) -> None:
        self._keys = list(spec.keys)
        self._state = state
        self._values_schema = spec.state_schema.values
        self._output_schema = spec.output_schema
        self._reducer = Reducer(spec.name, spec.aggregates, spec.accumulators)
        self._pending = Pending(self._reducer)

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows:
            keys = normalise_keys(records.batch.select(self._keys), self._keys)
            self._pending.add(self._reducer.reduce(records.hashes, keys, records.batch))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        part = self._pending.take()
        if part is None:
            return iter(())
        found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(found.values, found.found, part)
        values = pa.RecordBatch.from_arrays(part.columns(), schema=self._values_schema)
        self._state.update(part.hashes, part.keys, values)
        arrays = [*part.keys.columns, *self._reducer.results(part)]
        return iter((pa.RecordBatch.from_arrays(arrays, schema=self._output_schema),))
