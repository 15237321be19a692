"""Joins and deduplicate on Spark, with a restart at another parallelism, against Spark's batch SQL (D4)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from penstock.observe.events import Event
from tests.spark.streams import finish, paimon, rows_in, stream, write_files

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
DDL = "k bigint, ts timestamp, n bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 11
FILES, ROWS = 3, 400
END = 10**9
"""Rows of the last file push the watermark past everything; they are left out of the comparison."""

BATCH = """
SELECT coalesce(a.k, b.k) k, a.n n, b.n n_right
FROM (SELECT * FROM a WHERE n < {end}) a {how} JOIN (SELECT * FROM b WHERE n < {end}) b
ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL 20 SECONDS AND a.ts + INTERVAL 30 SECONDS
"""


def tables(chance: random.Random, first: int) -> list[pa.Table]:
    """Files one minute apart, their rows within it."""
    made = []
    for number in range(FILES):
        rows = [
            {
                "k": chance.choice([None, *range(60)]),
                "ts": START + timedelta(minutes=number, milliseconds=chance.randrange(60_000)),
                "n": first + number * ROWS + i,
            }
            for i in range(ROWS)
        ]
        made.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    far = START + timedelta(days=1)
    made += [
        pa.Table.from_pylist([{"k": 0, "ts": far + timedelta(hours=hour), "n": END + hour}], schema=SCHEMA)
        for hour in range(2)
    ]
    return made


def outputs(spark: SparkSession, tmp_path: Path) -> list[pen.Output]:
    a, b = (
        pen.read(stream(spark, tmp_path / name, DDL), name=name, event_time="ts", watermark="60 s")
        for name in ("a", "b")
    )
    joins = [
        a.key_by("k")
        .join(b.key_by("k"), within=("-20 s", "30 s"), how=how, name=how)
        .write(paimon(tmp_path, f"shop.{how}"), name=f"{how}_table")
        for how in ("inner", "left", "right", "full")
    ]
    once = a.key_by("k").deduplicate(within="10 s", name="once").write(paimon(tmp_path, "shop.once"), name="once_table")
    return [*joins, once]


def once_per_span(rows: list[dict[str, Any]]) -> Counter[int]:
    """In the order of arrival: a file is a micro-batch and has one partition."""
    until: dict[Any, datetime] = {}
    kept: Counter[int] = Counter()
    for row in rows:
        if row["k"] not in until or row["ts"] > until[row["k"]]:
            until[row["k"]] = row["ts"] + timedelta(seconds=10)
            kept[row["n"]] += 1
    return kept


def test_every_kind_of_join_and_deduplicate_equal_sparks_batch_sql(spark: SparkSession, tmp_path: Path) -> None:
    """D4, B1, B2: the second half after a restart with other subtasks; nothing lost, nothing twice."""
    chance = random.Random(SEED)
    files = {"a": tables(chance, 0), "b": tables(chance, 10_000)}
    events: list[Event] = []
    for part, parallelism in ((slice(0, 2), 3), (slice(2, None), 2)):
        for name, made in files.items():
            write_files(tmp_path / name, made[part], first=part.start)
        events += finish(
            *outputs(spark, tmp_path), checkpoint=tmp_path / "checkpoint", parallelism=parallelism, epoch=None
        )
    for name in files:
        spark.read.schema(DDL).parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    for how in ("inner", "left", "right", "full"):
        wanted = Counter(map(tuple, spark.sql(BATCH.format(how=how, end=END)).collect()))
        rows = [(row["k"], row["n"], row["n_right"]) for row in rows_in(tmp_path, f"shop.{how}")]
        got = Counter(row for row in rows if max(row[1] or 0, row[2] or 0) < END)
        assert got == wanted, how
    arrived = [row for table in files["a"] for row in table.to_pylist()]
    assert Counter(row["n"] for row in rows_in(tmp_path, "shop.once")) == once_per_span(arrived)
