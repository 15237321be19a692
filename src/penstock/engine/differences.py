"""How the results of two programs differ: the last row of each key, of the one and of the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError

EXAMPLES = 3
_NEW, _OLD = "/new", "/old"
"""Names of columns that no stream can have."""


@dataclass(frozen=True, slots=True)
class Differences:
    """By key, in the rows that both programs wrote to one sink; only the last row of each key counts."""

    sink: str
    key: tuple[str, ...]
    same: int
    changed: int
    only_new: int
    only_old: int
    columns: dict[str, int] = field(default_factory=dict)
    """By column, in how many keys it differs."""
    columns_added: tuple[str, ...] = ()
    columns_removed: tuple[str, ...] = ()
    examples: tuple[dict[str, Any], ...] = ()
    """Some keys that differ: the key, the old row and the new one."""

    @property
    def any(self) -> bool:
        return bool(self.changed or self.only_new or self.only_old or self.columns_added or self.columns_removed)


def compare(sink: str, key: Sequence[str], new: Iterable[pa.Table], old: Iterable[pa.Table]) -> Differences:
    """Compares what two programs wrote, each in the order of its commits.

    Raises: `ConfigError` for a key that is not a column of both.
    """
    now, before = _joined(new), _joined(old)
    if now is None and before is None:
        return Differences(sink, tuple(key), 0, 0, 0, 0)
    now = before.slice(0, 0) if now is None and before is not None else now
    before = now.slice(0, 0) if before is None and now is not None else before
    assert now is not None
    assert before is not None
    _require_key(sink, key, now, before)
    pairs = _pairs(key, now, before)
    both = pairs.filter(pc.and_(pc.is_valid(pairs[_NEW]), pc.is_valid(pairs[_OLD])))
    left, right = now.take(both[_NEW]), before.take(both[_OLD])
    shared = [name for name in now.schema.names if name in before.schema.names and name not in key]
    masks = {name: _differs(left[name], right[name]) for name in shared}
    any_differs = _any(list(masks.values()), both.num_rows)
    changed = int(pc.sum(any_differs).as_py() or 0)
    places = pc.indices_nonzero(any_differs).slice(0, EXAMPLES)
    return Differences(
        sink=sink,
        key=tuple(key),
        same=both.num_rows - changed,
        changed=changed,
        only_new=pairs[_OLD].null_count,
        only_old=pairs[_NEW].null_count,
        columns={name: count for name, mask in masks.items() if (count := int(pc.sum(mask).as_py() or 0))},
        columns_added=tuple(name for name in now.schema.names if name not in before.schema.names),
        columns_removed=tuple(name for name in before.schema.names if name not in now.schema.names),
        examples=tuple(
            {"old": was, "new": now_is}
            for was, now_is in zip(right.take(places).to_pylist(), left.take(places).to_pylist(), strict=True)
        ),
    )


def _joined(tables: Iterable[pa.Table]) -> pa.Table | None:
    found = list(tables)
    return pa.concat_tables(found).combine_chunks() if found else None


def _require_key(sink: str, key: Sequence[str], new: pa.Table, old: pa.Table) -> None:
    for name in key:
        if name not in new.schema.names or name not in old.schema.names:
            both = [column for column in new.schema.names if column in old.schema.names]
            raise ConfigError(
                f"the key of sink {sink} names {name!r}",
                cause="it is not a column of both programs' output",
                next_step=f"columns of both are {', '.join(both)}",
                option="keys",
            )


def _pairs(key: Sequence[str], new: pa.Table, old: pa.Table) -> pa.Table:
    """For each key, the number of its last row on either side; null where it has none. Null is a key like any other."""

    def numbered(table: pa.Table, mine: str, other: str) -> pa.Table:
        keys = table.select(key).cast(pa.schema([old.schema.field(name) for name in key]))
        numbers = pa.array(range(table.num_rows), pa.int64())
        return keys.append_column(mine, numbers).append_column(other, pa.nulls(table.num_rows, pa.int64()))

    columns = [*key, _NEW, _OLD]
    rows = pa.concat_tables([numbered(new, _NEW, _OLD).select(columns), numbered(old, _OLD, _NEW).select(columns)])
    grouped = rows.group_by(list(key)).aggregate([(_NEW, "max"), (_OLD, "max")])
    return grouped.rename_columns({f"{_NEW}_max": _NEW, f"{_OLD}_max": _OLD})


def _differs(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.Array:
    if left.type != right.type or pa.types.is_nested(left.type):
        return pa.array([a != b for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)], pa.bool_())
    left, right = left.combine_chunks(), right.combine_chunks()
    unequal = _true(pc.not_equal(left, right))
    if pa.types.is_floating(left.type):
        unequal = pc.and_not(unequal, pc.and_(_true(pc.is_nan(left)), _true(pc.is_nan(right))))
    return pc.or_(unequal, pc.xor(pc.is_null(left), pc.is_null(right)))


def _true(mask: pa.Array) -> pa.Array:
    """Null counts as false."""
    return pc.coalesce(mask, pa.scalar(value=False))


def _any(masks: list[pa.Array], rows: int) -> pa.Array:
    found = pa.array([False] * rows, pa.bool_())
    for mask in masks:
        found = pc.or_(found, mask)
    return found
