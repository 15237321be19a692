"""Key hashes against values that Spark 4.3.0 printed, and against the hash library for every length."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash

from penstock import hashing
from penstock.errors import PipelineError
from penstock.hashing import hash_columns, supported_key_type, why_unsupported

NULL_ONLY = 42  # what is left of the seed when every column is null
MOMENT = datetime(2026, 11, 15, 12, 34, 56, 789012, tzinfo=UTC)

# (type, value, ``SELECT xxhash64(value)`` in Spark 4.3.0)
GOLDEN: list[tuple[pa.DataType, Any, int]] = [
    (pa.bool_(), True, -6698625589789238999),
    (pa.bool_(), False, 3614696996920510707),
    (pa.int8(), 1, -6698625589789238999),
    (pa.int8(), -128, 4160238337661960656),
    (pa.int16(), -2, 6162728026222640212),
    (pa.int16(), 32767, 8952525448871805501),
    (pa.int32(), 0, 3614696996920510707),
    (pa.int32(), -1, 2017008487422258757),
    (pa.int32(), 2**31 - 1, 1508894993788531228),
    (pa.int32(), -(2**31), 2073849959933241805),
    (pa.int64(), 0, -5252525462095825812),
    (pa.int64(), 1, -7001672635703045582),
    (pa.int64(), -1, 3858142552250413010),
    (pa.int64(), 2**63 - 1, -3246596055638297850),
    (pa.int64(), -(2**63), -8619748838626508300),
    (pa.float32(), 0.0, 3614696996920510707),
    (pa.float32(), -0.0, 3614696996920510707),
    (pa.float32(), 1.5, 6163473420726370430),
    (pa.float32(), float("nan"), 2692338816207849720),
    (pa.float32(), float("-inf"), -7580553461823983095),
    (pa.float64(), 0.0, -5252525462095825812),
    (pa.float64(), -0.0, -5252525462095825812),
    (pa.float64(), -1.5, -1519168156472177911),
    (pa.float64(), float("nan"), -3127944061524951246),
    (pa.float64(), float("inf"), 5810986238603807492),
    (pa.decimal128(3, 2), Decimal("1.50"), -6873856301616164681),
    (pa.decimal128(3, 2), Decimal("-1.50"), -3700955262752989823),
    (pa.decimal128(18, 0), Decimal(10**18 - 1), 2162198894918931945),
    (pa.decimal128(19, 0), Decimal(0), -8959994473701255385),
    (pa.decimal128(38, 2), Decimal("-1.00"), 6412485201787246618),
    (pa.decimal128(20, 0), Decimal(128), 6715097930120473301),
    (pa.decimal128(20, 0), Decimal(-128), -7898411661632158123),
    (pa.decimal128(38, 0), Decimal(2**64), 7007687479959933989),
    (pa.decimal128(38, 0), Decimal("9" * 38), -47190729175993179),
    (pa.decimal128(38, 0), Decimal("-" + "9" * 38), -2254039905620870768),
    (pa.string(), "", -7444071767201028348),
    (pa.string(), "a", -8582455328737087284),
    (pa.string(), "abcd", -6810745876291105281),
    (pa.string(), "Spark", -4294468057691064905),
    (pa.string(), "penstock", -6719214600687981513),
    (pa.large_string(), "naïve café ☃ 𝄞", 109190924468776443),
    (pa.string(), "x" * 31, -1716462135722163746),
    (pa.string(), "x" * 32, 1299777543150008824),
    (pa.large_string(), "x" * 33, -2751654916054470392),
    (pa.string(), "penstock" * 9, 3084698226631017346),
    (pa.binary(), b"", -7444071767201028348),
    (pa.binary(), b"\0", -8959994473701255385),
    (pa.large_binary(), bytes.fromhex("DEADBEEF00FF"), -4817877831871356907),
    (pa.date32(), date(1970, 1, 1), 3614696996920510707),
    (pa.date32(), date(1, 1, 1), 6773727150484150602),
    (pa.date32(), date(9999, 12, 31), 7061898801283288394),
    (pa.timestamp("us", "UTC"), MOMENT, 8029400289426769746),
    (pa.timestamp("us", "Asia/Tokyo"), MOMENT, 8029400289426769746),
    (pa.timestamp("us", "UTC"), datetime(1, 1, 1, tzinfo=UTC), 4148024589635468106),
    (pa.timestamp("us"), MOMENT.replace(tzinfo=None), 8029400289426769746),
    (pa.duration("us"), timedelta(days=1, hours=2, minutes=3, seconds=4.5), -5867921652851782348),
    (pa.time64("ns"), time(12, 34, 56, 123456), -2336691883376898889),
]
TYPES = list(dict.fromkeys(kind for kind, _, _ in GOLDEN))


def hashes_of(*columns: pa.Array) -> list[int]:
    return [int(value) for value in hash_columns(columns)]


def expected_of_bytes(values: Sequence[bytes | None], seeds: Sequence[int]) -> list[int]:
    """The hash library's answer, signed."""
    unsigned = [
        seed if value is None else xxhash.xxh64_intdigest(value, seed)
        for value, seed in zip(values, seeds, strict=True)
    ]
    return [int(value) for value in np.array(unsigned, np.uint64).view(np.int64)]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN, ids=lambda part: str(part)[:40])
def test_a_value_hashes_as_spark_printed_it(kind: pa.DataType, value: Any, expected: int) -> None:
    assert hashes_of(pa.array([value], kind)) == [expected]


@pytest.mark.parametrize(("kind", "value", "expected"), GOLDEN, ids=lambda part: str(part)[:40])
def test_many_rows_hash_as_one_does(kind: pa.DataType, value: Any, expected: int) -> None:
    """Enough rows that strings take the vectorised way."""
    rows = hashing._VECTOR_ROWS_MIN
    assert set(hashes_of(pa.array([value] * rows, kind))) == {expected}


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_null_leaves_the_seed_unchanged(kind: pa.DataType) -> None:
    assert hashes_of(pa.array([None, None], kind)) == [NULL_ONLY] * 2


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_column_of_nulls_without_values_is_hashed(kind: pa.DataType) -> None:
    assert hashes_of(pa.nulls(3, kind)) == [NULL_ONLY] * 3


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_no_rows_give_no_hashes(kind: pa.DataType) -> None:
    hashes = hash_columns([pa.array([], kind)])
    assert (hashes.dtype, hashes.shape) == (np.int64, (0,))


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_slice_hashes_as_its_rows_do_in_the_whole(kind: pa.DataType) -> None:
    """Offsets that are no multiple of eight, nulls before, inside and behind the slice."""
    values = [value for one, value, _ in GOLDEN if one == kind]
    whole = pa.array([None, *values, None, *values, values[0], None] * 5, kind)
    hashes = hashes_of(whole)
    for start, length in [(1, 3), (3, 11), (9, len(whole) - 9), (len(whole), 0)]:
        assert hashes_of(whole.slice(start, length)) == hashes[start : start + length]


def test_the_hash_of_one_column_is_the_seed_of_the_next() -> None:
    columns = [pa.array([1, None], pa.int64()), pa.array(["a", "a"])]
    assert hashes_of(*columns) == [-8527884376001292090, -8582455328737087284]


def test_a_key_with_a_null_hashes_as_without_that_column() -> None:
    text, null = pa.array(["a"]), pa.array([None], pa.string())
    assert hashes_of(text) == hashes_of(text, null) == hashes_of(null, text)


def test_an_int_and_a_long_of_the_same_value_hash_differently() -> None:
    assert hashes_of(pa.array([1], pa.int32())) != hashes_of(pa.array([1], pa.int64()))


@pytest.mark.parametrize(("kind", "bits"), [(pa.float32(), np.uint32), (pa.float64(), np.uint64)], ids=str)
def test_every_nan_hashes_alike(kind: pa.DataType, bits: type[np.uint32 | np.uint64]) -> None:
    """Quiet, signalling and negative ones with other payloads."""
    width = np.dtype(bits).itemsize * 8
    infinity = {32: 0x7F800000, 64: 0x7FF0000000000000}[width]
    sign = 1 << (width - 1)
    payloads = np.array([infinity + 1, infinity + 99, sign + infinity + 1, 2 * sign - 1], bits)
    array = pa.Array.from_buffers(kind, len(payloads), [None, pa.py_buffer(payloads)])
    assert set(hashes_of(array)) == set(hashes_of(pa.array([float("nan")], kind)))


@pytest.mark.parametrize("length", range(hashing._VECTOR_BYTES_MAX + 3))
def test_bytes_of_any_length_and_seed_hash_as_the_library_says(length: int) -> None:
    rng = np.random.default_rng(length)
    rows = hashing._VECTOR_ROWS_MIN
    seeds = pa.array(rng.integers(-(2**63), 2**63, rows, dtype=np.int64))
    values = [rng.bytes(length) for _ in range(rows)]
    unsigned = [seed % 2**64 for seed in hashes_of(seeds)]
    assert hashes_of(seeds, pa.array(values, pa.binary())) == expected_of_bytes(values, unsigned)


def test_mixed_lengths_and_nulls_keep_their_rows() -> None:
    rng = np.random.default_rng(7)
    lengths = rng.choice([0, 1, 5, 8, 31, 32, 40, 63, 64, 500], 6_000, p=[0.18] * 5 + [0.02] * 5)
    values = [None if rng.random() < 0.1 else rng.bytes(length) for length in lengths]
    assert hashes_of(pa.array(values, pa.binary())) == expected_of_bytes(values, [42] * len(values))


def test_wide_decimals_hash_the_shortest_bytes_of_their_unscaled_value() -> None:
    """All values around the places where one more byte is needed, as ``BigInteger.toByteArray`` has it."""
    edges = [1 << bits for bits in range(127)]
    values = sorted({sign * edge + step for edge in edges for sign in (1, -1) for step in (-1, 0, 1)})
    values = [value for value in values if abs(value) < 10**38]
    in_java = [
        value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True) for value in values
    ]
    decimals = pa.array([Decimal(value) for value in values], pa.decimal128(38, 0))
    assert hashes_of(decimals) == expected_of_bytes(in_java, [42] * len(values))


def test_hashes_spread_evenly_over_key_groups() -> None:
    groups = np.mod(hash_columns([pa.array(np.arange(128_000))]), 128)
    counts = np.bincount(groups, minlength=128)
    assert counts.min() > 850
    assert counts.max() < 1150


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_type_with_a_golden_value_may_be_a_key(kind: pa.DataType) -> None:
    assert supported_key_type(kind)
    assert why_unsupported(kind) is None


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (pa.uint8(), "signed"),
        (pa.float16(), "cast"),
        (pa.list_(pa.int32()), "fields"),
        (pa.struct([("a", pa.int32())]), "fields"),
        (pa.map_(pa.string(), pa.int32()), "no hash"),
        (pa.dictionary(pa.int32(), pa.string()), "decode"),
        (pa.null(), "nulls"),
        (pa.timestamp("ns", "UTC"), "timestamp('us')"),
        (pa.timestamp("ms"), "timestamp('us')"),
        (pa.date64(), "date32"),
        (pa.time64("us"), "time64('ns')"),
        (pa.time32("s"), "time64('ns')"),
        (pa.duration("ns"), "duration('us')"),
        (pa.binary(16), "binary"),
        (pa.string_view(), "cast"),
        (pa.decimal256(50, 2), "decimal128"),
        (pa.decimal128(10, -2), "scale"),
        (pa.decimal128(3, 5), "scale"),
        (pa.month_day_nano_interval(), "cast"),
    ],
    ids=str,
)
def test_another_type_is_refused_with_advice(kind: pa.DataType, advice: str) -> None:
    """E5."""
    reason = why_unsupported(kind)
    assert reason is not None
    assert advice in reason
    assert not supported_key_type(kind)


def test_hashing_an_unsupported_column_names_its_type_and_place() -> None:
    """E5: also when there are no rows, so that a mistake shows at once."""
    columns = [pa.array([], pa.int64()), pa.array([], pa.list_(pa.int32()))]
    with pytest.raises(PipelineError, match=r"key column 2 has type list<item: int32>") as raised:
        hash_columns(columns)
    assert raised.value.fields == {"type": "list<item: int32>"}
    assert raised.value.next_step
