"""How many rows Spark hands to a worker at once (B11)."""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import types as T

from penstock.spark.quirks.batches import BYTES_MAX, ROWS_MAX, batch_settings

ROWS, BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
NO_LIMIT = str((1 << 31) - 1)


def longs(columns: int) -> T.StructType:
    return T.StructType([T.StructField(f"c{number}", T.LongType()) for number in range(columns)])


def test_narrow_rows_of_a_known_width_need_no_limit_of_bytes() -> None:
    assert batch_settings(longs(2)) == {ROWS: str(ROWS_MAX), BYTES: NO_LIMIT}


def test_wide_rows_of_a_known_width_come_in_smaller_numbers() -> None:
    """B11: 2,000 columns of 8 bytes; nested ones count as well."""
    nested = T.StructType([T.StructField("s0", longs(1000)), T.StructField("s1", longs(1000))])
    for schema in (longs(2000), nested):
        settings = batch_settings(schema)
        assert settings[BYTES] == NO_LIMIT
        assert 0.9 * BYTES_MAX < int(settings[ROWS]) * 2000 * 8 <= BYTES_MAX


@pytest.mark.parametrize(
    "kind",
    [T.StringType(), T.BinaryType(), T.ArrayType(T.LongType()), T.MapType(T.LongType(), T.LongType())],
    ids=lambda kind: kind.simpleString(),
)
def test_rows_of_unknown_width_keep_the_limit(kind: T.DataType) -> None:
    """B5, B11: also where the column sits inside a struct."""
    inside = T.StructType([T.StructField("x", kind)])
    for schema in (T.StructType([T.StructField("x", kind)]), T.StructType([T.StructField("s", inside)])):
        assert batch_settings(schema) == {ROWS: str(ROWS_MAX), BYTES: str(BYTES_MAX)}
