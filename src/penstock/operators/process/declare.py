"""What a user's class declares, checked and resolved when the pipeline is built: state, output columns, methods."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.hashing import why_unsupported
from penstock.operators.columns import refuse_doubles
from penstock.operators.process.user_state import StateField, StateView
from penstock.units import Duration, parse_duration

Resolve: TypeAlias = Callable[[Any], pa.DataType]
"""Turns Spark DDL ("bigint", "user bigint, total bigint"), or a type of Spark, into an Arrow type."""


@dataclass(frozen=True, slots=True)
class ValueState:
    """One value, list or map per key; types are Arrow types or names of Spark types."""

    kind: str | pa.DataType
    shape: Literal["value", "list", "map"] = "value"
    key: str | pa.DataType | None = None
    ttl: Duration | None = None


@dataclass(frozen=True, slots=True)
class BroadcastMap:
    """A map that is the same in all subtasks."""

    key: str | pa.DataType
    value: str | pa.DataType


def value_state(kind: str | pa.DataType, *, ttl: Duration | None = None) -> Any:
    """Declares one value of state per key inside a process class: a Spark type name or an Arrow type.

    A value that was never set, or was set to None, is None. Types: numbers, decimals, strings, booleans, binaries,
    dates, timestamps, and arrays, maps and structs of them. With `ttl` it is forgotten that long after it was last
    written, in processing time.
    """
    return ValueState(kind, ttl=ttl)


def list_state(kind: str | pa.DataType, *, ttl: Duration | None = None) -> Any:
    """Declares a list of state per key, empty at first; `kind` is the type of its items. It is read and written as a
    whole whenever its key has rows, so it should stay short."""
    return ValueState(kind, "list", ttl=ttl)


def map_state(key: str | pa.DataType, value: str | pa.DataType, *, ttl: Duration | None = None) -> Any:
    """Declares a dict of state per key, empty at first. It is read and written as a whole whenever its key has rows, so
    it should stay small."""
    return ValueState(value, "map", key, ttl)


def broadcast_map(key: str | pa.DataType, value: str | pa.DataType) -> Any:
    """Declares a map inside a `ConnectProcess` that broadcast rows fill and all other rows see."""
    return BroadcastMap(key, value)


@dataclass(frozen=True, slots=True)
class Method:
    """A method that a user's class must have."""

    name: str
    arguments: tuple[int, ...]
    """The allowed numbers of arguments, with self."""
    form: str
    may_yield: bool = False
    """Whether it may be a generator."""


_OPEN = Method("open", (1,), "open(self)")


@dataclass(frozen=True, slots=True)
class Declaration:
    """A user's class and where it is used, for messages."""

    operator: str
    kind: type
    base: type
    resolve: Resolve

    @classmethod
    def of(
        cls, operator: str, function: object, base: type, methods: tuple[Method, ...], resolve: Resolve
    ) -> Declaration:
        """Raises: `PipelineError` if the class cannot be run."""
        kind = function if isinstance(function, type) else type(function)
        declared = cls(operator, kind, base, resolve)
        if not issubclass(kind, base):
            declared.refuse(f"got {kind.__name__}", f"pass a subclass of pen.{base.__name__}")
        declared._check_names()
        for method in methods:
            declared._check_method(method)
        declared._check_form(_OPEN)
        if isinstance(function, type) and not _takes(kind, 0):
            seen = f"{kind.__name__}{inspect.signature(kind)} needs arguments"
            declared.refuse(seen, f"pass an instance: {kind.__name__}(...)")
        own = {} if function is kind else getattr(function, "__dict__", {})
        if any(isinstance(item, ValueState | BroadcastMap) for item in own.values()):
            declared.refuse(f"{kind.__name__} declares state in an instance", "declare state in the class body")
        return declared

    def _check_names(self) -> None:
        """The name of a state must not hide a method, nor an attribute that every state has."""
        for name, item in self._attributes().items():
            hides = hasattr(self.base, name) and callable(getattr(self.base, name))
            if isinstance(item, ValueState | BroadcastMap) and (hides or hasattr(StateView, name)):
                seen = f"the state {name!r} is called like a part of pen.{self.base.__name__}"
                self.refuse(seen, "give it another name", cause="it would hide that part")

    def _check_method(self, method: Method) -> None:
        own = getattr(self.kind, method.name, None)
        if own is None or own is getattr(self.base, method.name, None):
            self.refuse(f"{self.kind.__name__} has no {method.name}()", f"write def {method.form}")
        self._check_form(method)

    def _check_form(self, method: Method) -> None:
        own, name = getattr(self.kind, method.name), f"{self.kind.__name__}.{method.name}"
        if not callable(own):
            self.refuse(f"{name} is {own!r:.100}, no method", f"write def {method.form}")
        if not any(_takes(own, count) for count in method.arguments):
            self.refuse(f"{name}{inspect.signature(own)}", f"write def {method.form}")
        if inspect.iscoroutinefunction(own) or inspect.isasyncgenfunction(own):
            advice = f"write def {method.form} without async; map_async is for calls that wait"
            self.refuse(
                f"{name} is async", advice, cause="Penstock calls it without await, so its code would never run"
            )
        if inspect.isgeneratorfunction(own) and not method.may_yield:
            advice = "write no yield in it: rows leave by out.emit(…)"
            self.refuse(f"{name} is a generator", advice, cause="a call only makes it, and nothing of it would run")

    def output(self) -> pa.Schema:
        """The declared output columns."""
        advice = 'declare output = "user bigint, total bigint" in the class body'
        return self._columns("output", getattr(self.kind, "output", None), advice)

    def sides(self) -> Mapping[str, pa.Schema]:
        """The declared side outputs."""
        declared = getattr(self.kind, "sides", {})
        advice = 'declare sides = {"late": "user bigint, amount bigint"} in the class body'
        if not isinstance(declared, Mapping):
            self.refuse(f"{self.kind.__name__}.sides is {declared!r:.100}", advice)
        return {name: self._columns(f"sides[{name!r}]", columns, advice) for name, columns in declared.items()}

    def fields(self, beside: Iterable[str]) -> tuple[StateField, ...]:
        """State per key in the order of declaration, base classes first; a subclass may declare one anew.

        `beside` are names that are taken by keys and other state.
        """
        fields = tuple(self._field(name, item) for name, item in self._declared(ValueState, value_state).items())
        refuse_doubles(self.operator, (*beside, *(field.name for field in fields)), "a key or state column")
        return fields

    def has(self, method: str) -> bool:
        """Whether the class implements an optional method."""
        return getattr(self.kind, method) is not getattr(self.base, method)

    def takes(self, method: str, arguments: int) -> bool:
        return _takes(getattr(self.kind, method), arguments)

    def broadcast_maps(self) -> Mapping[str, tuple[pa.DataType, pa.DataType]]:
        """Key and value type of each broadcast map."""
        return {
            name: (self._map_key(name, item), self._type(f"the values of {name!r}", item.value))
            for name, item in self._declared(BroadcastMap, broadcast_map).items()
        }

    def refuse(self, seen: str, next_step: str, *, cause: str = "the class given to it is not complete") -> NoReturn:
        raise PipelineError(
            f"{self.operator}: {seen}",
            cause=cause,
            next_step=next_step,
            operator=self.operator,
        )

    def _declared(self, kind: type, maker: object) -> dict[str, Any]:
        return {name: item for name, item in self._attributes().items() if isinstance(item, kind) or item is maker}

    def _attributes(self) -> dict[str, Any]:
        return {name: item for base in reversed(self.kind.__mro__) for name, item in vars(base).items()}

    def _columns(self, what: str, declared: object, advice: str) -> pa.Schema:
        columns = self._schema(what, declared, advice)
        if not columns.names:
            self.refuse(f"{self.kind.__name__}.{what} has no columns", advice)
        refuse_doubles(self.operator, columns.names, f"a column of {what}")
        return columns

    def _schema(self, what: str, declared: object, advice: str) -> pa.Schema:
        if isinstance(declared, pa.Schema):
            return declared
        kind = self.kind.__name__
        if declared is None or isinstance(declared, ValueState | BroadcastMap):
            self.refuse(f"{kind} has no {what} columns ({what} is {declared!r:.100})", advice)
        resolved = self._resolved(f"{kind}.{what}", declared)
        if not pt.is_struct(resolved):
            self.refuse(f"{kind}.{what} is {declared!r}, which names a type and no columns", advice)
        return pa.schema(list(resolved))

    def _field(self, name: str, declared: object) -> StateField:
        if not isinstance(declared, ValueState):
            seen = f"the state {name!r} is declared with {declared!r:.100}"
            self.refuse(seen, f'declare {name} = pen.value_state("bigint"), with a Spark type name or an Arrow type')
        kind = self._type(f"the state {name!r}", declared.kind)
        if declared.shape == "list":
            kind = pa.list_(kind)
        elif declared.shape == "map":
            kind = pa.map_(self._type(f"the keys of {name!r}", declared.key), kind)
        ttl_us = None if declared.ttl is None else round(parse_duration(declared.ttl, f"ttl of {name}") * 1e6)
        return StateField(name, kind, declared.shape, ttl_us)

    def _map_key(self, name: str, declared: object) -> pa.DataType:
        advice = f'declare {name} = pen.broadcast_map("string", "double"), a key type and a value type'
        if not isinstance(declared, BroadcastMap):
            self.refuse(f"the state {name!r} is declared with {declared!r:.100}", advice)
        key = self._type(f"the keys of {name!r}", declared.key)
        if (why := why_unsupported(key)) is not None or pt.is_floating(key):
            self.refuse(f"the keys of {name!r} have type {key}: {why or 'floats are not exact'}", advice)
        return key

    def _type(self, what: str, declared: object) -> pa.DataType:
        if isinstance(declared, pa.DataType):
            return declared
        if not isinstance(declared, str):
            self.refuse(f"{what} is declared with {declared!r:.100}", "use a Spark type name or an Arrow type")
        return self._resolved(what, declared)

    def _resolved(self, what: str, declared: object) -> pa.DataType:
        try:
            return self.resolve(declared)
        except Exception as error:
            first_line = (error.seen if isinstance(error, PipelineError) else str(error)).partition("\n")[0]
            raise PipelineError(
                f"{self.operator}: {what} is declared as {declared!r:.100}: {first_line}",
                cause="this is not a type in Spark's DDL",
                next_step='use names such as "bigint", "double", "string", "timestamp", "decimal(10,2)", '
                '"array<bigint>"',
                operator=self.operator,
            ) from error


def _takes(function: Callable[..., object], arguments: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    return True
