"""SQL text behind operators, against the values and types that Spark has in ANSI mode."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.operators.sql.parser import computed, expression_of
from penstock.operators.sql.tokens import SqlError
from penstock.spark.schemas import arrow_type
from penstock.testing import Harness, stream_of
from tests.support.sql_values import DECIMALS, LARGE, NOT_LOOKED_AT, ROUNDED, SCHEMA


def made(sql: str, **row: Any) -> pa.Array:
    table = pa.Table.from_pylist([row], SCHEMA)
    return computed(table, {"x": expression_of(sql, SCHEMA, arrow_type)}).column(0).combine_chunks()


def value(sql: str, **row: Any) -> Any:
    return made(sql, **row).to_pylist()[0]


@pytest.mark.parametrize(("sql", "row", "expected"), LARGE)
def test_large_whole_numbers_beside_doubles(sql: str, row: dict[str, Any], expected: Any) -> None:
    """Every bigint above 2^53 failed the query: 'not in range'."""
    assert value(sql, **row) == expected


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("i + f", pa.float64()), ("f + 1", pa.float64()), ("f + f", pa.float32()), ("coalesce(f, 0)", pa.float64()),
        ("if(ok, f, b)", pa.float64()), ("CASE WHEN ok THEN f ELSE 1 END", pa.float64()), ("ceil(i)", pa.int64()),
        ("floor(y)", pa.int64()), ("-2147483648", pa.int32()), ("round(f, 1)", pa.float32()),
        ("y % y", pa.int8()), ("y + y", pa.int8()), ("m / m", pa.decimal128(23, 13)), ("m / 3", pa.decimal128(14, 6)),
        ("day + INTERVAL 1 DAY", pa.date32()), ("day + INTERVAL 1 HOUR", pa.timestamp("us", "UTC")),
        ("day - day", pa.duration("us")), ("date_trunc('month', day)", pa.timestamp("us", "UTC")),
    ],
)  # fmt: skip
def test_the_type_is_that_of_spark(sql: str, kind: pa.DataType) -> None:
    assert made(sql).type == kind


@pytest.mark.parametrize(("sql", "row", "expected"), DECIMALS)
def test_decimals(sql: str, row: dict[str, Any], expected: Any) -> None:
    """Arrow compared decimals of one precision by their digits alone, so 1.00 was not 1.0000000; 5.00 / 2.00 was 2."""
    assert value(sql, **row) == expected


@pytest.mark.parametrize(("sql", "row", "expected"), ROUNDED)
def test_rounding_goes_by_the_number_as_it_is_printed(sql: str, row: dict[str, Any], expected: Any) -> None:
    assert value(sql, **row) == expected


def test_rounding_every_tie_up_to_a_thousand() -> None:
    ties = [number / 1000 for number in range(5, 1_000_000, 10)]
    table = pa.table({"d": ties})
    found = computed(table, {"x": expression_of("round(d, 2)", table.schema, arrow_type)}).column(0).to_pylist()
    assert found == [(number + 5) // 10 / 100 for number in range(5, 1_000_000, 10)]


@pytest.mark.parametrize("function", ["ln", "log10"])
def test_a_logarithm_of_no_positive_number_is_null(function: str) -> None:
    assert [value(f"{function}(d)", d=number) for number in (0.0, -1.0, None, 1.0)] == [None, None, None, 0.0]


@pytest.mark.parametrize(("sql", "row", "expected"), NOT_LOOKED_AT)
def test_what_is_not_looked_at_does_not_fail(sql: str, row: dict[str, Any], expected: Any) -> None:
    """Arrow computes every branch for every row."""
    assert value(sql, **row) == expected


@pytest.mark.parametrize(
    "sql", ["CASE WHEN i = 0 THEN b / i ELSE 0 END", "i = 0 AND b / i > 1", "coalesce(CAST(NULL AS INT), b % i)"]
)
def test_what_is_looked_at_fails(sql: str) -> None:
    with pytest.raises(pa.ArrowInvalid):
        value(sql, b=1, i=0)


@pytest.mark.parametrize(
    ("sql", "text", "expected"),
    [
        (r"s RLIKE '^\\d+$'", "5", True),
        (r"s RLIKE '^\d+$'", "d", True),  # as Spark reads it, the backslash is gone
        (r"s RLIKE r'^\d+$'", "5", True),
        (r"s = 'a\nb'", "a\nb", True),
        (r"s = 'it\'s'", "it's", True),
        (r's = "a\"b"', 'a"b', True),
        (r"s = '\u00e9\101'", "éA", True),
        (r"s = 'c:\\tea'", r"c:\tea", True),
        (r"s LIKE 'a\_c'", "abc", False),
        (r"s LIKE 'a\_c'", "a_c", True),
        (r"s LIKE '100\%'", "100%", True),
        (r"s LIKE '100\%'", "1000", False),
        (r"s LIKE 'c:\\\\%'", r"c:\tea", True),
        (r"s LIKE '%\\\\'", r"c:\tea", False),
        (r"s LIKE '%\\\\t_a'", r"c:\tea", True),
        (r"s LIKE r'%\\.%'", "c:\\.\n", True),
        (r"s LIKE '%\\\\.%'", "c:\\x", False),
        ("s = 'it''s'", "it's", True),
        ("replace(s, '', 'x') = s", "tea", True),
        ("CAST(s AS INT) = 5", " +5 ", True),
        ("CAST(s AS DOUBLE) = 5", " 5 ", True),
        ("CAST(s AS DECIMAL(10, 2)) = CAST(-1.01 AS DECIMAL(10, 2))", " -1.005", True),
        ("CAST(s AS DECIMAL(10, 2)) = 12", "1.2e1", True),
    ],
)
def test_text(sql: str, text: str, expected: bool) -> None:
    assert value(sql, s=text) is expected


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2024-01-31 12:00:00", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("2024-01-31T12:00:00.5", datetime(2024, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),
        (" 2024-01-31 ", datetime(2024, 1, 31, tzinfo=UTC)),
        ("1960-01-31 12:00", datetime(1960, 1, 31, 12, tzinfo=UTC)),
        ("2024-01-31 12:00:00Z", datetime(2024, 1, 31, 12, tzinfo=UTC)),
        ("2024-01-31 12:00:00+05:00", datetime(2024, 1, 31, 7, tzinfo=UTC)),
        (None, None),
    ],
)
def test_text_as_a_timestamp_is_in_utc_without_a_zone(text: str | None, moment: datetime | None) -> None:
    assert value("CAST(s AS TIMESTAMP)", s=text) == moment


def test_dates_and_spans() -> None:
    day = date(1969, 12, 31)
    assert value("day + INTERVAL 1 DAY", day=day) == date(1970, 1, 1)
    assert value("day - INTERVAL 2 DAYS", day=day) == date(1969, 12, 29)
    assert value("day + INTERVAL 36 HOURS", day=day) == datetime(1970, 1, 1, 12, tzinfo=UTC)


def test_times_of_another_zone_are_in_utc() -> None:
    moment = datetime(1970, 1, 1, 23, 30, tzinfo=UTC)
    table = pa.table({"ts": pa.array([moment], pa.timestamp("us", "Europe/Berlin"))})
    texts = {"hour": "hour(ts)", "day": "to_date(ts)", "begin": "date_trunc('day', ts)"}
    made = {name: expression_of(sql, table.schema, arrow_type) for name, sql in texts.items()}
    assert computed(table, made).to_pylist() == [
        {"hour": 23, "day": date(1970, 1, 1), "begin": datetime(1970, 1, 1, tzinfo=UTC)}
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "i IN ()",
        "9223372036854775808",
        "b--1",
        "CAST(fine AS STRING)",
        "INTERVAL 1 DAY - day",
        r"s = '\ud800'",
        "day + 1",
    ],
)
def test_what_differs_is_refused(sql: str) -> None:
    with pytest.raises(SqlError):
        value(sql)


def test_text_as_a_number_is_decimal() -> None:
    with pytest.raises(pa.ArrowInvalid):
        value("CAST(s AS INT)", s="0x10")


def test_in_a_pipeline() -> None:
    orders = stream_of(pa.schema({"id": pa.int64(), "cost": pa.decimal128(10, 2), "units": pa.int32()}), "orders")
    each = orders.filter("id > 0.5").with_column("each", "CASE WHEN units > 0 THEN cost / units END")
    found = Harness(each, parallelism=1).feed([
        {"id": 2**60 + 1, "cost": Decimal("5.00"), "units": 2},
        {"id": 1, "cost": Decimal("5.00"), "units": 0},
    ])  # fmt: skip
    assert [row["each"] for row in found] == [Decimal("2.5"), None]
