"""State that is migrated, and written for other key groups, as Spark jobs, with rows in flight."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import MigrationFailed
from tests.support.spark_streams import (
    Slow,
    assert_numbered_exactly_once,
    deep,
    finish,
    numbered,
    paimon,
    rows_in,
    stop_at,
    stream,
    write_files,
)


def program(spark: SparkSession, tmp_path: Path) -> pen.Output:
    read = pen.read(stream(spark, tmp_path / "in"))
    return read.key_by("user").process(Slow, name="slow").write(paimon(tmp_path), name="out")


def fail(rows: pa.Table) -> pa.Table:
    raise ValueError(f"{rows.num_rows} rows")


def same(rows: pa.Table) -> pa.Table:
    return rows


def test_a_query_goes_on_after_a_migration_and_with_other_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    """F4, F9: each row once, numbered on, in the order of its key."""
    write_files(tmp_path / "in", numbered(1200, 2))
    query = stop_at(program(spark, tmp_path), deep, checkpoint=tmp_path / "first", parallelism=2)
    last = query.manifest().checkpoint
    options = {"checkpoint": tmp_path / "first", "parallelism": 2, "restore": last}
    with pytest.raises(MigrationFailed, match="ValueError"):
        finish(program(spark, tmp_path), migrate={"slow": fail}, **options)
    query = stop_at(program(spark, tmp_path), lambda _: True, migrate={"slow": same}, **options)
    assert query.manifest().counters["slow.migrated"] > 0
    made = pen.savepoint(tmp_path / "first", tmp_path / "copy", max_parallelism=50)
    assert made.rows_in_flight == query.manifest().rows_in_flight
    finish(program(spark, tmp_path), checkpoint=tmp_path / "second", restore=tmp_path / "copy", max_parallelism=50)
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)
