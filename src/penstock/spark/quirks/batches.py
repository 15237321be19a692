"""Spark cuts the batches for a Python worker by number of rows, or slowly by bytes.

A worker's memory must not depend on how wide rows are. With a limit of bytes Spark adds up all its buffers before
each row, which costs a quarter of a job of narrow rows. Rows of a known width need no such limit: a limit of rows does
the same.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import types as T

ROWS_MAX = 65_536
BYTES_MAX = 8 << 20
# The hash or lane of each row, and the number of its edge.
_BESIDES = 12
_WIDTHS: Mapping[type[T.DataType], int] = {
    T.NullType: 0,
    T.BooleanType: 1,
    T.ByteType: 1,
    T.ShortType: 2,
    T.IntegerType: 4,
    T.LongType: 8,
    T.FloatType: 4,
    T.DoubleType: 8,
    T.DecimalType: 16,
    T.DateType: 4,
    T.TimestampType: 8,
    T.TimestampNTZType: 8,
    T.DayTimeIntervalType: 8,
    T.YearMonthIntervalType: 4,
}


def batch_settings(schema: T.StructType) -> dict[str, str]:
    """Spark's settings for rows of this schema. 2 GiB - 1 bytes stands for no limit."""
    width = _width(schema)
    if width is None:
        rows, limit = ROWS_MAX, BYTES_MAX
    else:
        rows, limit = max(1, min(ROWS_MAX, BYTES_MAX // (width + _BESIDES))), (1 << 31) - 1
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(limit),
    }


def _width(kind: T.DataType) -> int | None:
    """Bytes of one value in Arrow, or None where values differ."""
    if isinstance(kind, T.StructType):
        widths = [_width(field.dataType) for field in kind.fields]
        known = [width for width in widths if width is not None]
        return sum(known) if len(known) == len(widths) else None
    return _WIDTHS.get(type(kind))
