"""Which columns of a table of state are its key, told by the shape that a checkpoint keeps: no pipeline is needed.

A manifest names the columns of a table in one row, keys first. How many of them are the key follows from the kind of
operator and from the keys of the edges into its stage; FORMAT.md section 4 has the same table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import ConfigError, CorruptFile
from penstock.observe.tables.types import schema_of
from penstock.protocol.manifest import Manifest, OperatorShape, StateFile
from penstock.records import MAIN_STATE, StateSchema
from penstock.store.arrowfile import ArrowFile
from penstock.store.base import Store

_TIMELINES = ("event_timers", "processing_timers")
_CODE = ("process", "connect")
_REGULAR = ("tumbling_window", "sliding_window")
_SESSION = "session_window"


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table of state of one checkpoint: its columns, its files, and where the user's key is."""

    operator: str
    part: str
    shape: OperatorShape
    schema: StateSchema
    key_begin: int
    """Where among the key columns the user's key begins."""
    key_count: int
    files: tuple[StateFile, ...]

    @property
    def family(self) -> str:
        return self.shape.kind.partition("/")[0]

    @property
    def user_keys(self) -> pa.Schema:
        return pa.schema(list(self.schema.keys)[self.key_begin : self.key_begin + self.key_count])

    @property
    def found_by_key(self) -> bool:
        """Whether rows stand where the hash of the user's key says, so that one is found without looking around."""
        return self.key_begin == 0 and self.key_count == len(self.schema.keys) and self.part != "progress"


def state_names(manifest: Manifest) -> list[tuple[str, str]]:
    """Operator and table of all state of a checkpoint."""
    return [(name, part) for name, shape in manifest.shape.operators.items() for part in shape.state]


def state_table(manifest: Manifest, store: Store, operator: str, part: str = MAIN_STATE) -> StoredTable:
    """Raises: `ConfigError` for a table that is not there, `CorruptFile`."""
    shape = manifest.shape.operators.get(operator)
    if shape is None or part not in shape.state:
        raise _no_such_table(manifest, operator, part)
    columns = shape.state[part]
    edges = [edge for edge in manifest.shape.edges.values() if edge.consumer == shape.stage and not edge.broadcast]
    keyed = max((len(edge.keys) for edge in edges), default=0)
    count, begin, own = _key(shape.kind, part, keyed, len(columns))
    if not 0 < count <= len(columns) or begin + own > count:
        raise CorruptFile(
            f"state {operator} {part!r} has {len(columns)} columns, its key has {count}",
            cause="the manifest was forged, or written by a newer Penstock",
            next_step="use a Penstock of the version that wrote it",
        )
    files = manifest.state.get(f"{operator}/{part}" if part else operator, ())
    plain = schema_of(columns, _newest_schema(store, files))
    schema = StateSchema(pa.schema(list(plain)[:count]), pa.schema(list(plain)[count:]), may_grow=True)
    return StoredTable(operator, part, shape, schema, begin, own, files)


def _key(kind: str, part: str, keyed: int, columns: int) -> tuple[int, int, int]:
    """How many columns are the key; where in it the user's begins, and how many columns that has."""
    family = kind.partition("/")[0]
    if part == MAIN_STATE:
        if family == "deduplicate":
            return columns - 1, 0, keyed
        return keyed + (family in _REGULAR), 0, keyed
    if family in _CODE and part in _TIMELINES:
        return keyed + 2, 2, keyed
    if part == "timers" and family in (*_CODE, _SESSION):
        return keyed + 1, 0, keyed
    if family == "join":
        return (keyed + 3, 3, keyed) if part.endswith("_deadlines") else (keyed + 2, 0, keyed)
    # A broadcast map, and the progress of windows: one column, which is no key of the user's data in the latter.
    return 1, 0, 1


def _newest_schema(store: Store, files: Iterable[StateFile]) -> pa.Schema | None:
    newest = next(iter(reversed(tuple(files))), None)
    if newest is None:
        return None
    with ArrowFile(store, newest.path, newest.checksum, mapped=True) as file:
        return file.schema


def _no_such_table(manifest: Manifest, operator: str, part: str) -> ConfigError:
    names = [f"{name} ({table})" if table else name for name, table in state_names(manifest)]
    shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
    return ConfigError(
        f"there is no state {operator!r}" + (f" with a table {part!r}" if part else ""),
        cause="a typo, or the operator has no state or no `name=`",
        next_step=f"checkpoint {manifest.checkpoint} has state of: {shown or 'no operator'}",
    )
