"""Tumbling-window counts per key against Spark's own windowed aggregation on the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock as pen
from benchmarks import data, ours, peers
from benchmarks.measure import Measured, best, measure
from benchmarks.verdict import Verdicts
from penstock.api.outputs import Output
from penstock.api.stream import Stream

ROWS = 500_000
KEYS = 100_000
FILE_S = 5.0
"""A window of ten seconds closes with every second micro-batch."""


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = data.generate(Path(folder) / "in", files=12, rows_per_file=ROWS, keys=KEYS, file_s=FILE_S)
        mine = best([_ours(spark, source, parallelism) for parallelism in (2, 4)])
        in_memory = peers.best_of(windowed, spark, source, store="in-memory")
        stores: tuple[peers.StateStore, ...] = ("rocksdb", "rocksdb-changelog")
        rocksdb = best([peers.best_of(windowed, spark, source, store=store) for store in stores])
    for measured in (mine, in_memory, rocksdb):
        verdicts.note(f"{KEYS:,} keys: {measured}")
    verdicts.at_least("to Spark in memory", mine.rows_per_s / in_memory.rows_per_s, 1.0, "×")
    verdicts.at_least("to Spark RocksDB", mine.rows_per_s / rocksdb.rows_per_s, 1.0, "×")


def _ours(spark: SparkSession, source: Path, parallelism: int) -> Measured:
    measured, _ = ours.run(
        spark,
        source,
        counts,
        name=f"tumbling count, {parallelism} subtasks",
        source={"event_time": "ts", "watermark": "1 s"},
        parallelism=parallelism,
        epoch=None,
    )
    return measured


def counts(stream: Stream) -> Output:
    windows = stream.key_by("key").window(pen.tumbling_window("10 s"))
    return windows.aggregate(n=pen.count(), name="counts").write(pen.Discard())


def windowed(
    spark: SparkSession, input_dir: Path, *, store: peers.StateStore, partitions: int, warmup: int = 2
) -> Measured:
    """Streaming `groupBy(key, window)` in append mode: a row per key and window once the watermark has passed it."""

    def build(stream: DataFrame) -> DataStreamWriter:
        windows = stream.withWatermark("ts", "1 second").groupBy("key", F.window("ts", "10 seconds"))
        return windows.agg(F.count("*").alias("n")).writeStream.outputMode("append").format("noop")

    return measure(
        spark,
        input_dir,
        build,
        name=f"groupBy(window).count(), {store} store, {partitions} partitions",
        warmup=warmup,
        settings={**peers.STORES[store], "spark.sql.shuffle.partitions": str(partitions)},
    )
