"""What a streaming query that ended leaves behind in its driver."""

from __future__ import annotations

import threading
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from tests.support.spark_streams import finish, numbered, stream, wait_until, write_files


def test_queries_that_ended_leave_no_thread_behind(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(30, 1))

    def run(number: int) -> None:
        counts = pen.read(stream(spark, tmp_path / "in")).key_by("user").aggregate(n=pen.count(), name="counts")
        finish(counts.write(pen.Discard()), checkpoint=tmp_path / f"checkpoint-{number}", parallelism=1)

    run(0)
    before = threading.active_count()
    for number in range(1, 5):
        run(number)
    wait_until(lambda: threading.active_count() <= before)
