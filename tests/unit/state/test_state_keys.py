"""Equality and canonical form of keys."""

from __future__ import annotations

import datetime as dt
import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.state.keys import KeyColumn, equal_keys, normalise, normalise_keys

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None, True]),
    "int8": (pa.int8(), [-128, 127, None, -128]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None, 0, 0]),
    "int64 without null": (pa.int64(), [-(2**63), 2**63 - 1, 0, 0]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, None, 0]),
    "float32": (pa.float32(), [0.0, -0.0, math.nan, None, math.inf, -math.inf, math.nan]),
    "float64": (pa.float64(), [0.0, -0.0, math.nan, None, math.inf, -math.inf, math.nan]),
    "float64 without null": (pa.float64(), [0.0, -0.0, math.nan, 1.5, math.nan]),
    "decimal128": (pa.decimal128(38, 4), [Decimal("1.0000"), None, Decimal(-1), Decimal(1), Decimal(0)]),
    "string": (pa.string(), ["", None, "a", "b", "a", "naïve"]),
    "large_string": (pa.large_string(), ["", None, "a", "b", "a"]),
    "binary": (pa.binary(), [b"", None, b"\0", b"\0\0", b""]),
    "date32": (pa.date32(), [dt.date(1970, 1, 1), None, dt.date(2026, 11, 15), dt.date(1970, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [dt.datetime(1970, 1, 1), None, dt.datetime(2026, 1, 1)]),  # noqa: DTZ001
    "timestamp tz": (pa.timestamp("us", "UTC"), [dt.datetime(1970, 1, 1, tzinfo=dt.UTC), None]),
}


def canonical(value: Any) -> Any:
    """A value whose Python equality is equality of keys."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


@pytest.mark.parametrize("name", TYPES)
def test_keys_of_every_type_are_equal_exactly_when_their_values_are_with_null_and_nan_as_values(name: str) -> None:
    kind, values = TYPES[name]
    keys = (KeyColumn(normalise(pa.array(values, kind))),)
    left, right = (grid.ravel() for grid in np.meshgrid(np.arange(len(values)), np.arange(len(values))))
    expected = [canonical(values[i]) == canonical(values[j]) for i, j in zip(left, right, strict=True)]
    assert equal_keys(keys, left, keys, right).tolist() == expected


def test_a_column_with_nulls_is_compared_with_one_without() -> None:
    left, right = (KeyColumn(pa.array([1, None, 3])),), (KeyColumn(pa.array([1, 2, 3])),)
    rows = np.arange(3)
    assert equal_keys(left, rows, right, rows).tolist() == [True, False, True]


def test_null_beside_a_value_differs_from_the_value_beside_null() -> None:
    keys = (KeyColumn(pa.array(["a", None])), KeyColumn(pa.array([None, "a"])))
    assert equal_keys(keys, np.array([0]), keys, np.array([1])).tolist() == [False]


def test_a_slice_of_a_column_is_compared_by_its_own_rows() -> None:
    left = (KeyColumn(pa.array([9, 9, 1, None]).slice(2)),)
    right = (KeyColumn(pa.array([1, None])),)
    assert equal_keys(left, np.arange(2), right, np.arange(2)).tolist() == [True, True]


def test_a_key_without_columns_equals_every_other() -> None:
    assert equal_keys((), np.arange(2), (), np.arange(2)).tolist() == [True, True]


def test_normalising_makes_one_zero_and_one_nan_of_all_bit_patterns() -> None:
    odd_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
    batch = pa.RecordBatch.from_arrays(
        [pa.array(np.array([0.0, -0.0, math.nan, odd_nan])), pa.array([-0.0] * 4)], ["key", "value"]
    )
    result = normalise_keys(batch, ["key"])
    bits = result.column(0).view(pa.uint64()).to_pylist()
    assert bits == [0, 0, 0x7FF8000000000000, 0x7FF8000000000000]
    assert result.column(1).view(pa.uint64()).to_pylist() == [1 << 63] * 4


def test_normalising_keeps_nulls_and_other_types() -> None:
    batch = pa.RecordBatch.from_pydict({"x": pa.array([None, -0.0, 2.5], pa.float32()), "s": ["a", None, "b"]})
    result = normalise_keys(batch, ["x", "s"])
    assert result.schema == batch.schema
    assert result.to_pydict() == {"x": [None, 0.0, 2.5], "s": ["a", None, "b"]}
