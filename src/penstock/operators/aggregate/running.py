"""Running aggregates per key, as the graph knows them: one updated row per touched key and epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.operators.aggregate.accumulators import Accumulator
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.parts import bind_all, meanings, not_later, state_fields
from penstock.operators.aggregate.running_operator import RunningAggregateOperator
from penstock.operators.base import KeyedSpec, Operator, OperatorContext
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.records import MAIN_STATE, StateSchema


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
        values = pa.schema(state_fields(self.name, self.accumulators))
        return StateSchema(keys, values, may_grow=True, from_start=not_later(self.accumulators))

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return {MAIN_STATE: self.state_schema}

    @property
    def computed(self) -> Mapping[str, str]:
        return meanings(self.aggregates, self.accumulators)

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningAggregateOperator(self, context)
