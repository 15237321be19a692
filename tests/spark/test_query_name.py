"""The name of a query is the name of Spark's streaming query, as far as Spark allows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen

pytestmark = pytest.mark.spark


def started(spark: SparkSession, checkpoint: Path, name: str | None = None) -> pen.Query:
    """A query that waits for input until it is stopped."""
    rows = pen.read(spark.readStream.format("rate").option("rowsPerSecond", 1).load(), name="rate")
    return rows.write(pen.Discard()).start(checkpoint, name=name, parallelism=1, trigger="1 h")


def names_in(spark: SparkSession) -> set[str | None]:
    return {query.name for query in spark.streams.active}


def test_queries_have_their_name_in_spark_and_a_number_where_another_has_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = names_in(spark)
    queries = [
        started(spark, tmp_path / "a", "hourly totals"),
        started(spark, tmp_path / "b", "hourly totals"),
        started(spark, tmp_path / "folder"),
    ]
    try:
        assert names_in(spark) - before == {"hourly totals", "hourly totals-2", "folder"}
        assert [query.name for query in queries] == ["hourly totals", "hourly totals", "folder"]
    finally:
        for query in queries:
            query.stop()
    again = started(spark, tmp_path / "a", "hourly totals")
    try:
        assert names_in(spark) - before == {"hourly totals"}, "a name is free once its query has ended"
    finally:
        again.stop()
