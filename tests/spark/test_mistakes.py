"""Mistakes that only a real Spark answers. All others: tests/unit/api/test_mistakes.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.testing.tables import Memory, memory_table
from tests.support.mistakes import Mistake, judge

pytestmark = pytest.mark.spark


def numbers(spark: SparkSession, folder: Path) -> Any:
    spark.range(20).write.mode("overwrite").parquet(str(folder / "in"))
    return spark.readStream.schema("id bigint").parquet(str(folder / "in"))


def ran(output: pen.Output, folder: Path, **options: Any) -> None:
    query = output.start(folder / "c", **{"trigger": "available_now", "parallelism": 2, **options})
    query.await_termination(60)


def test_mistakes_on_spark_are_answered_without_java(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = numbers(spark, tmp_path)
    source = pen.read(frame, name="numbers")
    nowhere = pen.Discard()
    lock, lookup = threading.Lock(), spark.range(3)
    plain_spark = tmp_path / "plain"
    frame.writeStream.format("noop").option("checkpointLocation", str(plain_spark)).trigger(
        availableNow=True
    ).start().awaitTermination()

    def locked(row: dict[str, Any]) -> list[dict[str, Any]]:
        with lock:
            return [row]

    def query_in_a_row(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for _ in spark.range(3).collect()]

    def frame_in_a_row(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [row for _ in lookup.collect()]

    def starts(fn: Callable[..., Any], folder: str) -> Callable[[], None]:
        return lambda: ran(source.flat_map(fn, name="mapped").write(nowhere), tmp_path / folder)

    for mistake in (
        Mistake(lambda: pen.read(spark.range(3)), "PEN-002", "not a streaming DataFrame", "readStream"),
        Mistake(lambda: pen.read("in/"), "PEN-002", "got str", "readStream"),  # type: ignore[arg-type]
        Mistake(lambda: source.filter("idd > 3"), "PEN-002", "idd", "columns id"),
        Mistake(lambda: source.select("id +"), "PEN-002", "cannot read it", "write Spark SQL"),
        Mistake(lambda: source.with_column("dice", "rand()"), "PEN-002", "other rows each time", "derive"),
        Mistake(lambda: source.select("sum(id) AS total"), "PEN-002", "several rows", "aggregate"),
        Mistake(starts(locked, "lock"), "PEN-002", "lock", r"open\(\)"),
        Mistake(starts(query_in_a_row, "session"), "PEN-002", "SparkSession or a DataFrame", "before pen.read"),
        Mistake(starts(frame_in_a_row, "frame"), "PEN-002", "SparkSession or a DataFrame", "before pen.read"),
        Mistake(
            starts(lambda row: [{"id": 1 // row["id"]}], "zero"),
            "PEN-030",
            'ZeroDivision.*\n.*"id": 0',
            "correct the function",
        ),
        Mistake(
            lambda: ran(source.write(nowhere), tmp_path / "x", restore=3),
            "PEN-014",
            "checkpoint 3",
            "leave restore out",
        ),
        Mistake(
            lambda: source.write(nowhere).start(plain_spark, trigger="available_now"), "PEN-017", "Spark", "folder"
        ),
    ):
        judge(mistake)

    assert "Py4JJavaError" not in capfd.readouterr().err
    query = source.write(nowhere).start(tmp_path / "rescaled", parallelism=2)
    judge(Mistake(lambda: query.rescale("three"), "PEN-001", "three", "such as 4"))  # type: ignore[arg-type]
    judge(Mistake(lambda: query.rescale({"totals": 2}), "PEN-001", "operators are from-numbers", "names of operators"))
    query.stop()
    judge(Mistake(lambda: query.rescale(3), "PEN-029", "has ended", "start it again"))


def test_a_bounded_run_without_a_key_is_flushed_and_spread_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    """`flush`, `rebalance` and aggregates over all rows, in one query and its restart."""
    rows = spark.range(0, 7200, 60).selectExpr("id", "timestamp_seconds(id) AS ts").coalesce(1)
    rows.write.parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id bigint, ts timestamp").parquet(str(tmp_path / "in"))
    source = pen.read(frame, name="clicks", event_time="ts", watermark="10 min")
    hourly = source.window(pen.tumbling_window("1 h")).aggregate(n=pen.count(), total=pen.sum("id"), name="hourly")
    spread = source.rebalance().map_batches(lambda batch: batch, name="spread").filter("id % 120 = 0")
    tables = Memory("flushed-hourly"), Memory("flushed-spread")

    def finish(**options: Any) -> None:
        outputs = [hourly.write(tables[0], name="hourly-out"), spread.write(tables[1], name="spread-out")]
        query = pen.start(*outputs, checkpoint=tmp_path / "c", parallelism=4, trigger="available_now", **options)
        assert query.await_termination(120)
        consumed.append(query.progress())

    consumed: list[Any] = []
    finish()
    assert memory_table("flushed-hourly").rows()["n"].to_pylist() == [60]
    assert sorted(memory_table("flushed-spread").rows()["id"].to_pylist()) == list(range(0, 7200, 120))
    finish(flush="end")
    assert memory_table("flushed-hourly").rows()["n"].to_pylist() == [60, 60]
    assert sum(memory_table("flushed-hourly").rows()["total"].to_pylist()) == sum(range(0, 7200, 60))
    finish(flush="end")
    assert memory_table("flushed-hourly").rows().num_rows == 2
