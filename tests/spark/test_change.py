"""Programs that were changed go on with the backlog of the old one, on real Spark with a real table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as pen
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

Program = Callable[[SparkSession, Path], pen.Output]


def read(spark: SparkSession, tmp_path: Path) -> pen.Stream:
    return pen.read(stream(spark, tmp_path / "in"))


def slow(spark: SparkSession, tmp_path: Path) -> pen.Output:
    return read(spark, tmp_path).key_by("user").process(Slow, name="slow").write(paimon(tmp_path), name="out")


def parsed(spark: SparkSession, tmp_path: Path) -> pen.Output:
    ahead = read(spark, tmp_path).map_batches(lambda batch: batch, name="parse")
    return ahead.key_by("user").process(Slow, name="slow").write(paimon(tmp_path), name="out")


def cleaned(spark: SparkSession, tmp_path: Path) -> pen.Output:
    ahead = read(spark, tmp_path).map_batches(lambda batch: batch, name="parse")
    kept = ahead.filter(pc.greater_equal(pc.field("number"), 0), name="clean")
    return kept.key_by("user").process(Slow, name="slow").write(paimon(tmp_path), name="out")


def renamed(spark: SparkSession, tmp_path: Path) -> pen.Output:
    return read(spark, tmp_path).key_by("user").process(Slow, name="quick").write(paimon(tmp_path), name="out")


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (slow, parsed, {}),
        (parsed, slow, {}),
        (parsed, cleaned, {}),
        (slow, renamed, {"renamed": {"slow": "quick"}}),
    ],
    ids=["added in front", "removed", "added between", "renamed"],
)
def test_a_changed_program_goes_on_with_the_backlog(
    spark: SparkSession, tmp_path: Path, before: Program, after: Program, options: dict[str, Any]
) -> None:
    """F1, F5: each row once, in the order of its key."""
    write_files(tmp_path / "in", numbered(1200, 2))
    place = tmp_path / "checkpoint"
    query = stop_at(before(spark, tmp_path), deep, checkpoint=place, parallelism=2)
    assert query.manifest().rows_in_flight > 0
    plan = after(spark, tmp_path).start(place, dry_run=True, **options)
    assert plan.fits, str(plan)
    assert any(line.kind == "rows in flight" and line.rows for line in plan.lines)
    query = stop_at(after(spark, tmp_path), lambda _: True, checkpoint=place, parallelism=3, **options)
    finish(after(spark, tmp_path), checkpoint=place, parallelism=2, **options)
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)
