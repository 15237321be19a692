"""`deduplicate` against Spark's `dropDuplicatesWithinWatermark` on the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock as pen
from benchmarks import timed
from benchmarks.measure import Measured, best, measure
from benchmarks.peers import STORES, StateStore, best_of
from benchmarks.verdict import Verdicts
from penstock.api.outputs import Output

ROWS, FILES, KEYS = 500_000, 10, 2_000_000
SPAN = "2 minutes"


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = timed.generate(Path(folder) / "in", files=FILES, rows_per_file=ROWS, keys=KEYS)
        mine = best(
            [
                timed.run_ours(lambda: _ours(spark, source), name=f"deduplicate, {p} subtasks", warmup=2, parallelism=p)
                for p in (2, 4)
            ]
        )
        theirs = best([best_of(native, spark, source, store=store) for store in STORES])
    for measured in (mine, theirs):
        verdicts.note(f"{KEYS:,} keys: {measured}")
    verdicts.at_least("to dropDuplicatesWithinWatermark", mine.rows_per_s / theirs.rows_per_s, 1.0, "×")


def _ours(spark: SparkSession, source: Path) -> Output:
    stream = pen.read(timed.stream_files(spark, source), name="input", event_time="ts", watermark="2 min")
    return stream.key_by("key").deduplicate(within="2 min", name="once").write(pen.Discard())


def native(spark: SparkSession, source: Path, *, store: StateStore, partitions: int, warmup: int = 2) -> Measured:
    """Spark keeps a key for as long as rows may be late."""

    def build(_: DataFrame) -> DataStreamWriter:
        stream = timed.stream_files(spark, source).withWatermark("ts", SPAN)
        return stream.dropDuplicatesWithinWatermark(["key"]).writeStream.outputMode("append").format("noop")

    settings: dict[str, Any] = {**STORES[store], "spark.sql.shuffle.partitions": str(partitions)}
    name = f"dropDuplicatesWithinWatermark, {store} store, {partitions} partitions"
    return measure(spark, source, build, name=name, warmup=warmup, settings=settings)
