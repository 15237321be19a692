"""Maps that are the same in all subtasks: only broadcast rows change them, and every subtask gets these.

A small map is read into memory at its first use. Of a large map, entries are read one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.operators.failures.failing import BadOutput
from penstock.operators.values.convert import arrow_values, python_values
from penstock.operators.values.copies import copied, depth_of
from penstock.records import StateSchema
from penstock.state.keyed import KeyedState

_READ_WHOLE_ROWS_MAX = 1 << 16
"""Reading that many takes about as long as a hundred single lookups."""
_GONE = object()


def map_schema(key: pa.DataType, value: pa.DataType) -> StateSchema:
    return StateSchema(pa.schema([("key", key)]), pa.schema([("value", value)]), may_grow=True)


class SharedMap(Mapping[Any, Any]):
    """A broadcast map as rows of other inputs see it: it cannot be changed, and lists and dicts in it are copies."""

    def __init__(self, name: str, schema: StateSchema, state: KeyedState) -> None:
        self._name, self._schema, self._state = name, schema, state
        self._depth = depth_of(schema.values.types[0])
        self._known: dict[Any, Any] = {}
        self._complete = False
        self.failure: Exception | None = None
        """Why reading or changing its state failed. That is no fault of user code, which may have caught the
        exception."""

    def __getitem__(self, key: Any) -> Any:
        if key not in self._known:
            self._look_up(key)
        found = self._known.get(key, _GONE)
        if found is _GONE:
            raise KeyError(key)
        return copied(found, self._depth) if self._depth else found

    def __iter__(self) -> Iterator[Any]:
        self._read_whole()
        return (key for key, value in self._known.items() if value is not _GONE)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{self._name}: {dict(self)!r:.200}"

    def changed(self, changes: Mapping[Any, Any]) -> None:
        """Takes over what broadcast rows set and deleted. Raises: `BadOutput`; nothing has changed then."""
        if not changes:
            return
        keys = pa.RecordBatch.from_arrays([self._column("keys", list(changes))], schema=self._schema.keys)
        values = [None if value is _GONE else value for value in changes.values()]
        column = pa.RecordBatch.from_arrays([self._column("values", values)], schema=self._schema.values)
        deleted = np.fromiter((value is _GONE for value in changes.values()), np.bool_, len(changes))
        with self._own_failures():
            self._state.update(hash_columns(keys.columns), keys, column, deleted)
        # In the form in which they will be read from the state.
        stored = zip(python_values(keys.column(0)), python_values(column.column(0)), deleted, strict=True)
        self._known.update((key, _GONE if gone else value) for key, value, gone in stored)

    def _column(self, part: str, items: list[Any]) -> pa.Array:
        kind = (self._schema.keys if part == "keys" else self._schema.values).types[0]
        try:
            return arrow_values(items, kind)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            seen = f"the {part} of {self._name!r} are declared as {kind}: {error}"
            raise BadOutput(seen, "use values of the declared type, or declare another one") from error

    def _look_up(self, key: Any) -> None:
        if self._complete:
            return
        if self._state.rows_at_most <= _READ_WHOLE_ROWS_MAX:
            self._read_whole()
            return
        keys = pa.RecordBatch.from_arrays([self._column("keys", [key])], schema=self._schema.keys)
        with self._own_failures():
            values, found = self._state.lookup(hash_columns(keys.columns), keys)
        self._known[key] = python_values(values.column(0))[0] if found[0] else _GONE

    def _read_whole(self) -> None:
        if self._complete:
            return
        with self._own_failures():
            for batch in self._state.scan():
                self._known.update(zip(*map(python_values, batch.columns), strict=True))
        self._complete = True

    @contextmanager
    def _own_failures(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


class ChangingMap(MutableMapping[Any, Any]):
    """A broadcast map as broadcast rows see it. Changes count once the whole slice has succeeded."""

    def __init__(self, shared: SharedMap) -> None:
        self._shared = shared
        self._set: dict[Any, Any] = {}
        self._lent: dict[Any, Any] = {}
        """Entries that were read; user code may change lists and dicts in them in place."""

    def __getitem__(self, key: Any) -> Any:
        if key not in self._set:
            if key not in self._lent:
                self._lent[key] = self._shared[key]
            return self._lent[key]
        found = self._set[key]
        if found is _GONE:
            raise KeyError(key)
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._set[key] = value

    def __delitem__(self, key: Any) -> None:
        self[key]  # raises if there is none
        self._set[key] = _GONE

    def __iter__(self) -> Iterator[Any]:
        yield from (key for key in list(self._shared) if key not in self._set)
        yield from (key for key, value in list(self._set.items()) if value is not _GONE)

    def changes(self) -> dict[Any, Any]:
        """Entries to store, including those that were changed in place."""
        return {**{key: value for key, value in self._lent.items() if value != self._shared[key]}, **self._set}

    def __len__(self) -> int:
        return sum(1 for _ in self)


class BroadcastView:
    """All broadcast maps of an operator as attributes, for one slice of broadcast rows."""

    def __init__(self, maps: Mapping[str, SharedMap]) -> None:
        self.__dict__["_maps"] = {name: ChangingMap(shared) for name, shared in maps.items()}

    def __getattr__(self, name: str) -> ChangingMap:
        try:
            return self.__dict__["_maps"][name]
        except KeyError:
            raise AttributeError(f"there is no broadcast map {name!r}; declare {name} = pen.broadcast_map(…)") from None

    def __setattr__(self, name: str, value: object) -> None:
        getattr(self, name)
        raise AttributeError(f"{name!r} cannot be replaced: set its entries, as in broadcast.{name}[key] = value")

    def changes(self) -> dict[str, dict[Any, Any]]:
        return {name: changing.changes() for name, changing in self._maps.items()}
