"""The same jobs in plain Structured Streaming, set up as Spark's documentation advises.

Every peer takes `(spark, input_dir, …)`, reads one file per micro-batch and returns a `Measured`. The number of shuffle
partitions is 1 to 2 per core by Spark's advice: `best_of` tries both and keeps the peer's best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.measure import Measured, best, measure
from penstock.spark.quirks import logfiles

StateStore = Literal["in-memory", "rocksdb", "rocksdb-changelog"]
KeyedPython = Literal["applyInPandasWithState", "transformWithStateInPandas", "transformWithState"]

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
PACKAGE = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = {
    PROVIDER: f"{PACKAGE}.RocksDBStateStoreProvider",
    # Counting rows costs a lookup per write; the documentation says to switch it off for speed.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
}
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
STORES: dict[StateStore, dict[str, str]] = {
    "in-memory": {PROVIDER: f"{PACKAGE}.HDFSBackedStateStoreProvider"},
    "rocksdb": {**ROCKSDB, CHANGELOG: "false"},
    "rocksdb-changelog": {**ROCKSDB, CHANGELOG: "true"},
}
TOTALS = "key long, n long, total long"


def best_of(peer: Callable[..., Measured], *args: Any, partitions: Iterable[int] = (2, 4), **options: Any) -> Measured:
    """The peer's fastest run over several numbers of shuffle partitions."""
    return best([peer(*args, partitions=count, **options) for count in partitions])


# ---------------------------------------------------------------- running count and sum per key, built in
def native_aggregate(
    spark: SparkSession, input_dir: Path, *, store: StateStore, partitions: int, warmup: int = 2
) -> Measured:
    """Streaming `groupBy().agg()` in update mode; the updated rows are made and dropped."""

    def build(stream: DataFrame) -> DataStreamWriter:
        totals = stream.groupBy("key").agg(F.count("*").alias("n"), F.sum("amount").alias("total"))
        return totals.writeStream.outputMode("update").format("noop")

    return measure(
        spark,
        input_dir,
        build,
        name=f"groupBy().agg(), {store} store, {partitions} partitions",
        warmup=warmup,
        settings={**STORES[store], **_shuffle(partitions)},
    )


# ---------------------------------------------------------------- the ceiling: no state, no checkpoint of ours
def ceiling(
    spark: SparkSession, input_dir: Path, *, partitions: int, warmup: int = 2, quick_logs: bool = False
) -> Measured:
    """Shuffle by key and `mapInArrow` that reads every row, planned once with the stream; with `quick_logs` Spark also
    writes its logs as Penstock has it do, which its documentation does not know of."""

    def build(stream: DataFrame) -> DataStreamWriter:
        return _counted(stream, partitions).writeStream.format("noop")

    name = f"shuffle + mapInArrow{', quick logs' if quick_logs else ''}, no state, {partitions} partitions"
    return measure(
        spark, input_dir, build, name=name, warmup=warmup, settings=_stateless(partitions, quick_logs=quick_logs)
    )


def ceiling_reported(spark: SparkSession, input_dir: Path, *, partitions: int, warmup: int = 2) -> Measured:
    """The same job with its results collected in `foreachBatch`: Penstock's own without state and checkpoints."""

    def handle(counts: DataFrame, batch_id: int) -> None:
        counts.collect()

    def build(stream: DataFrame) -> DataStreamWriter:
        return _counted(stream, partitions).writeStream.foreachBatch(handle)

    name = f"shuffle + mapInArrow, quick logs, collected, no state, {partitions} partitions"
    settings = _stateless(partitions, quick_logs=True)
    return measure(spark, input_dir, build, name=name, warmup=warmup, settings=settings)


def _counted(frame: DataFrame, partitions: int) -> DataFrame:
    target = F.pmod(F.xxhash64("key"), F.lit(partitions)).cast("int")
    return frame.repartitionById(partitions, target).mapInArrow(count_rows, "rows long")


def _stateless(partitions: int, *, quick_logs: bool) -> dict[str, str]:
    return {
        **_shuffle(partitions),
        # As Penstock sets it for rows of a known width.
        "spark.sql.execution.arrow.maxBytesPerBatch": str((1 << 31) - 1),
        **({logfiles.SETTING: logfiles.QUICK} if quick_logs else {}),
    }


def count_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield _one_count(sum(batch.num_rows for batch in batches))


def _one_count(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"rows": pa.array([rows], pa.int64())})


# ---------------------------------------------------------------- running count and sum per key, in Python
def keyed_python(
    spark: SparkSession,
    input_dir: Path,
    *,
    api: KeyedPython,
    partitions: int,
    store: StateStore = "rocksdb-changelog",
    warmup: int = 1,
) -> Measured:
    """Per-key user code with one value of state, through one of Spark's three interfaces for it."""

    def build(stream: DataFrame) -> DataStreamWriter:
        return keyed_totals(stream, api).writeStream.outputMode("update").format("noop")

    return measure(
        spark,
        input_dir,
        build,
        name=f"{api}, {store} store, {partitions} partitions",
        warmup=warmup,
        settings={**STORES[store], **_shuffle(partitions)},
    )


def keyed_totals(stream: DataFrame, api: KeyedPython) -> DataFrame:
    keyed = stream.groupBy("key")
    match api:
        case "applyInPandasWithState":
            state = "n long, total long"
            return keyed.applyInPandasWithState(add_to_group, TOTALS, state, "update", GroupStateTimeout.NoTimeout)
        case "transformWithStateInPandas":
            return keyed.transformWithStateInPandas(PandasTotals(), TOTALS, "Update", "None")
        case "transformWithState":
            return keyed.transformWithState(RowTotals(), TOTALS, "Update", "None")


def add_to_group(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    n, total = state.get if state.exists else (0, 0)
    for frame in frames:
        n, total = n + len(frame), total + int(frame["amount"].sum())
    state.update((n, total))
    yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


class _Totals(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self.totals = handle.getValueState("totals", "n long, total long")

    def add(self, n: int, amount: int) -> tuple[int, int]:
        old_n, old_total = self.totals.get() or (0, 0)
        new = (old_n + n, old_total + amount)
        self.totals.update(new)
        return new

    def close(self) -> None:
        pass


class PandasTotals(_Totals):
    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        frames = [(len(frame), int(frame["amount"].sum())) for frame in rows]
        n, total = self.add(sum(count for count, _ in frames), sum(amount for _, amount in frames))
        yield pd.DataFrame({"key": [key[0]], "n": [n], "total": [total]})


class RowTotals(_Totals):
    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        amounts = [row.amount for row in rows]
        n, total = self.add(len(amounts), sum(amounts))
        yield Row(key=key[0], n=n, total=total)


# ---------------------------------------------------------------- a slow operator and a hot key
def slow_operator(
    spark: SparkSession,
    input_dir: Path,
    *,
    partitions: int,
    cost_s: float = 0.001,
    how: Literal["mapInPandas", "applyInPandas"] = "mapInPandas",
    warmup: int = 0,
) -> Measured:
    """`foreachBatch` with an operator that costs `cost_s` per row: a batch, and with it the checkpoint, takes as long
    as its longest partition.
    """

    def handle(batch: DataFrame, batch_id: int) -> None:
        _slow(batch, partitions, cost_s, how).write.format("noop").mode("append").save()

    return measure(
        spark,
        input_dir,
        lambda stream: stream.writeStream.foreachBatch(handle),
        name=f"foreachBatch + {how}, {cost_s * 1_000:g} ms per row, {partitions} partitions",
        warmup=warmup,
        settings=_shuffle(partitions),
    )


def _slow(batch: DataFrame, partitions: int, cost_s: float, how: str) -> DataFrame:
    schema = "key long, amount long"
    if how == "applyInPandas":
        return batch.groupBy("key").applyInPandas(lambda frame: spend_frame(frame, cost_s), schema)
    spend_all = lambda frames: (spend_frame(frame, cost_s) for frame in frames)  # noqa: E731
    return batch.repartition(partitions, "key").mapInPandas(spend_all, schema)


def spend_frame(frame: pd.DataFrame, cost_s: float) -> pd.DataFrame:
    spend(len(frame), cost_s)
    return frame


def spend(rows: int, cost_s: float) -> None:
    """What the slow operator does with each of `rows` rows: waits, as a call to a service would."""
    for _ in range(rows):
        time.sleep(cost_s)


def _shuffle(partitions: int) -> dict[str, str]:
    return {"spark.sql.shuffle.partitions": str(partitions)}
