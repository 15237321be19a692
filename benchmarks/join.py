"""The interval join against Spark's stream-stream join on the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

import penstock as pen
from benchmarks import timed
from benchmarks.measure import Measured, best, measure
from benchmarks.peers import STORES, StateStore, best_of
from benchmarks.verdict import Verdicts
from penstock.api.outputs import Output

ROWS, FILES, KEYS = 200_000, 5, 100_000
BOUND = "INTERVAL 20 SECONDS"
How = Literal["inner", "left"]


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = Path(folder) / "in"
        for number, side in enumerate(("left", "right")):
            timed.generate(source / side, files=FILES, rows_per_file=ROWS, keys=KEYS, seed=number)
        for how in ("inner", "left"):
            _compare(spark, verdicts, source, how)


def _compare(spark: SparkSession, verdicts: Verdicts, source: Path, how: How) -> None:
    mine = best(
        [
            timed.run_ours(lambda: _ours(spark, source, how), name=f"{how} join, {p} subtasks", warmup=2, parallelism=p)
            for p in (2, 4)
        ]
    )
    stores: tuple[StateStore, ...] = ("in-memory", "rocksdb-changelog")
    theirs = best([best_of(native, spark, source, how=how, store=store) for store in stores])
    for measured in (mine, theirs):
        verdicts.note(f"{KEYS:,} keys: {measured}")
    verdicts.at_least(f"{how}, to Spark's stream-stream join", mine.rows_per_s / theirs.rows_per_s, 1.0, "×")


def _ours(spark: SparkSession, source: Path, how: How) -> Output:
    left, right = (
        pen.read(timed.stream_files(spark, source / side), name=side, event_time="ts", watermark="1 min").key_by("key")
        for side in ("left", "right")
    )
    return left.join(right, within="20 s", how=how, name="pairs").write(pen.Discard())


def native(
    spark: SparkSession, source: Path, *, how: How, store: StateStore, partitions: int, warmup: int = 2
) -> Measured:
    """With watermarks and a time bound on both sides, so that Spark can drop its state, too."""

    def build(_: DataFrame) -> DataStreamWriter:
        a, b = (
            timed.stream_files(spark, source / side).withWatermark("ts", "1 minute").alias(alias)
            for side, alias in (("left", "a"), ("right", "b"))
        )
        near = F.expr(f"a.key = b.key AND b.ts BETWEEN a.ts - {BOUND} AND a.ts + {BOUND}")
        columns = (
            "a.key",
            "a.ts",
            "a.amount",
            F.col("b.ts").alias("ts_right"),
            F.col("b.amount").alias("amount_right"),
        )
        return a.join(b, near, how).select(*columns).writeStream.outputMode("append").format("noop")

    settings: dict[str, Any] = {**STORES[store], "spark.sql.shuffle.partitions": str(partitions)}
    name = f"stream-stream {how} join, {store} store, {partitions} partitions"
    return measure(spark, source, build, name=name, warmup=warmup, settings=settings)
