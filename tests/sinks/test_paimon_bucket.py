"""C10: bucket numbers are those that pypaimon computes, for every type that a bucket key may have."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypaimon.schema.data_types import PyarrowFieldParser
from pypaimon.write.row_key_extractor import FixedBucketRowKeyExtractor, _bucket_from_hash

from penstock.inflight.lanes import spread
from penstock.protocol.keygroups import subtask_of
from penstock.sinks.paimon.bucket import BucketRouting, buckets_of, hashes_of, why_no_bucket_key


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _timestamps(unit: str) -> st.SearchStrategy[dt.datetime]:
    keep = {"s": 1_000_000, "ms": 1000, "us": 1}[unit]
    return st.datetimes().map(lambda value: value.replace(microsecond=value.microsecond // keep * keep))


VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): _integers(8),
    pa.int16(): _integers(16),
    pa.int32(): _integers(32),
    pa.int64(): _integers(64),
    pa.decimal128(10, 2): st.decimals(-(10**7), 10**7, places=2).map(lambda value: Decimal(str(value))),
    pa.decimal128(18, 0): st.integers(-(10**18) + 1, 10**18 - 1).map(Decimal),
    pa.date32(): st.dates(),
    pa.timestamp("s"): _timestamps("s"),
    pa.timestamp("ms"): _timestamps("ms"),
    pa.timestamp("us"): _timestamps("us"),
    pa.timestamp("us", "UTC"): _timestamps("us").map(lambda value: value.replace(tzinfo=dt.UTC)),
    pa.string(): st.text(max_size=40),
    pa.binary(): st.binary(max_size=40),
}


@st.composite
def _keys(draw: st.DrawFn) -> list[pa.Array]:
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(1, 12))
    columns = [pa.array(draw(st.lists(st.none() | VALUES[kind], min_size=rows, max_size=rows)), kind) for kind in kinds]
    start = draw(st.integers(0, rows - 1))
    return [column.slice(start) for column in columns]


def _as_pypaimon(columns: list[pa.Array]) -> list[int]:
    schema = pa.schema([(f"c{index}", column.type) for index, column in enumerate(columns)])
    fields = PyarrowFieldParser.to_paimon_schema(schema)
    rows = zip(*(column.to_pylist() for column in columns), strict=True)
    return [FixedBucketRowKeyExtractor._binary_row_hash_code(row, fields) for row in rows]


@settings(max_examples=80, deadline=None)
@given(_keys())
def test_hashes_are_those_of_pypaimon(columns: list[pa.Array]) -> None:
    wanted = _as_pypaimon(columns)
    assert hashes_of(columns).view(np.uint32).tolist() == wanted
    assert buckets_of(columns, 7).tolist() == [_bucket_from_hash(value, 7) for value in wanted]


def test_more_columns_than_fit_one_word_of_null_bits() -> None:
    columns = [pa.array([index, None], pa.int32()) for index in range(60)]
    assert hashes_of(columns).view(np.uint32).tolist() == _as_pypaimon(columns)


def test_no_rows_have_no_buckets() -> None:
    assert buckets_of([pa.array([], pa.string())], 4).tolist() == []


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.decimal128(19, 0), pa.list_(pa.int64()), pa.timestamp("ns")], ids=str
)
def test_a_type_that_engines_lay_out_differently_is_no_bucket_key(kind: pa.DataType) -> None:
    assert why_no_bucket_key(kind)


KEYS = pa.schema([("day", pa.string()), ("user", pa.int64())])
USER = pa.schema([KEYS.field("user")])


def _routing(partition_by: tuple[str, ...], buckets: int) -> BucketRouting:
    return BucketRouting(USER, partition_by, ("user",), buckets)


@pytest.mark.parametrize(("buckets", "parallelism", "each"), [(16, 16, 1), (16, 4, 4), (4, 4, 1), (8, 2, 4)])
def test_buckets_are_dealt_out_evenly(buckets: int, parallelism: int, each: int) -> None:
    """C10: as many subtasks as buckets means a bucket for each."""
    batch = pa.record_batch([["mon"] * 500, range(500)], schema=KEYS)
    for partition_by in ((), ("day",)):
        lanes = set(_routing(partition_by, buckets).lanes(batch).tolist())
        subtasks = [subtask_of(spread(128)[lane % 128], parallelism, 128) for lane in lanes]
        assert len(lanes) == buckets
        assert {subtasks.count(subtask) for subtask in range(parallelism)} == {each}


def test_rows_of_one_bucket_have_one_lane_however_the_stream_types_them() -> None:
    stream = pa.schema([("day", pa.large_string()), ("user", pa.int64())])
    batch = pa.record_batch([["mon", None, "mon", None], [1, 2, 1, 2]], schema=stream)
    first, second, third, fourth = _routing(("day",), 4).lanes(batch).tolist()
    assert (first, second) == (third, fourth)


def test_a_checkpoint_remembers_the_number_of_buckets() -> None:
    """C10: rows in flight were dealt out by it."""
    assert _routing(("day",), 4).keys != _routing(("day",), 8).keys
