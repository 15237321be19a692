"""A fork beside its running original, on real Spark with real tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import ForkRefused
from tests.support.spark_streams import (
    Slow,
    assert_numbered_exactly_once,
    deep,
    numbered,
    paimon,
    rows_in,
    start_until,
    stream,
    write_files,
)


def program(spark: SparkSession, tmp_path: Path, table: str) -> pen.Output:
    orders = pen.read(stream(spark, tmp_path / "in"))
    return orders.key_by("user").process(Slow, name="slow").write(paimon(tmp_path, table), name="out")


@pytest.mark.slow  # a rehearsal beside its original and a change that is a fork are always run
def test_a_fork_reads_on_beside_its_running_original_and_both_are_right(spark: SparkSession, tmp_path: Path) -> None:
    """F7: a backlog in flight, one Spark session, two streaming queries over the same files."""
    write_files(tmp_path / "in", numbered(1200, 3))
    here, place = tmp_path / "checkpoint", tmp_path / "fork"
    query = start_until(program(spark, tmp_path, "shop.rows"), deep, checkpoint=here, parallelism=2, retain=1)
    with pytest.raises(ForkRefused, match=r"shop\.rows"):
        program(spark, tmp_path, "shop.rows").start(place, restore=here, fork=True)
    assert not place.exists()
    fork = program(spark, tmp_path, "shop.fork").start(
        place, restore=here, fork=True, trigger="available_now", epoch="200 ms", parallelism=1
    )
    assert fork.await_termination(120)
    assert query.await_termination(120)
    rows = rows_in(tmp_path)
    assert_numbered_exactly_once(rows, 3600)
    forked = {(row["user"], row["number"], row["nth"]) for row in rows_in(tmp_path, "shop.fork")}
    assert len(forked) == len(rows_in(tmp_path, "shop.fork"))
    assert forked <= {(row["user"], row["number"], row["nth"]) for row in rows}
    begun = json.loads((place / "restored.json").read_bytes())["checkpoint"]
    before = sum(commit.rows for commit in query.commits() if commit.last <= begun)
    assert len(forked) <= 3600 - before
    assert {number for _, number, _ in forked} >= set(range(2400, 3600))
