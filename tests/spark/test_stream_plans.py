"""The plan of a running streaming query is changed, or is left alone where it is not as expected. Fails when a private
name of Spark has moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.quirks import streamplans
from penstock.spark.quirks.streamplans import change_partitions
from penstock.spark.quirks.streamrdd import partitions_of
from penstock.spark.stage_job.exchange import _subtask
from tests.support.spark_streams import numbered, stream, write_files

Handle = Callable[[StreamingQuery, DataFrame, int], None]


def hashes(keys: str) -> str:
    return f"xxhash64({keys})"


def run(spark: SparkSession, tmp_path: Path, placed: Callable[[DataFrame], DataFrame], handle: Handle) -> None:
    """A streaming query over eight files, one in each micro-batch."""
    write_files(tmp_path / "in", numbered(50, 8))
    started: list[StreamingQuery] = []

    def handler(frame: DataFrame, number: int) -> None:
        handle(spark.streams.active[0], frame, number)

    writer = placed(stream(spark, tmp_path / "in")).writeStream.foreachBatch(handler)
    place = str(tmp_path / "checkpoint")
    started.append(writer.option("checkpointLocation", place).trigger(availableNow=True).start())
    started[0].awaitTermination()


@pytest.mark.drawn
@pytest.mark.parametrize("groups", [128, 100], ids=["shifted", "divided"])
def test_rows_go_to_the_partitions_of_the_new_number(spark: SparkSession, tmp_path: Path, groups: int) -> None:
    numbers = {1: 5, 2: 1, 3: 7, 5: 3}
    now, seen = 2, []

    def handle(query: StreamingQuery, frame: DataFrame, number: int) -> None:
        nonlocal now
        owner = F.expr(_subtask(hashes("user"), now, groups))
        misplaced = frame.where(F.spark_partition_id() != owner).count()
        seen.append((partitions_of(frame), now, frame.count(), misplaced))
        if number in numbers:
            assert change_partitions(query, spark, old=now, new=numbers[number])
            now = numbers[number]

    def placed(rows: DataFrame) -> DataFrame:
        return rows.repartitionById(2, F.expr(_subtask(hashes("user"), 2, groups)))

    run(spark, tmp_path, placed, handle)
    assert seen == [(number, number, 50, 0) for number in (2, 2, 5, 1, 7, 7, 3, 3)]


def unkeyed(rows: DataFrame) -> DataFrame:
    return rows.repartitionById(2, F.expr("cast(number % 2 as int)"))


def without_exchange(rows: DataFrame) -> DataFrame:
    return rows.withColumn("more", F.lit(1))


def by_key(rows: DataFrame) -> DataFrame:
    return rows.repartition(2, "user")


def ours(rows: DataFrame) -> DataFrame:
    return rows.repartitionById(2, F.expr(_subtask(hashes("user"), 2, 128)))


@pytest.mark.parametrize(
    ("placed", "old", "field"),
    [
        (unkeyed, 2, "logicalPlan"),
        (without_exchange, 2, "logicalPlan"),
        (by_key, 2, "logicalPlan"),
        (ours, 3, "logicalPlan"),
        (ours, 2, "renamed"),
    ],
    ids=["another expression", "no exchange", "an exchange of Spark's own", "another number", "no such field"],
)
def test_a_plan_that_is_not_as_expected_is_left_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placed: Any, old: int, field: str
) -> None:
    monkeypatch.setattr(streamplans, "FIELD", field)
    answers, plans = [], set()

    def handle(query: StreamingQuery, _frame: DataFrame, _number: int) -> None:
        plans.add(str(query._jsq.streamingQuery().logicalPlan().toString()))
        answers.append(change_partitions(query, spark, old=old, new=5))

    run(spark, tmp_path, placed, handle)
    assert answers == [False] * 8
    assert len(plans) == 1
