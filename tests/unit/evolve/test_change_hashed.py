"""State that was made of hashes, after the type of the column changed."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock as pen
from penstock.errors import CheckpointMismatch
from penstock.testing.inline import stream_of
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, batches_of


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(tmp_path, table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)])


def distinct(job: Changing, kind: str) -> pen.Stream:
    source = stream_of(SCHEMA, "orders").map_batches(job.slow, name="slow")
    typed = source.select("user", value=f"CAST(number % 10 AS {kind})", name="typed")
    return typed.key_by("user").aggregate(values=pen.approx_count_distinct("value"), name="totals")


@pytest.mark.parametrize("kind", ["BIGINT"], ids=["an approximate count is of a column that gets another type"])
def test_hashes_of_another_type_are_not_counted_together(job: Changing, kind: str) -> None:
    """Bigint and int hash the same number in another way: each would count twice."""
    job.start_and_leave_behind(distinct(job, "INT").write(job.sink(), name="out"))
    changed = distinct(job, kind).write(job.sink(), name="out")
    with pytest.raises(CheckpointMismatch, match=r"values of int32, pipeline has .* values of int64"):
        job.finish(changed)
    job.finish(changed, reset=["totals"], restore=job.query_ids()[-1])
    assert most(job) <= 10


def test_hashes_of_small_integers_are_those_of_int(job: Changing) -> None:
    job.start_and_leave_behind(distinct(job, "INT").write(job.sink(), name="out"))
    job.finish(distinct(job, "SMALLINT").write(job.sink(), name="out"))
    assert most(job) == 10


def most(job: Changing) -> int:
    return max({row["user"]: row["values"] for row in job.rows()}.values())
