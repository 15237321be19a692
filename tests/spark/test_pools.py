"""Queries of one application have scheduler pools of their own (H4)."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

import penstock as pen
from penstock.spark.pools import POOL
from tests.support.spark_streams import numbered, stream, wait_until, write_files

pytestmark = pytest.mark.spark
HELD_S = 4.0
"""A subtask of the large query ends after this, or as soon as the small query has begun."""


def pools_of(spark: SparkSession) -> set[str]:
    """Of all stages that Spark remembers."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    quantiles, nothing = gateway.new_array(gateway.jvm.double, 0), gateway.jvm.java.util.ArrayList()
    stages = spark.sparkContext._jsc.sc().statusStore().stageList(nothing, False, False, quantiles, nothing)
    return {stages.apply(number).schedulingPool() for number in range(stages.size())}


def run(spark: SparkSession, folder: Path, **options: int) -> None:
    write_files(folder / "in", numbered(20, 1))
    rows = pen.read(stream(spark, folder / "in"))
    output = rows.key_by("user").aggregate(n=pen.count(), name="n").write(pen.Discard())
    output.start(folder / "checkpoint", trigger="available_now", parallelism=2, **options).await_termination()


def test_each_query_has_a_pool_of_its_own_and_leaves_the_thread_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    run(spark, tmp_path / "a")
    run(spark, tmp_path / "b")
    found = {pool for pool in pools_of(spark) if str(tmp_path) in pool}
    assert len(found) == 2
    assert spark.sparkContext.getLocalProperty(POOL) is None


class Noted:
    """A function of rows that notes when a subtask begins; those of the large query wait for the small one."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder, self.label = str(folder), label

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        context = TaskContext.get()
        assert context is not None
        mine = Path(self.folder, f"attempt-{context.taskAttemptId()}")
        if batch.num_rows and not mine.exists():
            mine.touch()
            with Path(self.folder, "begun").open("a") as file:
                file.write(self.label)
            until_s = time.monotonic() + HELD_S
            while self.label == "L" and "s" not in begun(Path(self.folder)) and time.monotonic() < until_s:
                time.sleep(0.02)
        return batch


def begun(folder: Path) -> str:
    """One letter per subtask, in the order in which they began."""
    return (folder / "begun").read_text() if (folder / "begun").exists() else ""


@pytest.mark.drawn
def test_a_small_query_does_not_wait_for_all_subtasks_of_a_large_one(spark: SparkSession, tmp_path: Path) -> None:
    """The large query has twelve subtasks, and all slots, when the small one comes. First come, first served would
    let all of them begin before the small query's."""
    queries = []
    for label, subtasks in (("L", 12), ("s", 2)):
        write_files(tmp_path / label / "in", numbered(200, 1, users=100))
        rows = pen.read(stream(spark, tmp_path / label / "in")).key_by("user")
        counted = rows.aggregate(n=pen.count(), name="n")
        output = counted.map_batches(Noted(tmp_path, label), "user bigint, n bigint", name="noted").write(pen.Discard())
        started = output.start(
            tmp_path / label / "checkpoint", trigger="available_now", parallelism=subtasks, epoch=None
        )
        queries.append(started)
        if label == "L":
            wait_until(lambda: begun(tmp_path).startswith("LL"))
    for query in queries:
        query.await_termination()
    order = begun(tmp_path)
    assert sorted(order) == sorted("L" * 12 + "s" * 2)
    assert "L" in order.partition("s")[2], f"the small query began last: {order}"


def test_sessions_of_penstock_share_slots_fairly(spark: SparkSession) -> None:
    """Pools count in this mode alone."""
    assert spark.sparkContext.getConf().get("spark.scheduler.mode") == "FAIR"


def test_a_pool_that_the_program_has_chosen_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.setLocalProperty(POOL, "chosen")
    try:
        run(spark, tmp_path)
    finally:
        spark.sparkContext.setLocalProperty(POOL, None)  # type: ignore[arg-type]
    assert "chosen" in pools_of(spark)
    assert not any(str(tmp_path) in pool for pool in pools_of(spark))
