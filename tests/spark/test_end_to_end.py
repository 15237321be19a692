"""Whole pipelines on real Spark into a real table, against a plain Spark computation over the same input."""

from __future__ import annotations

import datetime as dt
import math
import os
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

import penstock as pen
from benchmarks.session import with_settings
from penstock.spark.quirks import logfiles, workerpool
from penstock.spark.quirks.streamrdd import FETCHED_MAX
from penstock.spark.stage_job import plan_property
from tests.support.spark_streams import (
    NUMBERED,
    Slow,
    assert_numbered_exactly_once,
    bag,
    busy,
    comparable,
    epochs,
    finish,
    numbered,
    paimon,
    rows_in,
    stream,
    write_files,
)

CORES = 2

# -- stateless operators -----------------------------------------------------------------------------------------------


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["user"], batch["number"], pc.multiply(batch["number"], 2)]
    return pa.RecordBatch.from_arrays(columns, ["user", "number", "twice"])


def repeated(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"number": row["number"], "copy": copy, "twice": row["twice"]} for copy in range(row["user"])]


def test_stateless_operators_do_what_spark_does(spark: SparkSession, tmp_path: Path) -> None:
    """D1."""
    write_files(tmp_path / "in", numbered(200, 2))
    output = (
        pen.read(stream(spark, tmp_path / "in"))
        .map_batches(doubled, "user bigint, number bigint, twice bigint")
        .filter(pc.field("user") > 1)
        .filter(lambda batch: pc.not_equal(batch["user"], 5))
        .flat_map(repeated, "number bigint, copy int, twice bigint")
        .write(paimon(tmp_path))
    )
    finish(output, checkpoint=tmp_path / "checkpoint", parallelism=3)
    expected = (
        spark.read.schema(NUMBERED)
        .parquet(str(tmp_path / "in"))
        .where("user > 1 AND user <> 5")
        .selectExpr("number", "explode(sequence(0, cast(user as int) - 1)) AS copy", "number * 2 AS twice")
    )
    assert bag(rows_in(tmp_path)) == bag(expected.toArrow().to_pylist())


# -- aggregates --------------------------------------------------------------------------------------------------------


def test_the_last_row_of_a_running_aggregate_is_what_spark_computes_over_everything(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D2."""
    write_files(tmp_path / "in", numbered(300, 3))
    output = (
        pen.read(stream(spark, tmp_path / "in").where("number % 5 > 0"))
        .key_by("user")
        .aggregate(
            n=pen.count(),
            total=pen.sum("number"),
            least=pen.min("number"),
            most=pen.max("number"),
            average=pen.mean("number"),
            earliest=pen.first("number"),
            latest=pen.last("number"),
        )
        .write(paimon(tmp_path))
    )
    finish(output, checkpoint=tmp_path / "checkpoint", parallelism=3)
    rows = rows_in(tmp_path)
    final = {row["user"]: row for row in sorted(rows, key=lambda row: row["n"])}
    expected = (
        spark.read.schema(NUMBERED)
        .parquet(str(tmp_path / "in"))
        .where("number % 5 > 0")
        .groupBy("user")
        .agg(
            F.count("*").alias("n"),
            F.sum("number").alias("total"),
            F.min("number").alias("least"),
            F.max("number").alias("most"),
            F.avg("number").alias("average"),
            F.min("number").alias("earliest"),
            F.max("number").alias("latest"),
        )
    )
    assert bag(final.values()) == bag(expected.toArrow().to_pylist())
    assert len(rows) == 7 * 3, "one row per key and epoch"


NAN = math.nan
KEYS = {
    "text": ["", "a", "é", "\U0001f600", "x" * 300, None],
    "real": [0.0, -0.0, NAN, -NAN, 1.5, math.inf, None],
    "single": [0.0, -0.0, NAN, 2.5, None],
    "price": [Decimal("1.10"), Decimal("-1.10"), Decimal("0.00"), None],
    "wide": [Decimal(10**30), Decimal(-(10**30)), Decimal(7), None],
    "day": [dt.date(1960, 1, 1), dt.date(2026, 11, 16), None],
    "at": [dt.datetime(2026, 11, 16, 1, 2, 3, 4, dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC), None],
    "wall": [dt.datetime(2026, 11, 16, 1, 2, 3, 4), dt.datetime(1960, 1, 1), None],  # noqa: DTZ001
    "raw": [b"", b"\x00", b"\xff\x00", None],
    "flag": [True, False, None],
    "whole": [0, -1, 2**31 - 1, None],
}
KEY_TYPES = {
    "text": pa.string(), "real": pa.float64(), "single": pa.float32(), "price": pa.decimal128(9, 2),
    "wide": pa.decimal128(38, 0), "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "wall": pa.timestamp("us"),
    "raw": pa.binary(), "flag": pa.bool_(), "whole": pa.int32(),
}  # fmt: skip
KEYS_DDL = (
    "id bigint, text string, real double, single float, price decimal(9,2), wide decimal(38,0), day date, "
    "at timestamp, wall timestamp_ntz, raw binary, flag boolean, whole int"
)


def key_files(rows: int, files: int) -> list[pa.Table]:
    columns = {name: [values[n % len(values)] for n in range(rows * files)] for name, values in KEYS.items()}
    table = pa.table(
        {"id": pa.array(range(rows * files), pa.int64()), **columns},
        schema=pa.schema([("id", pa.int64()), *KEY_TYPES.items()]),
    )
    return [table.slice(start, rows) for start in range(0, rows * files, rows)]


def assert_groups_as_spark(spark: SparkSession, tmp_path: Path, keys: list[str], table: str) -> None:
    final: dict[Any, dict[str, Any]] = {}
    for row in sorted(rows_in(tmp_path, table), key=lambda row: row["n"]):
        final[tuple(comparable(_normal(row[key])) for key in keys)] = row
    expected = spark.read.schema(KEYS_DDL).parquet(str(tmp_path / "in")).groupBy(*keys).agg(_counted(), _summed())
    wanted = {tuple(comparable(_normal(row[key])) for key in keys): row for row in expected.toArrow().to_pylist()}
    assert {key: (row["n"], row["total"]) for key, row in final.items()} == {
        key: (row["n"], row["total"]) for key, row in wanted.items()
    }, keys


def _normal(value: Any) -> Any:
    return 0.0 if isinstance(value, float) and value == 0 else value


def _counted() -> Column:
    return F.count("*").alias("n")


def _summed() -> Column:
    return F.sum("id").alias("total")


def test_keys_of_every_type_group_as_in_spark_with_nulls_nan_and_both_zeros(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One stream, one keyed stage per type of key."""
    write_files(tmp_path / "in", key_files(80, 2))
    source = pen.read(stream(spark, tmp_path / "in", KEYS_DDL))
    wanted = [[name] for name in KEYS] + [["text", "real", "day"]]
    outputs = [
        source.key_by(*keys)
        .aggregate(n=pen.count(), total=pen.sum("id"), name=f"by_{'_'.join(keys)}")
        .write(paimon(tmp_path, f"shop.by_{'_'.join(keys)}"), name=f"sink_{'_'.join(keys)}")
        for keys in wanted
    ]
    finish(*outputs, checkpoint=tmp_path / "checkpoint", parallelism=2, epoch=None)
    for keys in wanted:
        assert_groups_as_spark(spark, tmp_path, keys, f"shop.by_{'_'.join(keys)}")


def test_keys_that_come_from_another_operator_group_as_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Behind an exchange the hash is computed in Python."""
    write_files(tmp_path / "in", key_files(80, 2))
    passed = pen.read(stream(spark, tmp_path / "in", KEYS_DDL)).map_batches(lambda batch: batch, name="pass_on")
    wanted = [["text"], ["real", "wide"], ["at", "raw"]]
    outputs = [
        passed.key_by(*keys)
        .aggregate(n=pen.count(), total=pen.sum("id"), name=f"by_{'_'.join(keys)}")
        .write(paimon(tmp_path, f"shop.by_{'_'.join(keys)}"), name=f"sink_{'_'.join(keys)}")
        for keys in wanted
    ]
    finish(*outputs, checkpoint=tmp_path / "checkpoint", parallelism=2, epoch=None)
    for keys in wanted:
        assert_groups_as_spark(spark, tmp_path, keys, f"shop.by_{'_'.join(keys)}")


# -- stages ------------------------------------------------------------------------------------------------------------


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    busy(batch.num_rows * 0.001)
    return batch


def test_a_keyed_stage_behind_an_unkeyed_one_sees_every_record_once_and_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    """D3, A8: both stages are interrupted by the barrier."""
    write_files(tmp_path / "in", numbered(400, 2))
    output = (
        pen.read(stream(spark, tmp_path / "in"))
        .map_batches(slowly, name="first")
        .key_by("user")
        .process(Slow, name="second")
        .write(paimon(tmp_path))
    )
    parallelism = {"first": 1, "second": 3}
    events = finish(output, checkpoint=tmp_path / "checkpoint", parallelism=parallelism, epoch="200 ms")
    assert_numbered_exactly_once(rows_in(tmp_path), 800)
    assert any(event.rows_in_flight for event in epochs(events))


def with_worker(batch: pa.RecordBatch) -> pa.RecordBatch:
    pids = pa.array([os.getpid()] * batch.num_rows, pa.int64())
    name = "first" if "first" not in batch.schema.names else "second"
    return pa.RecordBatch.from_arrays([*batch.columns, pids], [*batch.schema.names, name])


def test_all_stages_share_the_python_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads the source is a job of SQL, what comes behind it a plain one: to Spark these are different workers.
    The variables that all jobs of the session have may not change, also not for a moment: other threads read them."""
    context = spark.sparkContext
    monkeypatch.setattr(context, "environment", MappingProxyType(dict(context.environment)))
    write_files(tmp_path / "in", numbered(400, 2))
    output = (
        pen.read(stream(spark, tmp_path / "in"))
        .map_batches(with_worker, "user bigint, number bigint, first bigint")
        .key_by("user")
        .aggregate(first=pen.last("first"))
        .map_batches(with_worker, "user bigint, first bigint, second bigint")
        .write(paimon(tmp_path))
    )
    finish(output, checkpoint=tmp_path / "checkpoint", parallelism=2)
    rows = rows_in(tmp_path)
    assert len({row[name] for row in rows for name in ("first", "second")}) <= CORES
    assert workerpool.VARIABLE not in context.environment


def test_one_stream_can_end_in_two_tables_one_of_them_partitioned(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(100, 2))
    source = pen.read(stream(spark, tmp_path / "in"))
    finish(
        source.write(paimon(tmp_path, "shop.all", partition_by=["user"]), name="all"),
        source.filter(lambda batch: pc.less(batch["number"], 50)).write(paimon(tmp_path, "shop.few"), name="few"),
        checkpoint=tmp_path / "checkpoint",
        parallelism=2,
    )
    assert sorted(row["number"] for row in rows_in(tmp_path, "shop.all")) == list(range(200))
    assert sorted(row["number"] for row in rows_in(tmp_path, "shop.few")) == list(range(50))


def test_two_sources_in_one_query_may_end_at_different_times(spark: SparkSession, tmp_path: Path) -> None:
    """In the later micro-batches one source has no rows at all, which Spark can prove."""
    write_files(tmp_path / "long", numbered(50, 4))
    write_files(tmp_path / "short", [pa.table({"word": ["a", "b", "a"]})])
    longer = pen.read(stream(spark, tmp_path / "long"), name="long").key_by("user").process(Slow, name="slow")
    shorter = pen.read(stream(spark, tmp_path / "short", "word string"), name="short").key_by("word")
    events = finish(
        longer.write(paimon(tmp_path, "shop.long"), name="to_long"),
        shorter.aggregate(n=pen.count(), name="words").write(paimon(tmp_path, "shop.short"), name="to_short"),
        checkpoint=tmp_path / "checkpoint",
        parallelism=2,
    )
    assert_numbered_exactly_once(rows_in(tmp_path, "shop.long"), 200)
    assert bag(rows_in(tmp_path, "shop.short")) == bag([{"word": "a", "n": 2}, {"word": "b", "n": 1}])
    assert len([event for event in epochs(events) if event.kind == "ingest"]) == 4


def test_a_union_of_sources_holds_the_rows_of_all(spark: SparkSession, tmp_path: Path) -> None:
    halves = numbered(100, 4)
    write_files(tmp_path / "left", halves[::2])
    write_files(tmp_path / "right", halves[1::2])
    left, right = (pen.read(stream(spark, tmp_path / side), name=side) for side in ("left", "right"))
    united = left.union(right).key_by("user").aggregate(n=pen.count(), total=pen.sum("number"))
    finish(united.write(paimon(tmp_path)), checkpoint=tmp_path / "checkpoint", parallelism=2)
    final = {row["user"]: row["total"] for row in sorted(rows_in(tmp_path), key=lambda row: row["n"])}
    assert final == {user: sum(range(user, 400, 7)) for user in range(7)}


def test_a_micro_batch_that_spark_can_prove_empty_is_an_epoch_like_any_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", numbered(100, 2))
    empty = stream(spark, tmp_path / "in").where("false")
    output = pen.read(empty).key_by("user").process(Slow, name="slow").write(paimon(tmp_path))
    events = finish(output, checkpoint=tmp_path / "checkpoint", parallelism=2)
    assert [(event.kind, event.rows_in) for event in epochs(events)] == [("ingest", 0)] * 2


# -- values ------------------------------------------------------------------------------------------------------------

PAYLOAD = (
    "id bigint, tiny tinyint, short smallint, whole int, flag boolean, ratio float, x double, price decimal(9,2), "
    "wide decimal(38,10), day date, at timestamp, wall timestamp_ntz, name string, raw binary, tags array<string>, "
    "nested struct<a:bigint,b:struct<c:string,d:array<decimal(9,3)>>>, counts map<string,bigint>, "
    "deep array<struct<k:map<string,struct<t:timestamp>>>>"
)
LONG = 1 << 20


def payload_rows() -> list[dict[str, Any]]:
    at = dt.datetime(2026, 3, 29, 1, 30, 0, 123456, dt.UTC)
    full = {
        "tiny": -128, "short": 32767, "whole": -(2**31), "flag": True, "ratio": 0.1, "x": -0.0,
        "price": Decimal("-1234567.89"), "wide": Decimal("1234567890123456789012345678.0123456789"),
        "day": dt.date(1582, 10, 15), "at": at, "wall": at.replace(tzinfo=None), "name": "é\u0000\U0001f600",
        "raw": bytes(range(256)), "tags": ["a", None, ""], "counts": [("k", 1), ("", None)],
        "nested": {"a": 1, "b": {"c": None, "d": [Decimal("0.001"), None]}},
        "deep": [{"k": [("t", {"t": at})]}, None],
    }  # fmt: skip
    special = {
        "x": NAN, "ratio": math.inf, "name": "", "raw": b"", "tags": [], "counts": [], "deep": [],
        "nested": {"a": None, "b": None}, "at": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        "wall": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
    }  # fmt: skip
    nothing = dict.fromkeys(full)
    long = {**full, "name": "ab" * (LONG // 2), "raw": b"\x00\xff" * (LONG // 2)}
    kinds = [full, {**full, **special}, nothing, full, long]
    return [{"id": n, **kinds[n % len(kinds)]} for n in range(60)]


class HandOn(pen.KeyedProcess):
    """Takes rows as Python values and emits them as they are."""

    output = PAYLOAD

    def process(self, key, rows, state, out):
        busy(len(rows) * 0.01)
        out.emit_many(rows)


def test_values_of_all_types_pass_unchanged_through_segments_user_code_and_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also strings and binaries of a megabyte, and timestamps while the user's session has another time zone."""
    from penstock.spark.schemas import arrow_schema

    table = pa.Table.from_pylist(payload_rows(), schema=arrow_schema(PAYLOAD))
    write_files(tmp_path / "in", [table.slice(0, 30), table.slice(30)])
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    output = (
        pen.read(stream(session, tmp_path / "in", PAYLOAD))
        .key_by("id")
        .process(HandOn, name="hand_on")
        .map_batches(lambda batch: batch)
        .write(paimon(tmp_path))
    )
    events = finish(output, checkpoint=tmp_path / "checkpoint", parallelism=2, epoch="100 ms")
    assert any(event.rows_in_flight for event in epochs(events)), "some rows must have been in a segment"
    assert bag(rows_in(tmp_path)) == bag(payload_rows_as_read(spark, tmp_path))
    assert session.conf.get("spark.sql.session.timeZone") == "America/New_York"
    assert session.conf.get(logfiles.SETTING, None) is None


def test_a_long_plan_travels_in_a_file(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """H2: and nothing of it stays."""
    monkeypatch.setattr(plan_property, "PROPERTY_BYTES_MAX", 0)
    write_files(tmp_path / "in", numbered(50, 2))
    output = pen.read(stream(spark, tmp_path / "in")).key_by("user").process(Slow, name="slow").write(paimon(tmp_path))
    finish(output, checkpoint=tmp_path / "checkpoint", parallelism=2)
    assert_numbered_exactly_once(rows_in(tmp_path), 100)
    assert list((tmp_path / "checkpoint" / "plans").iterdir()) == []


def payload_rows_as_read(spark: SparkSession, tmp_path: Path) -> list[dict[str, Any]]:
    return spark.read.schema(PAYLOAD).parquet(str(tmp_path / "in")).toArrow().to_pylist()


@pytest.mark.parametrize("subtasks", [2, FETCHED_MAX + 1])
def test_settings_of_the_session_hold_for_the_rows_before_the_pipeline(
    spark: SparkSession, tmp_path: Path, subtasks: int
) -> None:
    """Parsers of dates ask in the tasks which policy is set; without an answer they take Spark's default."""
    write_files(tmp_path / "in", numbered(20, 2))
    with with_settings(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        parsed = "from_csv(concat('2026-1-', user + 1), 'day date', map('dateFormat', 'yyyy-MM-dd')).day AS day"
        rows = stream(spark, tmp_path / "in").selectExpr("user", "number", parsed)
        totals = pen.read(rows).key_by("user").aggregate(days=pen.count("day"), rows=pen.count(), name="totals")
        output = totals.write(paimon(tmp_path, primary_key=["user"]))
        finish(output, checkpoint=tmp_path / "checkpoint", parallelism=subtasks)
    found = rows_in(tmp_path)
    assert sum(row["rows"] for row in found) == 40
    assert all(row["days"] == row["rows"] for row in found), "days like 2026-1-1 are dates in the old policy only"
