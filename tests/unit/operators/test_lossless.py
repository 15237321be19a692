"""Values are cast where nothing is lost, else they are refused: in rows, columns, state and aggregates."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import OperatorFailed
from penstock.operators.values.convert import arrow_values
from penstock.operators.values.lossless import cast_column
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROW = {"k": 1, "v": 9}
BIGINT, TEXT = pa.int64(), pa.string()
COUNTS, POINT = pa.map_(TEXT, BIGINT), pa.struct([("x", BIGINT)])
FIVE = dt.datetime(2020, 1, 1, 5, tzinfo=dt.UTC)
MIDNIGHT = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
MICROS, SECONDS = pa.timestamp("us", "UTC"), pa.timestamp("s", "UTC")
DECIMAL = pa.decimal128(10, 2)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (2.75, BIGINT),
        (2.0, BIGINT),
        (Decimal("1.5"), BIGINT),
        (np.float16(1.5), BIGINT),
        (np.float64(1.5), BIGINT),
        (1e300, pa.float32()),
        (-1e39, pa.float32()),
        (FIVE, pa.date32()),
        (1.5, pa.date32()),
        (1.5, MICROS),
        (FIVE.replace(microsecond=1), SECONDS),
        (pd.Timestamp(7, tz="UTC"), MICROS),
        (1.5, DECIMAL),
        (Decimal("1.005"), DECIMAL),
        (7, pa.bool_()),
        ("abc", pa.list_(TEXT)),
        (b"abc", pa.list_(BIGINT)),
        ({"a": 1}, pa.list_(TEXT)),
        ([1.7], pa.list_(BIGINT)),
        (np.array([1.7]), pa.list_(BIGINT)),
        ([[1], [1.7]], pa.list_(pa.list_(BIGINT))),
        ({"X": 1}, POINT),
        ({"x": 1, "y": 1}, POINT),
        ({"x": 1.5}, POINT),
        ((1.5,), POINT),
        ([("x", 1.5)], POINT),
        ({"a": 2.75}, COUNTS),
        ([("a", 2.75)], COUNTS),
        ([("a", 1), ("a", 2)], COUNTS),
        ({1.5: 1}, pa.map_(BIGINT, BIGINT)),
        ({None: 1}, COUNTS),
        ([None], COUNTS),
        ([{"a": {"X": 1}}], pa.list_(pa.map_(TEXT, POINT))),
    ],
)
def test_a_python_value_that_would_lose_something_is_refused(value: Any, kind: pa.DataType) -> None:
    with pytest.raises((pa.ArrowException, TypeError, ValueError)):
        arrow_values([None, value], kind)


@pytest.mark.parametrize(
    ("value", "kind", "stored"),
    [
        (np.int8(3), BIGINT, 3),
        (0.1, pa.float32(), float(np.float32(0.1))),
        (float("inf"), pa.float32(), float("inf")),
        (3, pa.float32(), 3.0),
        (MIDNIGHT.replace(tzinfo=None), pa.date32(), dt.date(2020, 1, 1)),
        (FIVE, SECONDS, FIVE),
        (Decimal("1.5"), DECIMAL, Decimal("1.50")),
        ((1, 2), pa.list_(BIGINT), [1, 2]),
        (np.array([1, 2]), pa.list_(BIGINT), [1, 2]),
        ({}, POINT, {"x": None}),
        ((1,), POINT, {"x": 1}),
        ({"a": 1}, COUNTS, [("a", 1)]),
        ([("a", None)], COUNTS, [("a", None)]),
        ([{"a": {"x": 1}}, None], pa.list_(pa.map_(TEXT, POINT)), [[("a", {"x": 1})], None]),
    ],
)
def test_a_python_value_that_loses_nothing_is_taken(value: Any, kind: pa.DataType, stored: Any) -> None:
    assert arrow_values([None, value], kind).to_pylist() == [None, stored]


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        (pa.array([None, 1.239]), DECIMAL),
        (pa.array([1e300]), pa.float32()),
        (pa.array([FIVE], MICROS), pa.date32()),
        (pa.array([MIDNIGHT], pa.timestamp("us", "Asia/Tokyo")), pa.date32()),
        (pa.array([FIVE], MICROS), pa.time64("us")),
        (pa.array([7]), pa.bool_()),
        (pa.array([0.5]), pa.bool_()),
        (pa.array([7]).dictionary_encode(), pa.bool_()),
        (pa.array([None, [1], [1e300]]), pa.list_(pa.float32())),
        (pa.array([{"x": 7}]), pa.struct([("x", pa.bool_())])),
        (pa.array([{"x": 7, "y": 8}]), POINT),
        (pa.array([[("a", 7)]], COUNTS), pa.map_(TEXT, pa.bool_())),
    ],
)
def test_a_column_that_would_lose_something_is_refused(column: pa.Array, kind: pa.DataType) -> None:
    with pytest.raises(pa.ArrowException):
        cast_column(column, kind)


@pytest.mark.parametrize(
    ("column", "kind", "stored"),
    [
        (pa.array([None, 0.25]), DECIMAL, [None, Decimal("0.25")]),
        (pa.array([0.1, None, float("inf")]), pa.float32(), [float(np.float32(0.1)), None, float("inf")]),
        (pa.array([MIDNIGHT, None], MICROS), pa.date32(), [dt.date(2020, 1, 1), None]),
        (pa.array([None], MICROS), pa.time64("us"), [None]),
        (pa.array([0, 1, None]), pa.bool_(), [False, True, None]),
        (pa.array([1, 2, 3]).slice(1), pa.int32(), [2, 3]),
        (pa.array([[7], [0], [1]]).slice(1), pa.list_(pa.bool_()), [[False], [True]]),
        (pa.array([[("a", 7)], [("a", 1)]], COUNTS).slice(1), pa.map_(TEXT, pa.bool_()), [[("a", True)]]),
        (pa.array(["1"]), BIGINT, [1]),
    ],
)
def test_a_column_that_loses_nothing_is_cast(column: pa.Array, kind: pa.DataType, stored: list[Any]) -> None:
    assert cast_column(column, kind).to_pylist() == stored


@pytest.mark.parametrize(
    ("field", "given"),
    [
        (pen.list_state("bigint"), [2.75]),
        (pen.list_state("string"), "abc"),
        (pen.list_state("string"), {"a": "b"}),
        (pen.map_state("string", "bigint"), {"a": 2.75}),
        (pen.value_state("array<bigint>"), [2.75]),
        (pen.value_state("struct<x:bigint>"), {"X": 1}),
    ],
)
def test_state_that_would_lose_something_stops_the_query(field: Any, given: Any) -> None:
    class Lossy(pen.KeyedProcess):
        output = "k bigint"
        kept = field

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            state.kept = given

    with pytest.raises(OperatorFailed, match="the state 'kept' is declared as"):
        Harness(stream_of(SCHEMA).key_by("k").process(Lossy)).feed([ROW])


def test_columns_of_state_that_would_lose_something_stop_the_query() -> None:
    class Lossy(pen.BatchProcess):
        output = "k bigint"
        flag = pen.value_state("boolean")

        def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> None:
            state.flag = pa.array([7])

    with pytest.raises(OperatorFailed, match="the state 'flag' is declared as bool and was set to int64"):
        Harness(stream_of(SCHEMA).key_by("k").process(Lossy)).feed([ROW])


def test_results_of_an_aggregate_that_would_lose_something_stop_the_query() -> None:
    class Flag(pen.UserAggregate):
        state: ClassVar = {"n": pa.int64()}
        output = pa.bool_()

        def update(self, rows: pa.RecordBatch, groups: Any) -> dict[str, Any]:
            return {"n": [7] * groups.count}

        def merge(self, states: pa.RecordBatch, groups: Any) -> dict[str, Any]:
            return {"n": [7] * groups.count}

        def result(self, states: pa.RecordBatch) -> pa.Array:
            return states["n"]

    with pytest.raises(OperatorFailed, match="result is declared as bool, got int64"):
        Harness(stream_of(SCHEMA).key_by("k").aggregate(flag=Flag())).feed([ROW])
