"""Our aggregates against Spark's over the same rows (D2)."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from penstock.operators.aggregate import functions as pen
from penstock.operators.aggregate.running import RunningAggregate
from tests.support.operator_harness import plain, run_epochs

SCHEMA = pa.schema([
    ("user", pa.string()), ("x", pa.float64()), ("small", pa.int8()), ("amount", pa.int64()), ("price", pa.float32()),
    ("cost", pa.decimal128(9, 3)), ("wide", pa.decimal128(38, 6)), ("day", pa.date32()),
    ("at", pa.timestamp("us", "UTC")), ("flag", pa.bool_()), ("name", pa.string()), ("raw", pa.binary()),
])  # fmt: skip


def random_row(chance: random.Random) -> dict[str, Any]:
    full = {
        "user": chance.choice("abc"),
        "x": chance.choice([0.0, -0.0, math.nan, 1.5]),
        "small": chance.randint(-128, 127),
        "amount": chance.randint(-(2**40), 2**40),
        "price": chance.choice([math.nan, math.inf, chance.randint(-9, 9) / 4]),
        "cost": Decimal(chance.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-3),
        "wide": Decimal(chance.randint(-(10**20), 10**20)).scaleb(-6),
        "day": dt.date(1960, 1, 1) + dt.timedelta(chance.randint(0, 30_000)),
        "at": dt.datetime(1960, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=chance.randint(0, 2_000_000_000)),
        "flag": chance.random() < 0.5,
        "name": chance.choice(["", "a", "Z", "é", "\U0001f600", "\uffff"]),
        "raw": bytes(chance.choices([0, 127, 128, 255], k=chance.randint(0, 3))),
    }
    return {name: None if chance.random() < 0.3 else value for name, value in full.items()}


def test_every_aggregate_over_every_type_equals_sparks(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows = [random_row(chance) for _ in range(400)]
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    ours: dict[str, pen.Aggregate] = {"n": pen.count()}
    theirs = [F.count(F.lit(1)).alias("n")]
    for name in SCHEMA.names[2:]:
        functions = ["count", "min", "max", "first", "last"]
        if name in {"small", "amount", "price", "cost", "wide"}:
            functions += ["sum", "mean"]
        for function in functions:
            ours[f"{function}_{name}"] = getattr(pen, function)(name)
            theirs.append(getattr(F, function)(name).alias(f"{function}_{name}"))
        for function in ("first", "last"):
            ours[f"{function}_known_{name}"] = getattr(pen, function)(name, ignore_nulls=True)
            theirs.append(getattr(F, function)(name, ignorenulls=True).alias(f"{function}_known_{name}"))

    spec = RunningAggregate("all", SCHEMA, ("user", "x"), ours)
    slices = [batch.slice(start, 37) for start in range(0, batch.num_rows, 37)]
    # A later row of a key replaces the earlier one.
    emitted = run_epochs(spec, ("user", "x"), [(1, slices[:4]), (3, slices[4:5]), (2, slices[5:])])
    final = {(row["user"], plain(row["x"])): row for rows in emitted for row in rows}

    frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1).groupBy("user", "x").agg(*theirs)
    wanted = frame.toArrow()
    assert [field.type for field in wanted.schema] == [field.type for field in spec.output_schema]
    expected = {(row["user"], plain(row["x"])): row for row in wanted.to_pylist()}
    assert final.keys() == expected.keys()
    for key, row in expected.items():
        assert {name: plain(item) for name, item in final[key].items()} == {
            name: plain(item) for name, item in row.items()
        }
