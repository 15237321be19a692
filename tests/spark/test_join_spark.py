"""Joins and deduplicate on Spark, with a restart at another parallelism, against Spark's batch SQL (D4)."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.streams import finish, paimon, rows_in, stream, write_files

SCHEMA = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
DDL = "k bigint, ts timestamp, n bigint"
START = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 11
FILES, ROWS = 3, 400
END = 10**9
"""A row in the last file pushes the watermark past everything; it is left out of the comparison."""

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
    made.append(pa.Table.from_pylist([{"k": 0, "ts": START + timedelta(days=1), "n": END}], schema=SCHEMA))
    return made


def outputs(spark: SparkSession, tmp_path: Path) -> list[pen.Output]:
    a, b = (
        pen.read(stream(spark, tmp_path / name, DDL, files_per_batch=10), name=name, event_time="ts", watermark="60 s")
        for name in ("a", "b")
    )
    joins = [
        a.key_by("k")
        .join(b.key_by("k"), within=("-20 s", "30 s"), how=how, name=how)
        .write(paimon(tmp_path, f"shop.{how}"), name=f"{how}_table")
        for how in ("inner", "left", "right", "full")
    ]
    once = a.key_by("k").deduplicate(name="once").write(paimon(tmp_path, "shop.once"), name="once_table")
    return [*joins, once]


def test_every_kind_of_join_and_deduplicate_equal_sparks_batch_sql(spark: SparkSession, tmp_path: Path) -> None:
    """D4, B1, B2: the second half after a restart with other subtasks; nothing lost, nothing twice."""
    chance = random.Random(SEED)
    files = {"a": tables(chance, 0), "b": tables(chance, 10_000)}
    for part, parallelism in ((slice(0, 2), 2), (slice(2, None), 3)):
        for name, made in files.items():
            write_files(tmp_path / name, made[part], first=part.start)
        finish(*outputs(spark, tmp_path), checkpoint=tmp_path / "checkpoint", parallelism=parallelism, epoch=None)
    for name in files:
        spark.read.schema(DDL).parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    for how in ("inner", "left", "right", "full"):
        wanted = Counter(map(tuple, spark.sql(BATCH.format(how=how, end=END)).collect()))
        rows = [(row["k"], row["n"], row["n_right"]) for row in rows_in(tmp_path, f"shop.{how}")]
        got = Counter(row for row in rows if max(row[1] or 0, row[2] or 0) < END)
        assert got == wanted, how
    wanted = Counter(row["k"] for row in spark.sql("SELECT DISTINCT k FROM a").collect())
    assert Counter(row["k"] for row in rows_in(tmp_path, "shop.once")) == wanted
