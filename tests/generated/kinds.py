"""Kinds of columns: their types and values, the odd ones included."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

Draw = Callable[[Random], Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """A type and what may stand in it. Equal kinds have equal types."""

    name: str
    arrow: pa.DataType = field(compare=False)
    draw: Draw = field(compare=False, repr=False)
    key: bool = True
    """May be a key."""
    ordered: bool = True
    """Has an order, so that there is a largest."""
    adds: bool = False
    """Sums are exact in any order and fit."""
    bag: bool = False
    """A list whose order nobody knows."""

    def __repr__(self) -> str:
        return self.name


def _one_of(*values: Any) -> Draw:
    return lambda chance: chance.choice(values)


def _text(chance: Random) -> str:
    long = chance.random()
    if long < 0.002:
        return "long" * 20_000
    if long < 0.02:
        return "x" * chance.randint(200, 3000)
    return chance.choice(TEXTS)


TEXTS = (
    "",
    "a",
    "b",
    "A",
    "é",
    "e\u0301",
    "\U0001f600",
    "日本",
    " ",
    "null",
    "NaN",
    "a\tb",
    "'",
    '"',
    "\\",
    "%",
    "ab" * 9,
)
MOMENTS = tuple(
    datetime(year, month, day, 23, 59, 59, 999_999, tzinfo=UTC)
    for year, month, day in ((1, 1, 1), (1582, 10, 10), (1969, 12, 31), (2026, 3, 29), (9999, 12, 31))
)

SMALL = Kind("small", pa.int64(), lambda chance: chance.randint(-100, 100), adds=True)
NUMBER = Kind("number", pa.int64(), lambda chance: chance.randint(0, 9), adds=True)
INT = Kind("int", pa.int32(), _one_of(2**31 - 1, -(2**31), 0, 1, -1, 7), adds=True)
TINY = Kind("tiny", pa.int8(), _one_of(-128, 127, 0, 1), adds=True)
BIG = Kind("big", pa.int64(), _one_of(2**63 - 1, -(2**63), 0, 1, -1, 2**53 + 1))
QUARTER = Kind("quarter", pa.float64(), lambda chance: chance.randint(-40, 40) / 4, adds=True)
ABOUT = Kind("about", pa.float64(), lambda _: None, key=False, ordered=False)
"""A double whose last bits depend on the order in which rows were combined: compared nearly, and never a key."""
DOUBLE = Kind("double", pa.float64(), _one_of(math.nan, 0.0, -0.0, math.inf, -math.inf, 1e300, 5e-324, 0.1))
FLOAT = Kind("float", pa.float32(), _one_of(math.nan, 0.0, -0.0, 0.5, -1.25))
BOOL = Kind("bool", pa.bool_(), _one_of(True, False))
TEXT = Kind("text", pa.string(), _text)
BYTES = Kind("bytes", pa.binary(), _one_of(b"", b"\x00", b"\xff\xfe", b"ab"))
DAY = Kind("day", pa.date32(), _one_of(date(1, 1, 1), date(1582, 10, 10), date(1970, 1, 1), date(9999, 12, 31)))
WHEN = Kind("when", pa.timestamp("us", "UTC"), _one_of(*MOMENTS))
CENTS = Kind("cents", pa.decimal128(9, 2), lambda chance: Decimal(chance.randint(-9999, 9999)).scaleb(-2), adds=True)
HUGE = Kind(
    "huge",
    pa.decimal128(38, 10),
    _one_of(Decimal("9" * 28 + "." + "9" * 10), Decimal("-" + "9" * 28), Decimal(0), Decimal("0.0000000001")),
)
LIST = Kind("list", pa.list_(pa.int64()), _one_of([], [1], [None, 2], [3, 1, 2] * 5), key=False, ordered=False)
PAIR = Kind(
    "pair",
    pa.struct([("a", pa.int64()), ("b", pa.string())]),
    _one_of({"a": 1, "b": "x"}, {"a": None, "b": ""}, {"a": 2, "b": None}),
    key=False,
    ordered=False,
)
MAP = Kind(
    "map",
    pa.map_(pa.string(), pa.int64()),
    _one_of([], [("a", 1)], [("", None), ("é", 2)]),
    key=False,
    ordered=False,
)

LINE = Kind("line", pa.int64(), lambda _: None, adds=True)
"""Where a row comes from."""
TIME = Kind("time", pa.timestamp("us", "UTC"), lambda _: None)
"""Event time."""

VALUES = (
    SMALL, NUMBER, INT, TINY, BIG, QUARTER, DOUBLE, FLOAT, BOOL, TEXT, TEXT, BYTES, DAY, WHEN, CENTS, HUGE, LIST, PAIR,
    MAP,
)  # fmt: skip
"""What a column of a source may be."""

Columns = dict[str, Kind]


def schema_of(columns: Columns) -> pa.Schema:
    return pa.schema([(name, kind.arrow) for name, kind in columns.items()])


def sql_name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def sql_names(columns: Any) -> str:
    return ", ".join(map(sql_name, columns))
