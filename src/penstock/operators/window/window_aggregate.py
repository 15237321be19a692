"""Aggregates per key and window of event time, as the graph knows them.

A row is late when the end of its last window, and the lateness allowed beyond it, is not after the watermark that was
in effect when the row arrived. Late rows, and rows without an event time, go to the side output `LATE`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.operators.aggregate.accumulators import Accumulator
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.parts import bind_all, meanings, state_fields
from penstock.operators.base import KeyedSpec, OperatorContext, OwnTime, TimedOperator
from penstock.operators.columns import key_schema, refuse_doubles, require_column
from penstock.operators.window.pane_clock import CLOCK_SCHEMA, CLOCK_STATE
from penstock.operators.window.panes import PANE_FIELD
from penstock.operators.window.session_operator import SessionOperator
from penstock.operators.window.session_state import TIMER_FIELDS, TIMERS_STATE, session_fields
from penstock.operators.window.window_operator import RegularWindowOperator
from penstock.operators.window.windows import SessionWindow, Window
from penstock.records import LATE, MAIN_STATE, Side, StateSchema

Emit = Literal["on_close", "on_update"]

WINDOW_START, WINDOW_END = "window_start", "window_end"


@dataclass(frozen=True)
class WindowAggregate(KeyedSpec):
    """Aggregates of the rows of a key in a window, by output column.

    `time_shift` is taken off each event time: 1 for results of windows, whose event time is their end.
    """

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    time_column: str
    window: Window
    aggregates: Mapping[str, Aggregate]
    allowed_lateness: int = 0
    emit: Emit = "on_close"
    time_shift: int = 0
    late_columns: tuple[str, ...] = ()
    """The columns of late rows, without those computed for aggregates over expressions. Empty: all."""

    def __post_init__(self) -> None:
        key_schema(self.name, self.input_schema, self.keys)
        self._check_keys()
        kind = require_column(self.name, self.input_schema, self.time_column, "its window").type
        if not pt.is_timestamp(kind):
            raise PipelineError(
                f"{self.name}: a window over the column {self.time_column!r} of type {kind}",
                cause="windows are over timestamps",
                next_step="name a timestamp column with on=, or cast one before",
                operator=self.name,
                column=self.time_column,
            )
        if self.emit not in ("on_close", "on_update"):
            raise PipelineError(
                f"{self.name}: emit={self.emit!r}",
                cause="results are emitted once a window closes, or in every epoch that changes them",
                next_step='write emit="on_close" or emit="on_update"',
                operator=self.name,
            )
        if isinstance(self.window, SessionWindow) and (self.emit != "on_close" or self.allowed_lateness):
            raise PipelineError(
                f"{self.name}: session windows with emit={self.emit!r}, lateness {self.allowed_lateness} us",
                cause="a session that was emitted could still grow, and its row would name other bounds than before",
                next_step="let the source's watermark wait longer instead: pen.read(…, watermark=…)",
                operator=self.name,
            )
        refuse_doubles(self.name, self.output_schema.names, "an output column")
        assert self.state_tables

    def _check_keys(self) -> None:
        refuse_doubles(self.name, (*self.keys, PANE_FIELD.name), "a state column")
        for name in (WINDOW_START, WINDOW_END):
            if name in self.keys:
                raise PipelineError(
                    f"{self.name}: {name!r} is a key, and the column of the same name of the window's own results",
                    cause="results of a window were keyed by their bounds and put into windows again",
                    next_step="key_by columns that are no bounds: the window itself brings together what ended in it; "
                    "or rename the column before key_by",
                    operator=self.name,
                    column=name,
                )

    @property
    def kind(self) -> str:
        """Includes the lengths of the window, because panes of other lengths cannot be used."""
        return f"{self.window}_window/{self.window.lengths}"

    @cached_property
    def accumulators(self) -> dict[str, Accumulator]:
        return bind_all(self.name, self.input_schema, self.aggregates)

    @property
    def time_type(self) -> pa.DataType:
        return pa.timestamp("us", self.input_schema.field(self.time_column).type.tz)

    @property
    def output_schema(self) -> pa.Schema:
        bounds = [pa.field(WINDOW_START, self.time_type), pa.field(WINDOW_END, self.time_type)]
        results = [pa.field(name, accumulator.result_type) for name, accumulator in self.accumulators.items()]
        return pa.schema([*key_schema(self.name, self.input_schema, self.keys), *bounds, *results])

    @property
    def own_time(self) -> OwnTime:
        """Results leave before the watermark passes the end of their window, so they are never late."""
        return OwnTime(WINDOW_END, is_end=True)

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return {LATE: pa.schema([self.input_schema.field(name) for name in self._late_names])}

    def late(self, rows: pa.RecordBatch) -> Side:
        """Late rows as they leave."""
        return Side(LATE, rows.select(self._late_names))

    @property
    def _late_names(self) -> list[str]:
        return list(self.late_columns) or self.input_schema.names

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        keys = key_schema(self.name, self.input_schema, self.keys)
        values = state_fields(self.name, self.accumulators)
        paned = pa.schema([*keys, PANE_FIELD])
        if isinstance(self.window, SessionWindow):
            return {
                MAIN_STATE: StateSchema(keys, pa.schema(session_fields(values))),
                TIMERS_STATE: StateSchema(paned, pa.schema(TIMER_FIELDS)),
                CLOCK_STATE: CLOCK_SCHEMA,
            }
        return {MAIN_STATE: StateSchema(paned, pa.schema(values)), CLOCK_STATE: CLOCK_SCHEMA}

    @property
    def computed(self) -> Mapping[str, str]:
        return {**meanings(self.aggregates, self.accumulators), **self.placed}

    @property
    def placed(self) -> Mapping[str, str]:
        """Of which time windows are. Windows that are open by another one would get rows that are not theirs."""
        return {WINDOW_START: f"of {self.time_column}"}

    @property
    def timed(self) -> bool:
        return True

    @property
    def emits_at_end(self) -> bool:
        return True

    def build(self, context: OperatorContext) -> TimedOperator:
        if isinstance(self.window, SessionWindow):
            return SessionOperator(self, self.window, context)
        return RegularWindowOperator(self, self.window, context)
