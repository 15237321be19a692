"""SQL text, one row, and the value that Spark gives for it in ANSI mode.

Tests without Spark compare Penstock with these values, and a test on Spark asks Spark for them.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

Case: TypeAlias = tuple[str, dict[str, Any], Any]

SCHEMA = pa.schema({
    "i": pa.int32(), "b": pa.int64(), "y": pa.int8(), "f": pa.float32(), "d": pa.float64(), "s": pa.string(),
    "ok": pa.bool_(), "day": pa.date32(), "m": pa.decimal128(10, 2), "fine": pa.decimal128(10, 7),
})  # fmt: skip
BIG = 2**53 + 1

LARGE: tuple[Case, ...] = (
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
)

DECIMALS: tuple[Case, ...] = (
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
)

ROUNDED: tuple[Case, ...] = (
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
    ("round(f, 2)", {"f": 2.675}, 2.6700000762939453),
    ("round(m, 1)", {"m": Decimal("2.25")}, Decimal("2.30")),
    ("CAST(d AS DECIMAL(10, 2))", {"d": 1.005}, Decimal("1.01")),
    ("CAST(d AS DECIMAL(10, 2))", {"d": 0.125}, Decimal("0.13")),
    ("CAST(d AS DECIMAL(10, 0))", {"d": -2.5}, Decimal(-3)),
    ("CAST(m AS DECIMAL(10, 1))", {"m": Decimal("1.25")}, Decimal("1.3")),
    ("CAST(m AS INT)", {"m": Decimal("-1.50")}, -1),
    ("CAST(d AS INT)", {"d": -1.9}, -1),
)  # fmt: skip

NOT_LOOKED_AT: tuple[Case, ...] = (
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
)

OUR_OWN = ("b * 1.5", "greatest(b, 0.5)", "greatest(m, 0)", "m + fine * 2", "round(m, 1)")
"""A number with a point is a double for us, and decimals have Arrow's precision: the guide says so."""
