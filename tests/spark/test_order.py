"""Order per key across micro-batches on Spark: a partition's number means something else in each of them (A8)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from tests.support.spark_streams import epochs, finish, paimon, rows_in, stream, write_files

SLOW_USER, ROWS = 1, 300
SCHEMA = "user bigint, number bigint, pad string"


class Count(pen.KeyedProcess):
    """Numbers the rows of a user as they come."""

    output = "user bigint, number bigint, seq bigint"
    seen = pen.value_state("bigint")

    def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del key
        for row in rows:
            state.seen = (state.seen or 0) + 1
            out.emit(user=row["user"], number=row["number"], seq=state.seen)


def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Costs time for rows of one user alone."""
    costly = pc.sum(pc.equal(batch["user"], SLOW_USER)).as_py() or 0
    time.sleep(0.01 * costly)  # the work itself, not a way to wait for something
    return batch


def rows_of(user: int, first: int, count: int, pad: str = "") -> pa.Table:
    return pa.table({"user": [user] * count, "number": list(range(first, first + count)), "pad": [pad] * count})


async def looked_up(row: dict[str, Any]) -> dict[str, Any]:
    return row


WAYS = {
    "one stage": lambda rows: rows.map_batches(slow),
    "two stages": lambda rows: rows.map_batches(slow).map_async(looked_up),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_the_second_micro_batch_waits_for_all_rows_of_its_key_in_the_first(
    spark: SparkSession, tmp_path: Path, way: str
) -> None:
    """Spark packs files by size: the slow file is the second partition of micro-batch 1, and the only file of
    micro-batch 2 its first."""
    large = rows_of(2, 0, 50).set_column(2, "pad", pa.array([f"{n:04d}" * 5000 for n in range(50)]))
    write_files(tmp_path / "in", [large, rows_of(SLOW_USER, 0, ROWS), rows_of(SLOW_USER, ROWS, 1)])
    read = pen.read(stream(spark, tmp_path / "in", SCHEMA, files_per_batch=2))
    output = WAYS[way](read).key_by("user").process(Count).write(paimon(tmp_path))
    events = finish(output, checkpoint=tmp_path / "checkpoint", parallelism=4, epoch="300 ms")
    assert any(event.rows_in_flight for event in epochs(events)), "the barrier fired while rows were on their way"
    found = sorted((row for row in rows_in(tmp_path) if row["user"] == SLOW_USER), key=lambda row: row["seq"])
    assert [row["number"] for row in found] == list(range(ROWS + 1))
    assert [row["seq"] for row in found] == list(range(1, ROWS + 2))
