"""Running count and sum per key, and per-key Python, against Spark's own streaming on the same files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks import data, ours, peers
from benchmarks.measure import Measured, best
from benchmarks.verdict import Verdicts

ROWS = 500_000
PEERS_STORES: dict[peers.KeyedPython, tuple[peers.StateStore, ...]] = {
    "applyInPandasWithState": ("in-memory", "rocksdb-changelog"),
    # These two work with RocksDB only.
    "transformWithState": ("rocksdb-changelog",),
    "transformWithStateInPandas": ("rocksdb-changelog",),
}


def aggregates(spark: SparkSession, verdicts: Verdicts) -> None:
    for keys, rounds, memory_mark, rocksdb_mark in ((100_000, 5, 1.0, 1.5), (2_000_000, 1, 3.0, 4.0)):
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            source = data.generate(Path(folder) / "in", files=10, rows_per_file=ROWS, keys=keys)
            runs = _in_turn(rounds, _contestants(spark, source, keys))
        for measured in runs.values():
            verdicts.note(f"{keys:,} keys: {best(measured)}")
        ratios = {name: _ratio(runs["mine"], measured) for name, measured in runs.items()}
        verdicts.at_least(f"{keys:,} keys, to Spark in memory", ratios["in memory"], memory_mark, "×")
        verdicts.at_least(f"{keys:,} keys, to Spark RocksDB", ratios["rocksdb"], rocksdb_mark, "×")
        if keys == 100_000:
            # What Spark's documentation has users do is no ceiling: its logs cost more than our state.
            verdicts.note(f"100,000 keys, to no state as Spark does it: {ratios['no state']:.2f}×")
            verdicts.note(f"100,000 keys, to no state, quick logs, collected: {ratios['collected']:.2f}×")
            verdicts.at_least("100,000 keys, to no state, quick logs", ratios["quick logs"], 0.95, "×")


def _contestants(spark: SparkSession, source: Path, keys: int) -> dict[str, Callable[[], Measured]]:
    def spark_rocksdb() -> Measured:
        stores = ("rocksdb", "rocksdb-changelog")
        return best([peers.best_of(peers.native_aggregate, spark, source, store=store) for store in stores])

    # Those whose ratio is closest to one stand side by side: a minute later the machine is another one.
    return {
        "in memory": lambda: peers.best_of(peers.native_aggregate, spark, source, store="in-memory"),
        "rocksdb": spark_rocksdb,
        "no state": lambda: peers.best_of(peers.ceiling, spark, source),
        "quick logs": lambda: peers.best_of(peers.ceiling, spark, source, quick_logs=True),
        "mine": lambda: _ours(spark, source, keys),
        "collected": lambda: peers.best_of(peers.ceiling_reported, spark, source),
    }


def _in_turn(rounds: int, contestants: Mapping[str, Callable[[], Measured]]) -> dict[str, list[Measured]]:
    """The runs of each. Who was first in one round is last in the next: the JVM gets faster all the time."""
    runs: dict[str, list[Measured]] = {name: [] for name in contestants}
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            runs[name].append(contestants[name]())
    return runs


def _ratio(mine: Sequence[Measured], theirs: Sequence[Measured]) -> float:
    """The median over the rounds: the best run of each side would compare the luck that each had in another minute."""
    return median(own.rows_per_s / other.rows_per_s for own, other in zip(mine, theirs, strict=True))


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
        few = data.generate(Path(folder) / "few", files=3, rows_per_file=50_000, keys=10_000)
        theirs = {
            api: best([peers.best_of(peers.keyed_python, spark, few, api=api, store=store) for store in stores])
            for api, stores in PEERS_STORES.items()
        }
    verdicts.note(f"100,000 keys: {mine}")
    for api, measured in theirs.items():
        verdicts.note(f"10,000 keys: {measured}")
        verdicts.at_least(f"to {api}", mine.rows_per_s / measured.rows_per_s, 20, "×")
