"""Columns chosen, added, dropped and renamed behind an operator, by Arrow."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.api.stream import Stream
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema({"user": pa.int64(), "amount": pa.int64(), "ts": pa.timestamp("us", "UTC")})
ROWS = [{"user": n, "amount": 10 * n, "ts": n * 1_000_000} for n in range(3)]


def orders() -> Stream:
    return stream_of(SCHEMA, event_time="ts").map_batches(lambda batch: batch, name="as_it_is")


def rows_of(stream: Stream) -> list[dict[str, Any]]:
    return Harness(stream).feed(ROWS)


def test_with_column_adds_a_column_whose_type_arrow_tells() -> None:
    stream = orders().with_column("twice", pc.field("amount") * 2)
    assert stream.schema.field("twice").type == pa.int64()
    assert [row["twice"] for row in rows_of(stream)] == [0, 20, 40]


def test_with_column_replaces_a_column_in_its_place() -> None:
    stream = orders().with_column("amount", pc.field("amount").cast(pa.string()))
    assert stream.schema.names == SCHEMA.names
    assert [row["amount"] for row in rows_of(stream)] == ["0", "10", "20"]


def test_select_takes_names_keywords_and_mappings() -> None:
    stream = orders().select("user", {"name": pc.field("amount")}, half=pc.divide(pc.field("amount"), 2))
    assert stream.schema.names == ["user", "name", "half"]
    assert rows_of(stream)[2] == {"user": 2, "name": 20, "half": 10}


def test_sql_text_is_computed_by_arrow_behind_an_operator() -> None:
    stream = orders().with_column("half", "amount / 2").select("*", "user + 1 AS next", late="ts > '2024-01-01'")
    assert [str(kind) for kind in stream.schema.types[3:]] == ["double", "int64", "bool"]
    assert rows_of(stream)[1] == {**rows_of(orders())[1], "half": 5.0, "next": 2, "late": False}


def test_aggregates_over_sql_text_work_behind_an_operator() -> None:
    from penstock import sum as total_of

    totals = orders().key_by("user").aggregate(total=total_of("amount * 3 + 1"), name="totals")
    assert totals.schema.names == ["user", "total"]
    assert sorted(row["total"] for row in rows_of(totals)) == [1, 31, 61]


def test_drop_and_rename_keep_the_order_of_columns() -> None:
    stream = orders().drop("ts").rename({"user": "account"})
    assert stream.schema.names == ["account", "amount"]
    assert rows_of(stream) == [{"account": n, "amount": 10 * n} for n in range(3)]


def test_event_time_comes_along_while_its_column_does() -> None:
    assert orders().with_column("twice", pc.field("amount") * 2).event_time == "ts"
    assert orders().drop("ts").event_time is None


def test_columns_work_behind_aggregates() -> None:
    from penstock import sum as total_of

    totals = orders().key_by("user").aggregate(total=total_of("amount"), name="totals")
    stream = totals.with_column("large", pc.field("total") > 5).filter(pc.field("large")).select("user")
    assert sorted(row["user"] for row in rows_of(stream)) == [1, 2]


def test_a_record_that_an_expression_fails_on_can_be_a_dead_letter() -> None:
    shares = orders().with_column(
        "share", pc.divide(pc.scalar(100), pc.field("amount")), name="shares", on_error="dead_letter"
    )
    (letter,) = rows_of(shares.side("dead_letters"))
    assert "divide by zero" in letter["message"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda s: s.with_column("x", pc.field("amuont") * 2), "amuont"),
        (lambda s: s.with_column("x", pc.field("ts") * 2), "cannot be computed"),
        (lambda s: s.with_column("x", 5), "is int 5"),
        (lambda s: s.with_column("x", pc.scalar(None)), "has no type"),
        (lambda s: s.with_column("x", "amount **"), "wanted a column or a value"),
        (lambda s: s.select("amount * 2"), "needs a name"),
        (lambda s: s.select("amuont"), "no column 'amuont'"),
        (lambda s: s.select(pc.field("amount")), "needs a name"),
        (lambda s: s.select("user", user=pc.field("amount")), "two columns would be called 'user'"),
        (lambda s: s.select(user=lambda batch: batch), "is function"),
        (lambda s: s.drop("nope"), "'nope'"),
        (lambda s: s.drop("user", "amount", "ts"), "leaves no column"),
        (lambda s: s.rename({"user": "amount"}), "two columns would be called 'amount'"),
        (lambda s: s.rename({"nope": "x"}), "'nope'"),
    ],
)
def test_what_cannot_be_computed_is_refused_when_it_is_written(make: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        make(orders())
