"""Rows of a batch by partition, and what a partition is called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa

Partition = tuple[Any, ...]
"""The values of the partition columns, in their order."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"


def groups_of(rows: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[Partition, pa.RecordBatch]]:
    """The rows of each partition, in their order."""
    if not columns or not rows.num_rows:
        if rows.num_rows:
            yield (), rows
        return
    codes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        encoded = rows.column(name).dictionary_encode(null_encoding="encode")
        numbers = encoded.indices.to_numpy(zero_copy_only=False)
        _, codes = np.unique(codes * len(encoded.dictionary) + numbers, return_inverse=True)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        members = rows if len(starts) == 1 else rows.take(pa.array(order[start:end]))
        yield tuple(members.column(name)[0].as_py() for name in columns), members


def as_text(value: Any) -> str | None:
    """A partition value as text, as Delta Lake and Hive write it.

    >>> [as_text(value) for value in (True, 7, date(2026, 1, 2), None)]
    ['true', '7', '2026-01-02', None]
    """
    match value:
        case None:
            return None
        case bool():
            return "true" if value else "false"
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.strftime("%Y-%m-%d %H:%M:%S.%f")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case _:
            return str(value)


def folder_of(columns: Sequence[str], values: Sequence[str | None]) -> str:
    """The folder of a partition.

    >>> folder_of(["day", "shop"], ["2026-01-02", "a/b"])
    'day=2026-01-02/shop=a%2Fb'
    """
    parts = zip(columns, values, strict=True)
    return "/".join(f"{quote(name, safe='')}={_quoted(value)}" for name, value in parts)


def _quoted(value: str | None) -> str:
    return NULL_FOLDER if value is None or not value else quote(value, safe=" ")
