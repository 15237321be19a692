"""How state rows lie in a file, and which orders a range of key groups has.

Columns: `__order` (uint64), the key columns, the value columns, and `__deleted` (bool) where the file may hold
tombstones. Columns are found by position, so a key and a value may share a name, and a value may be called as ours are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.errors import CheckpointMismatch
from penstock.protocol.columns import is_wider
from penstock.protocol.keygroups import KeyGroupRange, order_bits, order_bound
from penstock.records import StateSchema
from penstock.state.keys import Rows
from penstock.state.runs import Orders, SortedRun

STATE_KIND = "state"
ORDER_FIELD = pa.field("__order", pa.uint64(), nullable=False)
DELETED_FIELD = pa.field("__deleted", pa.bool_(), nullable=False)

FIRST_ORDER, LAST_ORDER = np.uint64(0), np.uint64(2**64 - 1)


def file_schema(schema: StateSchema, *, with_deleted: bool) -> pa.Schema:
    return pa.schema([ORDER_FIELD, *schema.keys, *schema.values, *([DELETED_FIELD] if with_deleted else [])])


class Places(NamedTuple):
    """Where in a file the columns of an operator's state are."""

    columns: tuple[int | None, ...]
    """The position of each key and value; None for a column that was added since."""
    with_deleted: bool
    """Whether tombstones are in the last column."""


def places_in(path: str, found: pa.Schema, schema: StateSchema) -> Places:
    """Raises: `CheckpointMismatch` for a file with other columns."""
    with_deleted = _ends_with_deleted(found, schema)
    wanted = file_schema(schema, with_deleted=False)
    there = _plain(found)[: len(found) - with_deleted]
    own = _plain([ORDER_FIELD, *schema.keys])
    if there == _plain(wanted):
        return Places(tuple(range(1, len(wanted))), with_deleted)
    if there[: len(own)] == own:
        places = _by_name(there[len(own) :], _plain(schema.values), len(own), may_grow=schema.may_grow)
        if places is not None:
            return Places((*range(1, len(own)), *places), with_deleted)
    raise CheckpointMismatch(
        f"state file {path} has the columns {_columns(found)}, the operator's state has {_columns(wanted)}",
        cause="the operator's key or state columns changed since the checkpoint was taken",
        next_step="restore with the pipeline that wrote the checkpoint, or give the changed operator a new name",
        path=path,
    )


def _ends_with_deleted(found: pa.Schema, schema: StateSchema) -> bool:
    """Whether the last column has tombstones. A value may have the same name and type; then tombstones are one more
    column."""
    if not len(found) or not found.field(len(found) - 1).equals(DELETED_FIELD):
        return False
    return schema.may_grow or len(found) > len(file_schema(schema, with_deleted=False))


def _plain(fields: Iterable[pa.Field]) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in fields]


def _by_name(
    found: Sequence[tuple[str, pa.DataType]],
    wanted: Sequence[tuple[str, pa.DataType]],
    first: int,
    *,
    may_grow: bool,
) -> list[int | None] | None:
    """For each value that is wanted its place in the file; None if one is missing that may not be, or does not fit.

    The pipeline was compared with the checkpoint before: what a file has more was forgotten on purpose.
    """
    there = {name: (place, kind) for place, (name, kind) in enumerate(found, first)}
    if len(there) < len(found):
        return None
    places: list[int | None] = []
    for name, kind in wanted:
        place, stored = there.get(name, (None, kind))
        if (place is None and not may_grow) or (stored != kind and not is_wider(str(stored), str(kind))):
            return None
        places.append(place)
    return places


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def to_batch(run: SortedRun, schema: pa.Schema) -> pa.RecordBatch:
    """A run as it is written; `schema` says whether tombstones are."""
    arrays = [pa.array(run.orders), *run.columns]
    if len(schema) > len(arrays):
        deleted = run.deleted if run.deleted is not None else np.zeros(run.rows, np.bool_)
        arrays.append(pa.array(deleted))
    else:
        assert run.deleted is None, "tombstones would be lost"
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def from_batch(batch: pa.RecordBatch, schema: StateSchema, places: Places) -> SortedRun:
    """A run as it was written, without copying where the batch is mapped; `places` as `places_in` has them."""
    kinds = [field.type for field in (*schema.keys, *schema.values)]
    columns = [
        pa.nulls(batch.num_rows, kind) if place is None else _cast(batch.column(place), kind)
        for place, kind in zip(places.columns, kinds, strict=True)
    ]
    deleted = None
    if places.with_deleted:
        deleted = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False)
    return SortedRun(batch.column(0).to_numpy(), columns, len(schema.keys), deleted)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A value that was stored with a narrower type."""
    return column if column.type == kind else column.cast(kind)


def order_span(groups: KeyGroupRange, max_parallelism: int) -> tuple[np.uint64, np.uint64]:
    """The first and the last order that key groups `groups` can have."""
    assert len(groups) > 0
    first, beyond = order_bound(groups.lo, max_parallelism), order_bound(groups.hi, max_parallelism)
    assert first is not None
    return first, LAST_ORDER if beyond is None else beyond - np.uint64(1)


def groups_of_orders(orders: Orders, max_parallelism: int) -> Rows:
    """The key group of each order: its high bits."""
    bits = order_bits(max_parallelism)
    if bits == 0:
        return np.zeros(len(orders), np.int64)
    return (orders >> np.uint64(64 - bits)).view(np.int64)
