"""Rows for the comparison of operators with Spark SQL, as hypothesis makes them, and the same rows as Spark's views.

Sources `a` and `b` deliver nothing late. `tardy` delivers late rows and rows without an event time. The last
micro-batch holds one row per source, far in the future, which closes everything before it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from pyspark.sql import SparkSession

Row = dict[str, Any]

SCHEMA = pa.schema([
    ("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("n", pa.int64()), ("batch", pa.int64()),
    ("amount", pa.int32()), ("price", pa.float64()), ("cost", pa.decimal128(9, 2)), ("item", pa.string()),
])  # fmt: skip
DDL = "k string, ts timestamp, n bigint, batch bigint, amount int, price double, cost decimal(9,2), item string"
SOURCES = ("a", "b", "tardy")
START = datetime(2026, 3, 1, tzinfo=UTC)
DELAY_S = 6
"""How far behind the newest row the watermark is."""
END = "end"
"""The key of the last rows."""

VALUES = st.tuples(
    st.none() | st.integers(-100, 100),
    st.none() | st.sampled_from([math.nan, 0.0]) | st.integers(-40, 40).map(lambda quarter: quarter / 4),
    st.none() | st.integers(-9999, 9999).map(lambda cents: Decimal(cents).scaleb(-2)),
    st.none() | st.sampled_from(["", "a", "b", "é", "\U0001f600"]),
)
KEYS = st.sampled_from([None, "", "x", "y", "z", "hot", "hot", "hot"])
PUNCTUAL = st.tuples(KEYS, st.integers(0, DELAY_S * 4).map(lambda quarter: quarter / 4), VALUES)
TARDY = st.tuples(KEYS, st.none() | st.integers(-30, DELAY_S), VALUES)
BATCHES = st.lists(
    st.tuples(
        st.integers(0, 25),
        st.lists(PUNCTUAL, max_size=40),
        st.lists(PUNCTUAL, max_size=20),
        st.lists(TARDY, max_size=40),
    ),
    min_size=1,
    max_size=4,
)


@dataclass(frozen=True, slots=True)
class Input:
    """What the sources deliver in each micro-batch; numbers `n` ascend over all of it."""

    batches: tuple[Mapping[str, list[Row]], ...]

    def rows(self, source: str) -> list[Row]:
        return [row for batch in self.batches for row in batch[source]]

    def __repr__(self) -> str:
        return "\n".join(f"{source} {row}" for batch in self.batches for source in SOURCES for row in batch[source])


def input_of(drawn: Iterable[tuple[int, Any, Any, Any]]) -> Input:
    """Time moves on from micro-batch to micro-batch by less than the delay, or by more."""
    made: list[dict[str, list[Row]]] = []
    base, n = 0, 0
    for batch, (step, *parts) in enumerate(drawn):
        base += step
        rows: dict[str, list[Row]] = {}
        for source, part in zip(SOURCES, parts, strict=True):
            rows[source] = [_row(key, base, late, n + i, batch, values) for i, (key, late, values) in enumerate(part)]
            n += len(part)
        made.append(rows)
    last = {source: [_row(END, 86_400, 0, n + i, len(made), [None] * 4)] for i, source in enumerate(SOURCES)}
    return Input((*made, last))


def random_input(chance: random.Random) -> Input:
    """Larger than what hypothesis makes, from a seed."""

    def values() -> tuple[Any, ...]:
        full = (
            chance.randint(-100, 100),
            chance.choice([math.nan, 0.0, chance.randint(-40, 40) / 4]),
            Decimal(chance.randint(-9999, 9999)).scaleb(-2),
            chance.choice(["", "a", "b", "é", "\U0001f600"]),
        )
        return tuple(None if chance.random() < 0.2 else value for value in full)

    def rows(count: int, earliest: int) -> list[Any]:
        keys = [None, "", *"vwxyz", *["hot"] * 4]
        return [(chance.choice(keys), chance.randint(earliest * 4, DELAY_S * 4) / 4, values()) for _ in range(count)]

    drawn = [(chance.randint(0, 25), rows(90, 0), rows(50, 0), rows(90, -30)) for _ in range(3)]
    without_time = [(None, None, values()), ("hot", None, values())]
    return input_of([(*drawn[0][:3], [*drawn[0][3], *without_time]), *drawn[1:]])


def _row(key: str | None, base: int, late: float | None, n: int, batch: int, values: Iterable[Any]) -> Row:
    ts = None if late is None else START + timedelta(seconds=base + late)
    return dict(zip(SCHEMA.names, (key, ts, n, batch, *values), strict=True))


def make_views(spark: SparkSession, data: Input) -> None:
    """All rows as views `a`, `b` and `tardy`; `mark` is the watermark that was in effect when a row of `tardy` came."""
    for source in SOURCES:
        frame = spark.createDataFrame(pa.Table.from_pylist(data.rows(source), schema=SCHEMA))
        if source == "tardy":
            before = "max(ts) OVER (ORDER BY batch RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
            frame = frame.selectExpr(
                "*", f"coalesce({before} - INTERVAL {DELAY_S} SECONDS, timestamp '1900-01-01') AS mark"
            )
        frame.createOrReplaceTempView(source)
