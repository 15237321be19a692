"""Spark SQL on streams: pushed into the source, refused behind an operator."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as pen
from penstock.errors import PipelineError
from penstock.graph.nodes import SourceNode
from penstock.operators.sql.parser import computed, expression_of
from penstock.sinks.paimon.read import read_table
from penstock.spark.schemas import arrow_type
from tests.support import sql_values
from tests.support.sql_texts import SQL_TEXTS, sql_table

pytestmark = pytest.mark.spark


def orders(spark: SparkSession, folder: Path) -> pen.Stream:
    folder.mkdir(exist_ok=True)
    rows = [(n % 5, n, n * 0.5, f"2026-11-16 03:00:{n % 60:02d}") for n in range(200)]
    frame = spark.createDataFrame(rows, "user long, quantity long, price double, ts string")
    frame.selectExpr("user", "quantity", "price", "cast(ts AS timestamp) AS ts").write.mode("overwrite").parquet(
        str(folder / "in")
    )
    schema = "user long, quantity long, price double, ts timestamp"
    return pen.read(spark.readStream.schema(schema).parquet(str(folder / "in")), name="orders", event_time="ts")


def test_select_where_and_expressions_give_what_batch_sql_gives(spark: SparkSession, tmp_path: Path) -> None:
    """Item 8: text in the source and in aggregates; two streams of one source."""
    source = orders(spark, tmp_path)
    many = source.filter("quantity > 20").with_column("value", "price * quantity").select("user", "value", "ts")
    totals = (
        source.where("quantity % 2 = 0")
        .key_by("user")
        .aggregate(value=pen.sum("price * quantity"), most=pen.max("quantity + 1"), name="totals")
    )
    pen.start(
        many.write(pen.Paimon(str(tmp_path / "lake"), "db.many"), name="many"),
        totals.write(pen.Paimon(str(tmp_path / "lake"), "db.totals"), name="totals_table"),
        checkpoint=tmp_path / "checkpoint",
        trigger="available_now",
        epoch=None,
        parallelism=2,
    ).await_termination()
    batch = spark.read.parquet(str(tmp_path / "in"))
    wanted = batch.where("quantity > 20").selectExpr("user", "price * quantity AS value", "ts").collect()
    found = read_table(str(tmp_path / "lake"), "db.many").to_pylist()
    assert sorted((row["user"], row["value"]) for row in found) == sorted((row.user, row.value) for row in wanted)
    expected = (
        batch.where("quantity % 2 = 0")
        .groupBy("user")
        .agg(F.expr("sum(price * quantity) AS value"), F.expr("max(quantity + 1) AS most"))
        .collect()
    )
    rows = read_table(str(tmp_path / "lake"), "db.totals").to_pylist()
    newest = {row["user"]: (row["value"], row["most"]) for row in rows}
    assert newest == {row.user: (row.value, row.most) for row in expected}


def test_windows_take_expressions_too(spark: SparkSession, tmp_path: Path) -> None:
    """Item 8: the computed column is in front of the operator, not among its results."""
    windowed = orders(spark, tmp_path).key_by("user").window(pen.tumbling_window("10 s"))
    stream = windowed.aggregate(value=pen.sum("price * quantity"), name="windows")
    assert stream.schema.names == ["user", "window_start", "window_end", "value"]


def test_what_cannot_be_pushed_down_is_refused_in_words(spark: SparkSession, tmp_path: Path) -> None:
    """E5."""
    source = orders(spark, tmp_path)
    behind = source.map_batches(lambda batch: batch)
    with pytest.raises(PipelineError, match=r"filter\('soundex.*is not known behind an operator") as behind_one:
        behind.filter("soundex(quantity) > 1")
    assert "an Arrow expression" in behind_one.value.next_step
    assert behind.key_by("user").aggregate(n=pen.sum("price * quantity")).schema.names == ["user", "n"]
    with pytest.raises(PipelineError, match="quantitty"):
        source.where("quantitty > 1")
    with pytest.raises(PipelineError, match="Spark SQL cannot read it"):
        source.select("quantity +")
    with pytest.raises(PipelineError, match="several rows at once"):
        source.select("sum(quantity)", "max(ts) AS ts")
    with pytest.raises(PipelineError, match="several rows at once"):
        source.select("ts", "row_number() OVER (PARTITION BY user ORDER BY ts) AS nth")
    with pytest.raises(PipelineError, match="other rows each time"):
        source.with_column("dice", "rand()")
    with pytest.raises(PipelineError, match="several rows of one"):
        source.key_by("user").aggregate(n=pen.sum("explode(array(1, 2))"))
    with pytest.raises(PipelineError, match="drops the event time 'ts'"):
        source.select("user")
    with pytest.raises(PipelineError, match="quantitty"):
        source.key_by("user").aggregate(n=pen.sum("quantitty"))


def test_dropped_and_renamed_columns_of_a_source_never_leave_spark(spark: SparkSession, tmp_path: Path) -> None:
    made = orders(spark, tmp_path).drop("price").rename({"user": "a.b", "quantity": "n"})
    assert made.schema.names == ["a.b", "n", "ts"]
    assert isinstance(made.node, SourceNode)
    output = made.with_column("twice", pc.field("n") * 2).drop("ts").write(pen.Paimon(str(tmp_path / "lake"), "db.n"))
    output.start(checkpoint=tmp_path / "checkpoint", trigger="available_now", parallelism=2).await_termination()
    rows = read_table(str(tmp_path / "lake"), "db.n").to_pylist()
    assert sorted((row["n"], row["a.b"], row["twice"]) for row in rows) == [(n, n % 5, 2 * n) for n in range(200)]


def test_sql_behind_operators_gives_what_spark_gives(spark: SparkSession) -> None:
    """Values and types; see `tests/support/sql_texts.py` for the texts."""
    table = sql_table()
    frame = spark.createDataFrame(table)
    for text in SQL_TEXTS:
        wanted = frame.selectExpr(f"{text} AS made").toArrow().column(0)
        found = computed(table, {"made": expression_of(text, table.schema, arrow_type)}).column(0)
        assert found.to_pylist() == wanted.to_pylist(), text
        assert found.type == wanted.type or str(found.type).startswith("decimal"), (text, found.type, wanted.type)


def test_the_values_that_tests_without_spark_expect_are_those_of_spark(spark: SparkSession) -> None:
    cases = (*sql_values.LARGE, *sql_values.DECIMALS, *sql_values.ROUNDED, *sql_values.NOT_LOOKED_AT)
    asked = [(sql, row, wanted) for sql, row, wanted in cases if sql not in sql_values.OUR_OWN]
    assert len(asked) > 50
    for sql, row, wanted in asked:
        frame = spark.createDataFrame(pa.Table.from_pylist([row], sql_values.SCHEMA))
        assert frame.selectExpr(f"{sql} AS made").toArrow().column(0).to_pylist() == [wanted], (sql, row)
