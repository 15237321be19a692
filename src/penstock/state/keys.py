"""Keys as columns: one canonical form, and an equality in which null equals null and NaN equals NaN.

Hashes never identify a key, so this module compares the keys of every hit of a lookup and every pair of a merge. Floats
are compared by their bits; that is right only for canonical keys (one zero, one NaN), which `normalise_keys` makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Rows: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]


def normalise_keys(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """The batch with -0.0 as 0.0 and every NaN as the same NaN in `columns`. Other types need no change.

    >>> batch = pa.RecordBatch.from_pydict({"k": [-0.0, 1.5, None]})
    >>> normalise_keys(batch, ["k"]).to_pydict()
    {'k': [0.0, 1.5, None]}
    """
    for name in columns:
        position = batch.schema.get_field_index(name)
        assert position >= 0, f"no single column {name!r} in {batch.schema.names}"
        field = batch.schema.field(position)
        if pt.is_floating(field.type):
            batch = batch.set_column(position, field, normalise(batch.column(position)))
    return batch


def normalise(array: pa.Array) -> pa.Array:
    """A key column in canonical form; the array itself where nothing has to change."""
    if not pt.is_floating(array.type):
        return array
    holes = array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None
    values = (array.fill_null(0.0) if array.null_count else array).to_numpy()
    canonical = values + values.dtype.type(0.0)  # -0.0 + 0.0 is 0.0
    canonical[np.isnan(canonical)] = np.nan
    return pa.array(canonical, array.type, mask=holes, from_pandas=False)


class KeyColumn:
    """One key column, ready to be compared row by row."""

    __slots__ = ("array", "words")

    def __init__(self, array: pa.Array) -> None:
        self.array = _comparable(array)
        # Fixed-width keys without nulls are compared as plain numbers, three times as fast as through Arrow.
        plain = pt.is_integer(self.array.type) and self.array.null_count == 0
        self.words: npt.NDArray[np.generic] | None = self.array.to_numpy() if plain else None


Keys: TypeAlias = tuple[KeyColumn, ...]


def equal_keys(left: Keys, left_rows: Rows, right: Keys, right_rows: Rows) -> Flags:
    """For each pair of rows, whether all key columns are equal; a key without columns equals every other."""
    assert len(left) == len(right)
    assert len(left_rows) == len(right_rows)
    equal = np.ones(len(left_rows), np.bool_)
    for a, b in zip(left, right, strict=True):
        if a.words is not None and b.words is not None:
            equal &= a.words[left_rows] == b.words[right_rows]
        else:
            equal &= _equal(a.array.take(pa.array(left_rows)), b.array.take(pa.array(right_rows)))
    return equal


def equal_neighbours(keys: Keys, rows: Rows) -> Flags:
    """For each of `rows` but the first, whether its key equals that of the one before."""
    equal = np.ones(len(rows) - 1, np.bool_)
    for column in keys:
        if column.words is not None:
            words = column.words[rows]
            equal &= words[1:] == words[:-1]
        else:
            array = column.array.take(pa.array(rows))
            equal &= _equal(array.slice(1), array.slice(0, len(rows) - 1))
    return equal


def _equal(a: pa.Array, b: pa.Array) -> Flags:
    same = pc.equal(a, b)
    if same.null_count:
        same = pc.or_(same.fill_null(False), pc.and_(a.is_null(), b.is_null()))
    equal: Flags = same.to_numpy(zero_copy_only=False)
    return equal


def _comparable(array: pa.Array) -> pa.Array:
    """The same bits as integers where the type is fixed-width and equality is equality of bits."""
    kind = array.type
    if pt.is_floating(kind) or pt.is_timestamp(kind) or pt.is_date(kind):
        return array.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return array
