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

SCHEMA = pa.schema({
    "i": pa.int32(), "b": pa.int64(), "y": pa.int8(), "f": pa.float32(), "d": pa.float64(), "s": pa.string(),
    "ok": pa.bool_(), "day": pa.date32(), "m": pa.decimal128(10, 2), "fine": pa.decimal128(10, 7),
})  # fmt: skip
BIG = 2**53 + 1


def made(sql: str, **row: Any) -> pa.Array:
    table = pa.Table.from_pylist([row], SCHEMA)
    return computed(table, {"x": expression_of(sql, SCHEMA, arrow_type)}).column(0).combine_chunks()


def value(sql: str, **row: Any) -> Any:
    return made(sql, **row).to_pylist()[0]


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("b / 2", {"b": BIG}, BIG / 2),
        ("b / 1000000000", {"b": 1_700_000_000_123_456_789}, 1_700_000_000_123_456_789 / 1e9),
        ("b * 1.5", {"b": BIG}, BIG * 1.5),
        ("b > 1.5", {"b": BIG}, True),
        ("sqrt(b) > 1", {"b": BIG}, True),
        ("CAST(b AS DOUBLE)", {"b": BIG}, float(BIG)),
        ("greatest(b, 0.5)", {"b": BIG}, float(BIG)),
        ("b = f", {"b": 2**24 + 1, "f": float(2**24)}, False),
        ("b % -1", {"b": -(2**63)}, 0),
        ("b % i", {"b": -7, "i": 3}, -1),
        ("-9223372036854775808 + b", {"b": 1}, 1 - 2**63),
    ],
)
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


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("m / m", {"m": Decimal("1.25")}, Decimal(1)),
        ("m / (m + m + m)", {"m": Decimal("5.00")}, Decimal("0.333333333333333")),
        ("m / 3", {"m": Decimal("2.00")}, Decimal("0.666667")),
        ("m / CAST(2 AS DECIMAL(10, 2))", {"m": Decimal("5.00")}, Decimal("2.5")),
        ("b / m", {"m": Decimal("3.00"), "b": -2}, Decimal("-0.66666666667")),
        ("m / d", {"m": Decimal("3.00"), "d": 2.0}, 1.5),
        ("m = fine", {"m": Decimal("1.00"), "fine": Decimal("1.0000000")}, True),
        ("m <=> fine", {"m": Decimal("1.00"), "fine": Decimal("1.0000000")}, True),
        ("m < fine", {"m": Decimal("1.00"), "fine": Decimal("0.5000000")}, False),
        ("m IN (fine)", {"m": Decimal("1.00"), "fine": Decimal("1.0000000")}, True),
        ("m BETWEEN fine AND 5", {"m": Decimal("1.00"), "fine": Decimal("1.0000000")}, True),
        ("nullif(m, fine)", {"m": Decimal("1.00"), "fine": Decimal("1.0000000")}, None),
        ("coalesce(m, fine)", {"fine": Decimal("1.5")}, Decimal("1.5")),
        ("greatest(m, 0)", {"m": Decimal("-1.00")}, Decimal(0)),
        ("m + fine * 2", {"m": Decimal("1.00"), "fine": Decimal("0.0000001")}, Decimal("1.0000002")),
    ],
)
def test_decimals(sql: str, row: dict[str, Any], expected: Any) -> None:
    """Arrow compared decimals of one precision by their digits alone, so 1.00 was not 1.0000000; 5.00 / 2.00 was 2."""
    assert value(sql, **row) == expected


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        *(
            ("round(d, 2)", {"d": number}, nearest)
            for number, nearest in [
                (1.005, 1.01), (0.285, 0.29), (2.675, 2.68), (-1.005, -1.01), (0.29, 0.29), (8.345, 8.35),
                (1e300, 1e300), (1.0049999999999, 1.0), (float("inf"), float("inf")), (12345678.125, 12345678.13),
            ]
        ),
        ("round(d, 8)", {"d": 41821765.1}, 41821765.1),
        ("round(d, 2)", {"d": float("nan")}, pytest.approx(float("nan"), nan_ok=True)),
        ("round(d)", {"d": 2.5}, 3.0),
        ("round(d)", {"d": 0.49999999999999994}, 0.0),
        ("round(d, -2)", {"d": -1250.0}, -1300.0),
        ("round(d, 400)", {"d": 1.5}, 1.5),
        ("round(i, -1)", {"i": 25}, 30),
        ("round(f, 2)", {"f": 2.675}, 2.680000066757202),
        ("round(m, 1)", {"m": Decimal("2.25")}, Decimal("2.30")),
        ("CAST(d AS DECIMAL(10, 2))", {"d": 1.005}, Decimal("1.01")),
        ("CAST(d AS DECIMAL(10, 2))", {"d": 0.125}, Decimal("0.13")),
        ("CAST(d AS DECIMAL(10, 0))", {"d": -2.5}, Decimal(-3)),
        ("CAST(m AS DECIMAL(10, 1))", {"m": Decimal("1.25")}, Decimal("1.3")),
        ("CAST(m AS INT)", {"m": Decimal("-1.50")}, -1),
        ("CAST(d AS INT)", {"d": -1.9}, -1),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("sql", "row", "expected"),
    [
        ("CASE WHEN i <> 0 THEN b / i ELSE 0 END", {"b": 1, "i": 0}, 0.0),
        ("CASE WHEN i <> 0 THEN b / i ELSE 0 END", {"b": 1, "i": 2}, 0.5),
        ("CASE WHEN i = 0 THEN 0 ELSE 7 DIV i END", {"i": 0}, 0),
        ("CASE i WHEN 0 THEN -1 WHEN 1 DIV i THEN 5 ELSE 10 % i END", {"i": 0}, -1),
        ("IF(i = 0, NULL, b / i)", {"b": 1, "i": 0}, None),
        ("IF(i = 0, NULL, m / i)", {"m": Decimal("1.00"), "i": 0}, None),
        ("i <> 0 AND b / i > 2", {"b": 1, "i": 0}, False),
        ("i = 0 OR b % i = 0", {"b": 1, "i": 0}, True),
        ("coalesce(b, 1 DIV i)", {"b": 1, "i": 0}, 1),
        ("coalesce(b, 6 DIV i)", {"i": 3}, 2),
        ("CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS INT) END", {"s": "tea"}, None),
        ("CASE WHEN s RLIKE '^[0-9]+$' THEN CAST(s AS INT) + 1 END", {"s": "41"}, 42),
        ("IF(b < 100, b * b, b)", {"b": 2**40}, 2**40),
        ("IF(i > -5, -i, abs(y))", {"i": 1, "y": -128}, -1),
        ("IF(ok, IF(i = 0, 0, 1 DIV i), 1 DIV i)", {"ok": True, "i": 0}, 0),
        ("IF(ok, i = 0 OR 1 DIV i > 0, ok)", {"ok": True, "i": 0}, True),
    ],
)
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
