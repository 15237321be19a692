"""Queries of one application have scheduler pools of their own (H4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.spark.pools import POOL
from tests.support.spark_streams import numbered, stream, write_files

pytestmark = pytest.mark.spark


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


def test_a_pool_that_the_program_has_chosen_is_kept(spark: SparkSession, tmp_path: Path) -> None:
    spark.sparkContext.setLocalProperty(POOL, "chosen")
    try:
        run(spark, tmp_path)
    finally:
        spark.sparkContext.setLocalProperty(POOL, None)  # type: ignore[arg-type]
    assert "chosen" in pools_of(spark)
    assert not any(str(tmp_path) in pool for pool in pools_of(spark))
