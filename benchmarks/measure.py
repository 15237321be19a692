"""Runs a streaming query over a folder of files, one file per micro-batch, and tells how long the batches took.

Durations come from Spark's own progress reports. The rate counts the time from the start of the first measured batch
to the end of the last one, so gaps between batches count too; warm-up batches do not.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.data import count_rows, spark_schema
from benchmarks.session import with_settings

# Spark keeps the last 100 progress reports by default; a run must not lose its first ones.
PROGRESS_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured batches of one run; `settings` are those that differ from the session's."""

    name: str
    rows: int
    wall_s: float
    batch_s: tuple[float, ...]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.wall_s

    @property
    def batch_s_p50(self) -> float:
        return statistics.median(self.batch_s)

    @property
    def batch_s_max(self) -> float:
        return max(self.batch_s)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.rows_per_s:,.0f} rows/s, batch p50 {self.batch_s_p50:.2f} s, "
            f"max {self.batch_s_max:.2f} s ({len(self.batch_s)} batches, {self.rows:,} rows)"
        )


def stream_files(spark: SparkSession, input_dir: Path) -> DataFrame:
    """The input as a stream of micro-batches of one file each."""
    return spark.readStream.schema(spark_schema(input_dir)).option("maxFilesPerTrigger", 1).parquet(str(input_dir))


def measure(
    spark: SparkSession,
    input_dir: Path,
    build: Callable[[DataFrame], DataStreamWriter],
    *,
    name: str,
    warmup: int,
    settings: Mapping[str, str],
) -> Measured:
    """Runs what `build` makes of the input until all files are used up."""
    kept = {**settings, "spark.sql.streaming.numRecentProgressUpdates": str(PROGRESS_KEPT)}
    # Spark's maintenance thread may still write while the folder goes.
    with (
        with_settings(spark, kept),
        tempfile.TemporaryDirectory(prefix="penstock-bench-", ignore_cleanup_errors=True) as checkpoint,
    ):
        writer = build(stream_files(spark, input_dir)).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            reports = [report for report in query.recentProgress if report["numInputRows"] > 0]
        finally:
            query.stop()
            _forget_state(spark)
    seen = sum(report["numInputRows"] for report in reports)
    assert seen == count_rows(input_dir), f"{name}: {seen} rows reported, {count_rows(input_dir)} in the input"
    return _summary(name, reports[warmup:], settings)


def _summary(name: str, reports: list[Any], settings: Mapping[str, str]) -> Measured:
    assert reports, f"{name}: no batch is left to measure; give it more files or less warm-up"
    durations = tuple(report["durationMs"]["triggerExecution"] / 1_000 for report in reports)
    starts = [datetime.fromisoformat(report["timestamp"]) for report in reports]
    return Measured(
        name=name,
        rows=sum(report["numInputRows"] for report in reports),
        wall_s=(starts[-1] - starts[0]).total_seconds() + durations[-1],
        batch_s=durations,
        settings=settings,
    )


def _forget_state(spark: SparkSession) -> None:
    """Unloads the state of a finished query, which Spark would hold for another minute at the next run's cost."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
    jvm.System.gc()


def best(runs: Iterable[Measured]) -> Measured:
    return max(runs, key=lambda run: run.rows_per_s)
