"""Several sources that meet in one stage come in one stream of Spark: whatever waits or overflows, no row is lost."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.streams import NUMBERED, epochs, finish, numbered, paimon, rows_in, stream, write_files

SIZED = "user bigint, number bigint, pad binary"


def two_sources(
    spark: SparkSession, tmp_path: Path, rows: int, schema: str = NUMBERED, files: int = 1
) -> list[pen.Stream]:
    """Numbers ascend in each source; those of the second one begin where the first one's end."""
    tables = numbered(rows, 2 * files)
    if schema == SIZED:
        tables = [table.append_column("pad", pa.array([b"x" * (20 << 20)] * rows)) for table in tables]
    for name, mine in (("left", tables[:files]), ("right", tables[files:])):
        write_files(tmp_path / name, mine)
    return [pen.read(stream(spark, tmp_path / name, schema), name=name) for name in ("left", "right")]


def numbers_in(tmp_path: Path) -> list[int]:
    return sorted(row["number"] for row in rows_in(tmp_path))


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("budget", ["64 KiB", "16 MiB"])
def test_a_union_of_two_sources_loses_no_row(
    spark: SparkSession, tmp_path: Path, budget: str, parallelism: int
) -> None:
    left, right = two_sources(spark, tmp_path, 60_000)
    output = left.union(right).write(paimon(tmp_path))
    events = finish(output, checkpoint=tmp_path / "ckpt", parallelism=parallelism, prefetch_bytes=budget)
    assert numbers_in(tmp_path) == list(range(120_000))
    assert all(event.rows_in_flight == 0 for event in epochs(events)), "rows that could be processed were put away"


def sizes(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["number"], pc.cast(pc.binary_length(batch["pad"]), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["number", "size"])


def test_records_larger_than_the_budget_pass_through_a_union(spark: SparkSession, tmp_path: Path) -> None:
    """From the second micro-batch on Spark sends each of them in a batch of its own."""
    left, right = two_sources(spark, tmp_path, 3, SIZED, files=2)
    output = left.union(right).map_batches(sizes, "number bigint, size bigint").write(paimon(tmp_path))
    finish(output, checkpoint=tmp_path / "ckpt", parallelism=1)
    rows = sorted(rows_in(tmp_path), key=lambda row: row["number"])
    assert rows == [{"number": number, "size": 20 << 20} for number in range(12)]


def test_a_union_that_the_barrier_cuts_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Both sources have far more rows than fit into the budget, and time for a part of them only."""
    left, right = two_sources(spark, tmp_path, 1_000_000)
    counted = left.union(right).key_by("user").aggregate(n=pen.count(), total=pen.sum("number"))
    output = counted.write(paimon(tmp_path, primary_key=["user"], buckets=2))
    events = finish(output, checkpoint=tmp_path / "ckpt", parallelism=1, epoch="0.1 s", prefetch_bytes="1 MiB")
    assert max(event.rows_in_flight for event in epochs(events)) > 0, "nothing was cut, so nothing is shown"
    wanted = {user: range(user, 2_000_000, 7) for user in range(7)}
    # Numbers of the second table go on with those of the first, so a user's numbers are 7 apart over both.
    found = {row["user"]: (row["n"], row["total"]) for row in rows_in(tmp_path)}
    assert found == {user: (len(mine), sum(mine)) for user, mine in wanted.items()}
