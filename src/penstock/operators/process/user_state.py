"""A key's state as user code sees it, attributes of one object, and as it is stored: one row of columns per key.

A value with a time to live has a hidden column: when it expires, in processing time. Another hidden column says when
the whole row expires, so that merging files can drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.display import shown, text_of
from penstock.operators.failures.failing import BadOutput
from penstock.operators.values.convert import arrow_values, python_values
from penstock.operators.values.lossless import NO_LISTS
from penstock.state.keys import Flags, KeyColumn, equal_keys

ROW_EXPIRES = "__expires"
_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError, AttributeError)
_WRITTEN = "__written__"
_EMPTY: dict[str, Callable[[], object]] = {"value": lambda: None, "list": list, "map": dict}


@dataclass(frozen=True, slots=True)
class StateField:
    """One declared piece of state."""

    name: str
    kind: pa.DataType
    shape: Literal["value", "list", "map"] = "value"
    ttl_us: int | None = None

    @property
    def expires(self) -> str:
        return f"{ROW_EXPIRES}_{self.name}"


class StateView:
    """A key's state as attributes; subclasses have one slot per declared piece of state."""

    __slots__ = ()
    _empty: ClassVar[Mapping[str, Callable[[], object]]] = MappingProxyType({})
    """The value of each piece of state that was never set."""

    def __getattr__(self, name: str) -> Any:
        raise self._unknown(name)

    def __setattr__(self, name: str, value: object) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise self._unknown(name) from None

    def __delattr__(self, name: str) -> None:
        """Forgets one piece of state."""
        if name not in self._empty:
            raise self._unknown(name)
        setattr(self, name, self._empty[name]())

    def _unknown(self, name: str) -> AttributeError:
        declared = ", ".join(self._empty) or "nothing"
        if hasattr(type(self), name):
            return AttributeError(f"{name!r} cannot be changed here: it belongs to all keys")
        return AttributeError(
            f"there is no state {name!r}; declared is {declared}. "
            f"Declare it in the class: {name} = pen.value_state(type)"
        )


class Changes(NamedTuple):
    """Rows of state after user code: which changed, and which of these are empty now."""

    columns: list[pa.Array]
    changed: Flags
    empty: Flags


class Unfit(Exception):
    """A piece of state that does not fit its type, and the number of its key."""

    def __init__(self, key: int, error: BadOutput) -> None:
        super().__init__(str(error))
        self.key, self.error = key, error


class StateLayout:
    """Between stored rows and views."""

    def __init__(self, fields: Sequence[StateField], shared: Mapping[str, object]) -> None:
        """`shared` are further, read-only attributes of every key's state."""
        self._fields = tuple(fields)
        self._mortal = [field for field in fields if field.ttl_us is not None]
        hidden = (_WRITTEN,) if self._mortal else ()
        names = tuple(field.name for field in fields)
        empty = {"_empty": {field.name: _EMPTY[field.shape] for field in fields}}
        raw: type[StateView] = type("State", (StateView,), {"__slots__": (*names, *hidden), **empty, **shared})
        self._put = {name: getattr(raw, name).__set__ for name in (*names, *hidden)}  # 2.5 times as fast as setattr
        # Setting a value with a time to live counts as writing it, also if it stays the same.
        watched = {field.name: _watched(raw, field.name) for field in self._mortal}
        self.view: type[StateView] = type("State", (raw,), {"__slots__": (), **watched}) if watched else raw

    def views(self, stored: pa.RecordBatch, now: int) -> list[Any]:
        """One view per stored row, without expired values."""
        views = [self.view() for _ in range(stored.num_rows)]
        for field in self._fields:
            put = self._put[field.name]
            for view, item in zip(views, _loaded(alive(stored, field, now), field), strict=True):
                put(view, item)
        if self._mortal:
            for view in views:
                self._put[_WRITTEN](view, set())
        return views

    def changes(self, stored: pa.RecordBatch, views: Sequence[Any], now: int) -> Changes:
        """Raises: `Unfit`."""
        count = len(views)
        columns, written = [], []
        changed = np.zeros(count, np.bool_)
        for field in self._fields:
            column = _stored(views, field)
            touched = _differs(alive(stored, field, now), column)
            if field.ttl_us is not None:
                touched |= np.fromiter((field.name in getattr(view, _WRITTEN) for view in views), np.bool_, count)
            changed |= touched
            columns.append(column)
            written.append(touched)
        rows, empty = with_expiry(self._fields, stored, columns, written, now)
        return Changes(rows, changed, empty)

    def first_misfit(self, view: Any) -> BadOutput | None:
        """The first piece of one key's state that does not fit."""
        return next((error for field in self._fields if (error := _misfit(getattr(view, field.name), field))), None)


def alive(stored: pa.RecordBatch, field: StateField, now: int) -> pa.Array:
    """A column of stored rows, null where it has expired."""
    column = stored.column(field.name)
    if field.ttl_us is None:
        return column
    moments, known = _moments(stored.column(field.expires))
    expired = known & (moments <= now)
    return column.take(pa.array(np.arange(len(column)), mask=expired)) if expired.any() else column


def with_expiry(
    fields: Sequence[StateField],
    stored: pa.RecordBatch,
    columns: Sequence[pa.Array],
    written: Sequence[Flags],
    now: int,
) -> tuple[list[pa.Array], Flags]:
    """Columns of state followed by the hidden ones, and which rows are empty. Writing a value restarts its time to
    live."""
    empty, immortal = np.ones(stored.num_rows, np.bool_), np.zeros(stored.num_rows, np.bool_)
    latest = np.zeros(stored.num_rows, np.int64)
    hidden = []
    for field, column, anew in zip(fields, columns, written, strict=True):
        there = ~column.is_null().to_numpy(zero_copy_only=False)
        empty &= ~there
        if field.ttl_us is None:
            immortal |= there
            continue
        moments, known = _moments(stored.column(field.expires))
        # A value that was stored before it had a time to live gets one when it is written again.
        lasting = there & ~anew & ~known
        immortal |= lasting
        expires = np.where(anew, now + field.ttl_us, moments)
        latest = np.maximum(latest, np.where(there, expires, 0))
        hidden.append(pa.array(expires, mask=~there | lasting))
    if hidden:
        hidden.append(pa.array(latest, mask=immortal | empty))
    return [*columns, *hidden], empty


def state_schema(fields: Sequence[StateField]) -> pa.Schema:
    """The columns of a stored row."""
    mortal = [field for field in fields if field.ttl_us is not None]
    return pa.schema(
        [
            *((field.name, field.kind) for field in fields),
            *((field.expires, pa.int64()) for field in mortal),
            *([(ROW_EXPIRES, pa.int64())] if mortal else []),
        ]
    )


def _watched(raw: type[StateView], name: str) -> property:
    slot, written = getattr(raw, name), getattr(raw, _WRITTEN)

    def put(view: StateView, value: object) -> None:
        slot.__set__(view, value)
        written.__get__(view).add(name)

    return property(slot.__get__, put)


def _moments(column: pa.Array) -> tuple[npt.NDArray[np.int64], Flags]:
    """Moments of a column, and which rows have one."""
    return column.fill_null(0).to_numpy(), column.is_valid().to_numpy(zero_copy_only=False)


def _loaded(column: pa.Array, field: StateField) -> list[Any]:
    items = python_values(column)
    match field.shape:
        case "value":
            return items
        case "list":
            return [[] if item is None else item for item in items]
        case "map":
            return [{} if item is None else item for item in items]


def _plain(field: StateField, item: Any) -> Any:
    """The form in which a value is stored; an empty list or map is null."""
    match field.shape:
        case "value":
            return item
        case "list":
            if type(item) is not list and isinstance(item, NO_LISTS):
                raise TypeError(f"got a {type(item).__name__} for a list")
            return list(item) if item else None
        case "map":
            return list(item.items()) if item else None


def _stored(views: Sequence[Any], field: StateField) -> pa.Array:
    items = list(map(attrgetter(field.name), views))
    try:
        if field.shape != "value":
            items = list(map(partial(_plain, field), items))
        return arrow_values(items, field.kind)
    except _MISFITS:
        for number, view in enumerate(views):
            if (error := _misfit(getattr(view, field.name), field)) is not None:
                raise Unfit(number, error) from error
        raise


def _misfit(item: object, field: StateField) -> BadOutput | None:
    try:
        arrow_values([_plain(field, item)], field.kind)
    except _MISFITS as error:
        return BadOutput(
            f"the state {field.name!r} is declared as {field.kind} and was set to {shown(item)}: {text_of(error)}",
            "set values of the declared type, or declare another one",
        )
    return None


def _differs(old: pa.Array, new: pa.Array) -> Flags:
    if pt.is_nested(new.type):
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.fromiter((a != b for a, b in pairs), np.bool_, len(new))
    rows = np.arange(len(new))
    return ~equal_keys((KeyColumn(old),), rows, (KeyColumn(new),), rows)
