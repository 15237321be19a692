"""``format("penstock")`` on Spark, of a running query: what the engine holds, no file lost in the middle (G1, G6)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from penstock.protocol.layout import READERS
from penstock.store import open_store
from penstock.testing.tables import Memory
from tests.support.spark_streams import Slow, numbered, stream, wait_until, write_files

ROWS, FILES = 3000, 3


def loaded(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**options).load(str(folder))


def bag(rows: list[Any]) -> Counter[str]:
    return Counter(repr(sorted((row.asDict() if hasattr(row, "asDict") else row).items())) for row in rows)


@pytest.mark.slow
def test_spark_reads_a_running_query_as_it_is_and_to_the_end(spark: SparkSession, tmp_path: Path) -> None:
    """One session, one query: every kind of table, a checkpoint that is held, a DataFrame older than its checkpoint."""
    pen.register(spark)
    write_files(tmp_path / "in", numbered(ROWS, FILES))
    folder = tmp_path / "checkpoint"
    rows = pen.read(stream(spark, tmp_path / "in", files_per_batch=FILES), name="numbers")
    slow = rows.key_by("user").process(Slow, name="work")
    totals = slow.key_by("user").aggregate(n=pen.count(), last=pen.max("number"), name="totals")
    query = totals.write(Memory("looked at"), name="table").start(folder, epoch="300 ms", parallelism=2, retain=2)
    try:
        wait_until(lambda: (told := query.progress()) is not None and told.rows_in_flight > 0)
        old = loaded(spark, folder, edge="numbers-to-work")
        state = loaded(spark, folder, operator="totals")
        held = loaded(spark, folder, operator="work")
        assert {"user", "seen", "_key_group"} == set(held.columns)
        held.count()  # planned now: its lease keeps the checkpoint
        leased = min(int(entry.path.partition("/")[2][:10]) for entry in open_store(str(folder)).list(READERS))
        begun = query.manifest().checkpoint
        wait_until(lambda: query.manifest().checkpoint > begun + 4)
        assert leased in query.checkpoints()
        look = pen.open(folder, checkpoint=leased)
        edges = {edge: loaded(spark, folder, edge=edge, checkpoint=str(leased)) for edge in look.edges}
        for edge, frame in edges.items():
            assert bag(frame.collect()) == bag(look.in_flight(edge).to_pylist())
        for operator, table in look.states:
            name = f"{operator}/{table}" if table else operator
            frame = loaded(spark, folder, operator=name, checkpoint=str(leased))
            assert bag(frame.collect()) == bag(look.state(operator, table).to_pylist())
        one = loaded(spark, folder, operator="work", checkpoint=str(leased)).where("user = 3").collect()
        assert bag(one) == bag(look.state("work", key=3).to_pylist())
        # Rows that came out of the first stage and rows before it are all rows.
        waiting = edges["numbers-to-work"].count()
        seen = sum(row["seen"] for row in look.state("work").to_pylist())
        assert seen + waiting == look.manifest.edges["numbers-to-work"].accepted
        # DataFrames whose checkpoint is long gone go on with the newest one.
        assert old.count() <= ROWS * FILES
        assert sum(row["n"] for row in state.collect()) > 0
        assert loaded(spark, folder, table="epochs").count() > 0
        assert loaded(spark, folder, table="files").count() > 0
        assert query.is_active
    finally:
        query.stop()
