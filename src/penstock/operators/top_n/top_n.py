"""The n best rows of each key, running or per window.

Rows whose value is null do not take part; NaN is larger than any number; of equal values the one that came first ranks
higher. The running kind emits, per epoch, the ranks that changed. A table keyed by key and rank then holds the current
list. The windowed kind emits the list of a window when it closes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from penstock.operators.base import KeyedSpec, Operator, OperatorContext, OwnTime, SpecDefaults
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.top_n.top_n_operator import ROWS, RunningTopOperator, WindowTopOperator
from penstock.operators.top_n.top_rows import TopRows, top_rows
from penstock.operators.window.window_aggregate import WindowAggregate
from penstock.records import MAIN_STATE, StateSchema

RANK = "rank"
WINDOW_ROWS = "__penstock_rows"
"""The column with the list of a window. Users' columns cannot have this name."""


@dataclass(frozen=True)
class RunningTop(KeyedSpec):
    """The best rows of everything a key has seen."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    by: str
    n: int
    ascending: bool

    def __post_init__(self) -> None:
        refuse_doubles(self.name, self.output_schema.names, "an output column")

    @property
    def kind(self) -> str:
        return self.top.kind

    @cached_property
    def top(self) -> TopRows:
        return top_rows(self.name, self.input_schema, self.keys, self.by, self.n, ascending=self.ascending)

    @property
    def output_schema(self) -> pa.Schema:
        keys = key_schema(self.name, self.input_schema, self.keys)
        return pa.schema([*keys, pa.field(RANK, pa.int32()), *self.top.row_type])

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        keys = key_schema(self.name, self.input_schema, self.keys)
        return {MAIN_STATE: StateSchema(keys, pa.schema([(ROWS, pa.list_(self.top.row_type))]))}

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return RunningTopOperator(self, context)


@dataclass(frozen=True)
class WindowTop(SpecDefaults):
    """The best rows of a key in each window: an aggregate per window, unpacked."""

    name: str
    lists: WindowAggregate
    top: TopRows

    def __post_init__(self) -> None:
        refuse_doubles(self.name, self.output_schema.names, "an output column")

    @property
    def kind(self) -> str:
        return f"{self.lists.kind}/{self.top.kind}"

    @property
    def output_keys(self) -> tuple[str, ...]:
        return self.lists.output_keys

    @property
    def output_schema(self) -> pa.Schema:
        *bounds, _ = self.lists.output_schema
        return pa.schema([*bounds, pa.field(RANK, pa.int32()), *self.top.row_type])

    @property
    def own_time(self) -> OwnTime:
        return self.lists.own_time

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return self.lists.side_outputs

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return self.lists.state_tables

    @property
    def computed(self) -> Mapping[str, str]:
        return self.lists.placed

    @property
    def timed(self) -> bool:
        return True

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> Operator:
        return WindowTopOperator(self, self.lists.build(context))
