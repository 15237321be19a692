"""Tables with a primary key on real Spark, against Spark's own batch computation over the same input (C10)."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as pen
from penstock.observe.events import Event
from penstock.sinks.paimon.commit import PaimonCommitter
from tests.support.readers import merged_by_polars
from tests.support.spark_streams import TIMEOUT_S, bag, epochs, finish, paimon, rows_in, stream, write_files

CHANGES = "number bigint, day string, user bigint, word string, op string"


def changes(seed: int, files: int, rows: int) -> list[pa.Table]:
    """Inserts, updates and deletes of a few users on a few days; numbers tell the order."""
    dice = random.Random(seed)
    tables = []
    for file in range(files):
        numbers = list(range(file * rows, (file + 1) * rows))
        columns: dict[str, list[Any]] = {
            "number": numbers,
            "day": [dice.choice(["mon", "tue"]) for _ in numbers],
            "user": [dice.randrange(20) for _ in numbers],
            "word": [dice.choice([None, f"word {number}"]) for number in numbers],
            "op": [dice.choice(["c", "u", "u", "d"]) for _ in numbers],
        }
        tables.append(pa.table(columns))
    return tables


@pytest.fixture
def late_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Commits of this driver wait until the event is set."""
    allowed = threading.Event()
    commit = PaimonCommitter.commit

    def wait_first(self: PaimonCommitter, *args: Any, **kwargs: Any) -> Any:
        assert allowed.wait(TIMEOUT_S)
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(PaimonCommitter, "commit", wait_first)
    return allowed


def test_tables_hold_what_spark_computes_over_everything(
    spark: SparkSession, tmp_path: Path, late_commits: threading.Event
) -> None:
    """C10, C2: running totals and a mirror of changes; commits lag behind, the query goes on with fewer subtasks."""
    write_files(tmp_path / "in", changes(1, 3, 300))
    read: list[Event] = []

    def outputs() -> list[pen.Output]:
        source = pen.read(stream(spark, tmp_path / "in", CHANGES), name="changes")
        totals = source.key_by("user").aggregate(n=pen.count(), newest=pen.max("number"), name="totals")
        mirror = paimon(
            tmp_path, "shop.mirror", primary_key=["day", "user"], partition_by=["day"], buckets=2, row_kind="op"
        )
        return [
            totals.write(paimon(tmp_path, "shop.totals", primary_key=["user"]), name="totals_table"),
            source.write(mirror, name="mirror"),
        ]

    def allow_after_two(event: Event) -> None:
        read.append(event)
        if len(epochs(read)) == 2:
            late_commits.set()

    finish(*outputs(), checkpoint=tmp_path / "checkpoint", parallelism=3, on_event=allow_after_two)
    assert len(epochs(read)) >= 3
    write_files(tmp_path / "in", changes(2, 5, 300)[3:], first=3)
    finish(*outputs(), checkpoint=tmp_path / "checkpoint", parallelism=2)

    everything = spark.read.schema(CHANGES).parquet(str(tmp_path / "in"))
    totals = everything.groupBy("user").agg(F.count("*").alias("n"), F.max("number").alias("newest"))
    assert bag(rows_in(tmp_path, "shop.totals")) == bag(totals.toArrow().to_pylist())
    newest = everything.groupBy("day", "user").agg(F.max_by(F.struct("number", "word", "op"), "number").alias("row"))
    mirror = newest.where("row.op <> 'd'").selectExpr("row.number", "day", "user", "row.word")
    assert bag(rows_in(tmp_path, "shop.mirror")) == bag(mirror.toArrow().to_pylist())
    for table in ("shop.totals", "shop.mirror"):
        assert bag(merged_by_polars(paimon(tmp_path, table))) == bag(rows_in(tmp_path, table))
