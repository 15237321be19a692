"""Smallest and largest values of the columns of a file, so that readers skip files.

A bound that could be wrong is worse than none: a column with NaN has none (engines differ in where NaN is ordered), nor
have columns of nested types, booleans and binaries, or of times that Python cannot hold. A bound of zero covers both
zeros: some engines order -0.0 before 0.0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

COLUMNS_MAX = 32
"""Only so many columns get statistics, as Delta Lake does by default: a commit carries them for every file."""


def has_bounds(kind: pa.DataType) -> bool:
    """Whether smallest and largest values of a type mean the same to every engine."""
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


@dataclass(slots=True)
class ColumnStats:
    """One column of one file; `low` and `high` are None where there is no bound."""

    nulls: int = 0
    low: Any = None
    high: Any = None
    bounded: bool = True

    def add(self, column: pa.ChunkedArray) -> None:
        self.nulls += column.null_count
        if not self.bounded or not has_bounds(column.type):
            self.bounded = False
            return
        if _holds_nan(column):
            self.bounded, self.low, self.high = False, None, None
            return
        found = pc.min_max(column)
        try:
            low, high = found["min"].as_py(), found["max"].as_py()
        except UnicodeDecodeError:
            raise
        except (OverflowError, ValueError):  # a date or time behind the year 9999
            self.bounded, self.low, self.high = False, None, None
            return
        if low is not None:
            low, high = _both_zeros(low, high)
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


@dataclass(slots=True)
class ParquetStats:
    """All columns of one file."""

    rows: int = 0
    columns: dict[str, ColumnStats] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        self.rows += rows.num_rows
        for index, name in enumerate(rows.schema.names[:COLUMNS_MAX]):
            self.columns.setdefault(name, ColumnStats()).add(rows.column(index))


def _both_zeros(low: Any, high: Any) -> tuple[Any, Any]:
    low = -0.0 if isinstance(low, float) and low == 0 else low
    high = math.copysign(0.0, 1) if isinstance(high, float) and high == 0 else high
    return low, high


def nan_columns(rows: pa.Table) -> frozenset[str]:
    """Columns of which a file's own statistics would say too little: Arrow leaves NaN out of them."""
    return frozenset(name for name in rows.column_names if any(map(_holds_nan, rows.column(name).chunks)))


def _holds_nan(column: pa.Array | pa.ChunkedArray) -> bool:
    kind = column.type
    if pa.types.is_floating(kind):
        return bool(pc.any(pc.is_nan(column)).as_py())
    if pa.types.is_struct(kind):
        return any(map(_holds_nan, column.flatten()))
    if pa.types.is_map(kind):
        return _holds_nan(column.keys) or _holds_nan(column.items)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in lists) and _holds_nan(column.flatten())


def footer_statistics(columns: pa.Schema, without: frozenset[str]) -> bool | list[str]:
    """What `pyarrow.parquet` is told: which columns get statistics in the file's footer. All of them, if it can be.

    A column of a nested type is named by its leaves, so it gets none where another one must not have any.
    """
    if not without:
        return True
    return [field.name for field in columns if field.name not in without and not pa.types.is_nested(field.type)]
