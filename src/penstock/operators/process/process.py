"""User code per key with state: the class a user writes, and its checked form in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.base import KeyedSpec, Operator, OperatorContext
from penstock.operators.columns import key_schema
from penstock.operators.failures.careful import CarefulSpec
from penstock.operators.failures.careful_operator import careful
from penstock.operators.process.declare import Declaration, Method, Resolve
from penstock.operators.process.process_operator import CodeShape, ProcessOperator
from penstock.operators.process.timers import TimerRules, Timers
from penstock.operators.process.user_state import StateField
from penstock.records import DEAD_LETTERS, StateSchema


class RowOutput(Protocol):
    """Where `KeyedProcess.process` puts its rows; each has exactly the declared columns."""

    def emit(self, **columns: Any) -> None: ...
    def emit_many(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    def side(self, output: str) -> RowOutput: ...


class KeyedProcess:
    """User code that sees the rows of one key, with state that belongs to that key.

    A subclass declares its output columns and its state, and writes `process`::

        class Spend(pen.KeyedProcess):
            output = "user bigint, total bigint"
            total = pen.value_state("bigint")

            def process(self, key, rows, state, out):
                state.total = (state.total or 0) + sum(row["amount"] for row in rows)
                out.emit(user=key["user"], total=state.total)

    One call gets the rows of one key that arrived together, in their order. Their number depends on time and load, so
    results must not depend on it. Checkpoints hold the declared state, not attributes of `self`. After an exception
    Penstock may call `process` again with fewer rows to find the failing one; it keeps no effects of these calls.

    `sides` names side outputs and their columns: ``out.side("late").emit(…)``. A class that writes `on_timer` gets
    `timers` as the last argument of both methods: ``timers.at(event_time, name)``, ``timers.after("10 s", name)``,
    ``timers.cancel(name)``, ``timers.watermark``, ``timers.now``, and in `on_timer` ``timers.name``.
    """

    output: ClassVar[str | pa.Schema | Any]
    """Columns as Spark's DDL, as an Arrow schema or as a `StructType` of Spark; so are those of `sides`."""
    sides: ClassVar[Mapping[str, str | pa.Schema | Any]] = MappingProxyType({})

    def open(self) -> None:
        """Called once before the first rows, in every subtask and again after every failure."""

    def process(self, *args: Any, **kwargs: Any) -> None:
        """``process(self, key, rows, state, out[, timers])``: handles the rows of one key."""
        raise NotImplementedError

    def on_timer(self, key: dict[str, Any], time: datetime, state: Any, out: RowOutput, timers: Timers) -> None:
        """Called when a timer of a key is due, with the moment it was set to (in UTC)."""
        raise NotImplementedError


_PROCESS = Method("process", (5, 6), "process(self, key, rows, state, out)")
_PROCESS_TIMED = Method("process", (6,), "process(self, key, rows, state, out, timers)")
_ON_TIMER = Method("on_timer", (6,), "on_timer(self, key, time, state, out, timers)")


@dataclass(frozen=True)
class Process(KeyedSpec, CarefulSpec):
    """A `KeyedProcess` with its types resolved; use `declare` to make one."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    function: KeyedProcess | type[KeyedProcess]
    output_schema: pa.Schema
    fields: tuple[StateField, ...] = ()
    sides: Mapping[str, pa.Schema] = field(default_factory=dict)
    takes_timers: bool = False
    timed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if DEAD_LETTERS in self.sides:
            raise PipelineError(
                f"{self.name}: a side output called {DEAD_LETTERS!r}",
                cause='records that fail leave by it with on_error="dead_letter"',
                next_step="choose another name for the side output",
                operator=self.name,
            )

    @property
    def gathers(self) -> bool:
        return True

    @classmethod
    def declare(
        cls,
        name: str,
        input_schema: pa.Schema,
        keys: tuple[str, ...],
        function: KeyedProcess | type[KeyedProcess],
        *,
        resolve: Resolve,
    ) -> Process:
        """Checks the user's class.

        Raises: `PipelineError`.
        """
        declared = Declaration.of(name, function, KeyedProcess, (_PROCESS,), resolve)
        timed = declared.has("on_timer")
        if timed:
            Declaration.of(name, function, KeyedProcess, (_PROCESS_TIMED, _ON_TIMER), resolve)
        return cls(
            name,
            input_schema,
            keys,
            function,
            declared.output(),
            declared.fields(beside=key_schema(name, input_schema, keys).names),
            declared.sides(),
            takes_timers=declared.takes("process", 6),
            timed=timed,
        )

    @property
    def kind(self) -> str:
        return "process"

    @cached_property
    def shape(self) -> CodeShape:
        keys = key_schema(self.name, self.input_schema, self.keys)
        rules = TimerRules(self.timed, self.watermarks)
        return CodeShape(self.name, keys, self.fields, self.output_schema, self.sides, rules)

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return self.shape.tables()

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return {**self.sides, **super().side_outputs}

    @property
    def emits_at_end(self) -> bool:
        return self.timed

    def build(self, context: OperatorContext) -> Operator:
        letters = self.letters(self.name, context)
        return careful(ProcessOperator(self, context, blames=letters is None), letters)
