"""User code per key with value state (D3): the class a user writes, and its checked form in the graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.operators.base import MAIN_STATE, Operator, OperatorContext, SpecDefaults, StateSchema
from penstock.operators.columns import key_schema, refuse_doubles
from penstock.operators.process_operator import ProcessOperator

Resolve: TypeAlias = Callable[[str], pa.DataType]


class Output(Protocol):
    """Where `KeyedProcess.process` puts its rows; each has exactly the declared columns."""

    def emit(self, **columns: Any) -> None: ...
    def emit_many(self, rows: Sequence[Mapping[str, Any]]) -> None: ...


@dataclass(frozen=True, slots=True)
class ValueState:
    """One value per key; `kind` is an Arrow type or the name of a Spark type."""

    kind: str | pa.DataType


def value(kind: str | pa.DataType) -> Any:
    """Declares one value of state per key inside a `KeyedProcess`: a Spark type name or an Arrow type.

    A value that was never set, or was set to None, is None. Types: numbers, decimals, strings, booleans, binaries,
    dates, timestamps, and arrays and structs of them.
    """
    return ValueState(kind)


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
        """Checks the user's class; `resolve` turns Spark DDL ("bigint", "user bigint, total bigint") into Arrow.

        Raises: `PipelineError`.
        """
        kind = _check_function(name, function)
        output_schema = _output_schema(name, kind, resolve)
        values = _values_schema(name, kind, resolve)
        refuse_doubles(name, output_schema.names, "an output column")
        refuse_doubles(name, (*key_schema(name, input_schema, keys).names, *values.names), "a key or state column")
        return cls(name, input_schema, keys, function, output_schema, values)

    @property
    def kind(self) -> str:
        return "process"

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        if not len(self.values):
            return {}
        return {MAIN_STATE: StateSchema(key_schema(self.name, self.input_schema, self.keys), self.values)}

    def build(self, context: OperatorContext) -> Operator:
        return ProcessOperator(self, context.states.get(MAIN_STATE))


def _check_function(operator: str, function: object) -> type[KeyedProcess]:
    """The user's class. Raises: `PipelineError` if it cannot be run."""
    kind = function if isinstance(function, type) else type(function)
    if not issubclass(kind, KeyedProcess):
        _refuse(operator, f"process() got {kind.__name__}", "pass a subclass of pen.KeyedProcess")
    if kind.process is KeyedProcess.process:
        _refuse(operator, f"{kind.__name__} has no process()", "write def process(self, key, rows, state, out)")
    if not _takes(kind.process, 5):
        seen = f"{kind.__name__}.process{inspect.signature(kind.process)}"
        _refuse(operator, seen, "write def process(self, key, rows, state, out)")
    if isinstance(function, type) and not _takes(kind, 0):
        seen = f"{kind.__name__}{inspect.signature(kind)} needs arguments"
        _refuse(operator, seen, f"pass an instance: process({kind.__name__}(...))")
    if function is not kind and any(
        isinstance(item, ValueState) for item in getattr(function, "__dict__", {}).values()
    ):
        _refuse(operator, f"{kind.__name__} declares state in an instance", "declare pen.value(...) in the class body")
    return kind


def _takes(function: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _output_schema(operator: str, kind: type[KeyedProcess], resolve: Resolve) -> pa.Schema:
    declared = getattr(kind, "output", None)
    if isinstance(declared, pa.Schema):
        return declared
    advice = 'declare output = "user bigint, total bigint" in the class body'
    if not isinstance(declared, str):
        _refuse(operator, f"{kind.__name__} has no output columns (output is {declared!r:.100})", advice)
    resolved = _resolved(operator, f"{kind.__name__}.output", declared, resolve)
    if not pt.is_struct(resolved):
        _refuse(operator, f"{kind.__name__}.output is {declared!r}, which names a type and no columns", advice)
    return pa.schema(list(resolved))


def _values_schema(operator: str, kind: type[KeyedProcess], resolve: Resolve) -> pa.Schema:
    """State in the order of declaration, base classes first; a subclass may declare one anew."""
    attributes = {name: item for base in reversed(kind.__mro__) for name, item in vars(base).items()}
    declared = {name: item for name, item in attributes.items() if isinstance(item, ValueState) or item is value}
    return pa.schema([(name, _value_type(operator, name, item, resolve)) for name, item in declared.items()])


def _value_type(operator: str, name: str, declared: object, resolve: Resolve) -> pa.DataType:
    what = declared.kind if isinstance(declared, ValueState) else declared
    if isinstance(what, pa.DataType):
        return what
    if not isinstance(what, str):
        seen = f"the state {name!r} is declared with {what!r:.100}"
        _refuse(operator, seen, f'declare {name} = pen.value("bigint"), with a Spark type name or an Arrow type')
    return _resolved(operator, f"the state {name!r}", what, resolve)


def _resolved(operator: str, what: str, declared: str, resolve: Resolve) -> pa.DataType:
    try:
        return resolve(declared)
    except Exception as error:
        first_line = str(error).partition("\n")[0]
        raise PipelineError(
            f"{operator}: {what} is declared as {declared!r}: {first_line}",
            cause="this is not a type in Spark's DDL",
            next_step='use names such as "bigint", "double", "string", "timestamp", "decimal(10,2)", "array<bigint>"',
            operator=operator,
        ) from error


def _refuse(operator: str, seen: str, next_step: str) -> NoReturn:
    raise PipelineError(
        f"{operator}: {seen}",
        cause="the class given to process() is not complete",
        next_step=next_step,
        operator=operator,
    )
