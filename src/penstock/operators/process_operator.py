"""Runs user code per key in a subtask: grouping, state and output in bulk, one Python call per key and slice.

A slice is all or nothing: output and state leave only after every key of the slice went through.
"""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import OperatorFailed
from penstock.operators.base import MAIN_STATE, OperatorContext, Records
from penstock.operators.convert import arrow_values, batch_of_rows, check_row, first_misfit, python_rows, python_values
from penstock.operators.failing import BadOutput, operator_failed, record_of
from penstock.operators.grouping import group_rows
from penstock.state.keys import Flags, KeyColumn, equal_keys, normalise

if TYPE_CHECKING:
    from penstock.operators.process import Process
    from penstock.state.keyed import KeyedState

_MISFITS = (pa.ArrowException, OverflowError, TypeError, ValueError)


class StateView:
    """A key's state as attributes; subclasses have one slot per declared value."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        raise self._unknown(name)

    def __setattr__(self, name: str, value: object) -> None:
        try:
            object.__setattr__(self, name, value)
        except AttributeError:
            raise self._unknown(name) from None

    def _unknown(self, name: str) -> AttributeError:
        declared = ", ".join(self.__slots__) or "nothing"
        if hasattr(type(self), name):
            return AttributeError(f"{name!r} cannot be changed here: it belongs to all keys")
        return AttributeError(
            f"there is no state {name!r}; declared is {declared}. Declare it in the class: {name} = pen.value(type)"
        )


class Collector:
    """Gathers the rows that user code emits."""

    __slots__ = ("_names", "rows")

    def __init__(self, schema: pa.Schema) -> None:
        self._names = frozenset(schema.names)
        self.rows: list[Mapping[str, Any]] = []

    def emit(self, **columns: Any) -> None:
        if columns.keys() != self._names:
            check_row(columns, self._names)
        self.rows.append(columns)

    def emit_many(self, rows: Sequence[Mapping[str, Any]]) -> None:
        for row in rows:
            check_row(row, self._names)
            self.rows.append(row)


class Slice(NamedTuple):
    """A slice ordered by key: key number k has the rows ``starts[k]`` to ``starts[k + 1]`` of `batch`."""

    hashes: npt.NDArray[np.int64]
    keys: pa.RecordBatch
    batch: pa.RecordBatch
    starts: list[int]
    values: pa.RecordBatch


Call: TypeAlias = Callable[[dict[str, Any], list[dict[str, Any]], Any, Collector], None]
"""User code for one key: the key, its rows, its state, where its output goes."""


def opened(name: str, function: Any) -> Any:
    """An instance of the user's class of this attempt's own."""
    try:
        instance = function() if isinstance(function, type) else copy.copy(function)
        instance.open()
    except Exception as error:
        raise operator_failed(name, error, "") from error
    return instance


class ProcessOperator:
    """One subtask attempt's instance of a `KeyedProcess`."""

    def __init__(self, spec: Process, context: OperatorContext) -> None:
        self._keys = spec.keys
        self._code = KeyedCode(spec.name, spec.key_schema, spec.values, spec.output_schema, context)
        self._call: Call = opened(spec.name, spec.function).process

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        return self._code.run(self._call, records, self._keys)

    def finish(self) -> Iterator[pa.RecordBatch]:
        return iter(())


class KeyedCode:
    """Calls user code for the keys of a slice, with their state."""

    def __init__(
        self,
        name: str,
        keys: pa.Schema,
        values: pa.Schema,
        output: pa.Schema,
        context: OperatorContext,
        shared: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """`shared` are further attributes of every key's state, not to be changed."""
        self._name, self._keys, self._values, self._output = name, keys, values, output
        self._state = context.states.get(MAIN_STATE)
        self._view: type[StateView] = type("State", (StateView,), {"__slots__": tuple(values.names), **shared})

    def run(self, call: Call, records: Records, keys: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Takes a slice whose key columns are called `keys`."""
        if not records.rows:
            return iter(())
        part = self._load(records, keys)
        views = self._views(part.values)
        output = self._run(call, part, views)
        if self._state is not None:
            self._store(self._state, call, part, views)
        return iter((output,) if output.num_rows else ())

    def _load(self, records: Records, names: Sequence[str]) -> Slice:
        columns = [normalise(records.batch.column(name)) for name in names]
        keys = pa.RecordBatch.from_arrays(columns, schema=self._keys)
        grouping = group_rows(records.hashes, keys)
        hashes, keys = records.hashes[grouping.firsts], keys.take(pa.array(grouping.firsts))
        batch = records.batch.take(pa.array(grouping.order))
        if self._state is not None:
            values = self._state.lookup(hashes, keys).values
        else:
            values = keys.select([])
        return Slice(hashes, keys, batch, [*grouping.starts.tolist(), records.rows], values)

    def _views(self, values: pa.RecordBatch) -> list[StateView]:
        views = [self._view() for _ in range(values.num_rows)]
        for name, column in zip(values.schema.names, values.columns, strict=True):
            put = getattr(self._view, name).__set__  # the slot itself: no check of the name, 2.5 times as fast
            for view, item in zip(views, python_values(column), strict=True):
                put(view, item)
        return views

    def _run(self, call: Call, part: Slice, views: Sequence[StateView]) -> pa.RecordBatch:
        """Calls user code for every key; gives the output."""
        out, ends = Collector(self._output), []
        rows, starts = python_rows(part.batch), part.starts
        for number, (key, view) in enumerate(zip(python_rows(part.keys), views, strict=True)):
            try:
                call(key, rows[starts[number] : starts[number + 1]], view, out)
            except Exception as error:
                raise self._failed(call, part, number, error) from error
            ends.append(len(out.rows))
        try:
            return batch_of_rows(out.rows, self._output)
        except BadOutput as error:
            number = bisect_right(ends, first_misfit(out.rows, self._output))
            raise self._failed(call, part, number, error) from error

    def _store(self, state: KeyedState, call: Call, part: Slice, views: Sequence[StateView]) -> None:
        """Writes back what changed; a key without any value is deleted."""
        columns = [self._state_column(call, part, views, field) for field in self._values]
        changed = np.zeros(len(views), np.bool_)
        empty = np.ones(len(views), np.bool_)
        for old, new in zip(part.values.columns, columns, strict=True):
            changed |= _differs(old, new)
            empty &= new.is_null().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(changed)
        if len(rows):
            values = pa.RecordBatch.from_arrays(columns, schema=self._values)
            picked = pa.array(rows)
            state.update(part.hashes[rows], part.keys.take(picked), values.take(picked), empty[rows])

    def _state_column(self, call: Call, part: Slice, views: Sequence[StateView], field: pa.Field) -> pa.Array:
        items = list(map(attrgetter(field.name), views))
        try:
            return arrow_values(items, field.type)
        except _MISFITS as error:
            number = next(i for i, item in enumerate(items) if _misfit(item, field) is not None)
            raise self._failed(call, part, number, _misfit(items[number], field) or error) from error

    def _failed(self, call: Call, part: Slice, number: int, error: Exception) -> OperatorFailed:
        """The error for key `number`, with the row that made it fail: the last of its shortest failing beginning."""
        start, stop = part.starts[number], part.starts[number + 1]
        passing, failing = start, stop
        while failing - passing > 1:
            middle = (passing + failing) // 2
            again = self._attempt(call, part, number, middle)
            if again is not None and type(again) is type(error):
                failing = middle
            else:
                passing = middle
        note = f"row {failing - start} of {stop - start} of this key in this slice" if stop - start > 1 else ""
        return operator_failed(self._name, error, record_of(part.batch, failing - 1), note=note)

    def _attempt(self, call: Call, part: Slice, number: int, stop: int) -> Exception | None:
        """Runs user code once more, for one key and its rows before `stop`, without any effect; gives its error."""
        start = part.starts[number]
        (key,) = python_rows(part.keys.slice(number, 1))
        (view,) = self._views(part.values.slice(number, 1))
        out = Collector(self._output)
        try:
            call(key, python_rows(part.batch.slice(start, stop - start)), view, out)
            batch_of_rows(out.rows, self._output)
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return error
        misfits = (_misfit(getattr(view, field.name), field) for field in self._values)
        return next((misfit for misfit in misfits if misfit is not None), None)


def _misfit(item: object, field: pa.Field) -> BadOutput | None:
    try:
        arrow_values([item], field.type)
    except _MISFITS as error:
        return BadOutput(
            f"the state {field.name!r} is declared as {field.type} and was set to {item!r:.100}: {error}",
            "set values of the declared type, or declare another one",
        )
    return None


def _differs(old: pa.Array, new: pa.Array) -> Flags:
    if pt.is_nested(new.type):
        pairs = zip(old.to_pylist(), new.to_pylist(), strict=True)
        return np.fromiter((a != b for a, b in pairs), np.bool_, len(new))
    rows = np.arange(len(new))
    return ~equal_keys((KeyColumn(old),), rows, (KeyColumn(new),), rows)
