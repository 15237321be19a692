"""User code per key with state (D3): the class a user writes, and its checked form in the graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import pyarrow as pa

from penstock.operators.base import MAIN_STATE, Operator, OperatorContext, SpecDefaults, StateSchema
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.declare import Declaration, Method, Resolve
from penstock.operators.process_operator import ProcessOperator


class Output(Protocol):
    """Where `KeyedProcess.process` puts its rows; each has exactly the declared columns."""

    def emit(self, **columns: Any) -> None: ...
    def emit_many(self, rows: Sequence[Mapping[str, Any]]) -> None: ...


class KeyedProcess:
    """User code that sees the rows of one key, with state that belongs to that key.

    A subclass declares its output columns and its state, and writes `process`::

        class Spend(pen.KeyedProcess):
            output = "user bigint, total bigint"
            total = pen.value("bigint")

            def process(self, key, rows, state, out):
                state.total = (state.total or 0) + sum(row["amount"] for row in rows)
                out.emit(user=key["user"], total=state.total)

    One call gets the rows of one key that arrived together, in their order. How many that are depends on time and
    load, so results must not. What is kept in `self` is not part of a checkpoint; state is. After an exception
    `process` may be called again with fewer of the rows, to find the one to blame; nothing of that is kept.
    """

    output: ClassVar[str | pa.Schema]

    def open(self) -> None:
        """Called once before the first rows, in every subtask and again after every failure."""

    def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Output) -> None:
        """Handles the rows of one key."""
        raise NotImplementedError


_METHODS = (Method("process", 5, "process(self, key, rows, state, out)"),)


@dataclass(frozen=True)
class Process(SpecDefaults):
    """A `KeyedProcess` with its types resolved; use `declare` to make one."""

    name: str
    input_schema: pa.Schema
    keys: tuple[str, ...]
    function: KeyedProcess | type[KeyedProcess]
    output_schema: pa.Schema
    values: pa.Schema

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
        declared = Declaration.of(name, function, KeyedProcess, _METHODS, resolve)
        output_schema, values = declared.output(), declared.values()
        refuse_doubles(name, output_schema.names, "an output column")
        refuse_doubles(name, (*key_schema(name, input_schema, keys).names, *values.names), "a key or state column")
        return cls(name, input_schema, keys, function, output_schema, values)

    @property
    def kind(self) -> str:
        return "process"

    @property
    def key_schema(self) -> pa.Schema:
        return key_schema(self.name, self.input_schema, self.keys)

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        return {MAIN_STATE: StateSchema(self.key_schema, self.values)} if len(self.values) else {}

    def build(self, context: OperatorContext) -> Operator:
        return ProcessOperator(self, context)
