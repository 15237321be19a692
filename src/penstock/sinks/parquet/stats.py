"""Smallest and largest values of the columns of a file, so that readers skip files.

A bound that could be wrong is worse than none: a column with NaN has none (engines differ in where NaN is ordered), nor
have columns of nested types, booleans and binaries.
"""

from __future__ import annotations

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

    def add(self, column: pa.Array) -> None:
        self.nulls += column.null_count
        if not self.bounded or not has_bounds(column.type):
            self.bounded = False
            return
        if pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            self.bounded, self.low, self.high = False, None, None
            return
        found = pc.min_max(column)
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is not None:
            self.low = low if self.low is None else min(self.low, low)
            self.high = high if self.high is None else max(self.high, high)


@dataclass(slots=True)
class ParquetStats:
    """All columns of one file."""

    rows: int = 0
    columns: dict[str, ColumnStats] = field(default_factory=dict)

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        for index, name in enumerate(rows.schema.names[:COLUMNS_MAX]):
            self.columns.setdefault(name, ColumnStats()).add(rows.column(index))
