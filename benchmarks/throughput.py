"""Running count and sum per key, and per-key Python, against Spark's own streaming on the same files."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import data, ours, peers
from benchmarks.measure import Measured, best
from benchmarks.verdict import Verdicts

ROWS = 500_000
ROUNDS = 2


def aggregates(spark: SparkSession, verdicts: Verdicts) -> None:
    for keys, memory_mark, rocksdb_mark in ((100_000, 1.0, 1.5), (2_000_000, 2.0, 4.0)):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            source = data.generate(Path(folder) / "in", files=10, rows_per_file=ROWS, keys=keys)
            rounds = [_round(spark, source, keys) for _ in range(ROUNDS)]
        mine, in_memory, rocksdb, shuffle, stateless = (best(runs) for runs in zip(*rounds, strict=True))
        for measured in (mine, in_memory, rocksdb, shuffle, stateless):
            verdicts.note(f"{keys:,} keys: {measured}")
        verdicts.at_least(
            f"{keys:,} keys, to Spark in memory", mine.rows_per_s / in_memory.rows_per_s, memory_mark, "×"
        )
        verdicts.at_least(f"{keys:,} keys, to Spark RocksDB", mine.rows_per_s / rocksdb.rows_per_s, rocksdb_mark, "×")
        if keys == 100_000:
            verdicts.note(f"100,000 keys, to the same without state: {mine.rows_per_s / stateless.rows_per_s:.2f}×")
            verdicts.at_least("100,000 keys, to the shuffle alone", mine.rows_per_s / shuffle.rows_per_s, 0.95, "×")


def _round(spark: SparkSession, source: Path, keys: int) -> tuple[Measured, ...]:
    """Everybody once, so that no side has all its runs while the JVM still compiles or the machine is busy."""
    mine = _ours(spark, source, keys)
    in_memory = peers.best_of(peers.native_aggregate, spark, source, store="in-memory")
    stores = ("rocksdb", "rocksdb-changelog")
    rocksdb = best([peers.best_of(peers.native_aggregate, spark, source, store=store) for store in stores])
    shuffle = peers.best_of(peers.ceiling, spark, source)
    stateless = peers.best_of(peers.ceiling, spark, source, aggregate=True)
    return mine, in_memory, rocksdb, shuffle, stateless


def _ours(spark: SparkSession, source: Path, keys: int) -> Measured:
    """Both sides may choose among the same numbers of subtasks."""
    runs = [
        ours.run(
            spark, source, ours.aggregate, name=f"aggregate, {keys:,} keys, {p} subtasks", parallelism=p, epoch=None
        )
        for p in (2, 4)
    ]
    return best([measured for measured, _ in runs])


def processes(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = data.generate(Path(folder) / "in", files=8, rows_per_file=ROWS, keys=100_000)
        mine = best(
            [
                ours.run(spark, source, ours.process, name=f"process, {p} subtasks", parallelism=p, epoch=None)[0]
                for p in (2, 4)
            ]
        )
        # As many rows per key and batch as ours has: the peers are too slow for batches of the same size.
        few = data.generate(Path(folder) / "few", files=3, rows_per_file=20_000, keys=4_000)
        theirs = {
            api: best(
                [
                    peers.best_of(peers.keyed_python, spark, few, api=api, store=store)
                    for store in ("in-memory", "rocksdb-changelog")
                    if not (api != "applyInPandasWithState" and store == "in-memory")
                ]
            )
            for api in ("applyInPandasWithState", "transformWithStateInPandas")
        }
    verdicts.note(f"100,000 keys: {mine}")
    for api, measured in theirs.items():
        verdicts.note(f"4,000 keys: {measured}")
        verdicts.at_least(f"to {api}", mine.rows_per_s / measured.rows_per_s, 15, "×")
