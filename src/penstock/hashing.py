"""Key hashes in Python, bit-exact with Spark's ``xxhash64(c1, c2, ...)``.

Rows that reach a keyed operator from another operator must land in the key group into which Spark put the rows of
the same key that came from a source. Every supported value is hashed as plain XXH64 of its bytes: fixed-width values
little-endian in 4 or 8 bytes, wide decimals as ``BigInteger.toByteArray``. The hash of one column is the seed of the
next; a null leaves the seed as it is. Equal hashes therefore do not mean equal keys: compare keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from penstock.errors import PipelineError

Hashes: TypeAlias = npt.NDArray[np.uint64]
Rows: TypeAlias = npt.NDArray[np.int64]

SPARK_SEED = 42

_PRIME_1 = np.uint64(0x9E3779B185EBCA87)
_PRIME_2 = np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_3 = np.uint64(0x165667B19E3779F9)
_PRIME_4 = np.uint64(0x85EBCA77C2B2AE63)
_PRIME_5 = np.uint64(0x27D4EB2F165667C5)

# Decimals up to this precision are a long in Spark, wider ones a BigInteger.
_LONG_DECIMAL_PRECISION_MAX = 18
# From here on the hash library (about 0.3 us per row) is faster than numpy: long values, few rows.
_VECTOR_BYTES_MAX = 63
_VECTOR_ROWS_MIN = 256

COLLATION = b"penstock.collation"
"""Metadata of a string column that Spark compares by a collation. In Arrow it looks like any string column."""

_INFINITY_32 = 0x7F800000
_INFINITY_64 = 0x7FF0000000000000

_INT_TYPES = frozenset({pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32()})
_LONG_TYPES = frozenset({pa.int64(), pa.duration("us"), pa.time64("ns")})
_BYTES_TYPES = frozenset({pa.string(), pa.large_string(), pa.binary(), pa.large_binary()})
_FLOAT_TYPES = frozenset({pa.float32(), pa.float64()})


def hash_columns(columns: Sequence[pa.Array]) -> npt.NDArray[np.int64]:
    """One hash per row over equally long arrays, as Spark's ``xxhash64`` gives it.

    >>> hash_columns([pa.array([1, None], pa.int64()), pa.array(["a", "a"])]).tolist()
    [-8527884376001292090, -8582455328737087284]

    Raises: `PipelineError` for a type that cannot be a key.
    """
    assert columns, "a key has at least one column"
    rows = len(columns[0])
    assert all(len(column) == rows for column in columns), "columns of one batch are equally long"
    for position, column in enumerate(columns):
        _refuse_unsupported(column.type, position)
    hashes = np.full(rows, SPARK_SEED, np.uint64)
    if rows > 0:
        for column in columns:
            hashes = _hash_column(column, hashes)
    return hashes.view(np.int64)


def supported_key_type(kind: pa.DataType) -> bool:
    return why_unsupported(kind) is None


def hashed_quickly(kind: pa.DataType) -> bool:
    """Whether hashing a key of this type here is faster than having Spark send its hash along.

    One more column costs Spark about 100 ns per row. Hashing here takes 6 to 30 ns for values of a fixed width and 60
    to 220 ns for others.
    """
    wide = pa.types.is_decimal(kind) and kind.precision > _LONG_DECIMAL_PRECISION_MAX
    return supported_key_type(kind) and kind not in _BYTES_TYPES and not wide


def why_no_key(column: pa.Field) -> str | None:
    """Why a column cannot be a key, and what to do instead; None if it can."""
    collation = (column.metadata or {}).get(COLLATION)
    if collation is not None:
        return f"strings that are equal under {collation.decode()} can have different hashes; cast it to plain string"
    return why_unsupported(column.type)


def why_unsupported(kind: pa.DataType) -> str | None:
    """Why a column of this type cannot be a key, and what to do instead; None if it can.

    >>> why_unsupported(pa.uint32())
    'Spark has no unsigned integers; cast it to a signed type'
    """
    if kind in _INT_TYPES | _LONG_TYPES | _BYTES_TYPES | _FLOAT_TYPES:
        return None
    if pa.types.is_timestamp(kind):
        return None if kind.unit == "us" else "Spark's timestamps are in microseconds; cast it to timestamp('us')"
    if pa.types.is_decimal128(kind):
        return None if 0 <= kind.scale <= kind.precision else "Spark's decimals have 0 <= scale <= precision"
    for is_kind, reason in _REASONS:
        if is_kind(kind):
            return reason
    return "it is not a type that Spark can hash; cast it to a string, number, date or timestamp"


_REASONS: tuple[tuple[Any, str], ...] = (
    (pa.types.is_unsigned_integer, "Spark has no unsigned integers; cast it to a signed type"),
    (pa.types.is_dictionary, "it is dictionary-encoded; decode it first"),
    (pa.types.is_null, "it holds nothing but nulls, so every row would have the same key"),
    (pa.types.is_map, "maps have no order and no hash; use one of its values as key"),
    (pa.types.is_nested, "nested values cannot be keys; use its fields as key columns"),
    (pa.types.is_decimal, "Spark's decimals are 128 bits wide; cast it to decimal128"),
    (pa.types.is_date64, "Spark's dates are in days; cast it to date32"),
    (pa.types.is_time, "Spark's times are in nanoseconds; cast it to time64('ns')"),
    (pa.types.is_duration, "Spark's intervals are in microseconds; cast it to duration('us')"),
    (pa.types.is_fixed_size_binary, "Spark has no binary of fixed size; cast it to binary"),
)


def _refuse_unsupported(kind: pa.DataType, position: int) -> None:
    reason = why_unsupported(kind)
    if reason is not None:
        raise PipelineError(
            f"key column {position + 1} has type {kind}",
            cause=reason,
            next_step="choose another key column, or convert this one before key_by",
            type=kind,
        )


def _hash_column(column: pa.Array, seeds: Hashes) -> Hashes:
    hashes = _hash_values(column, seeds)
    if column.null_count == 0:
        return hashes
    return np.where(column.is_valid().to_numpy(zero_copy_only=False), hashes, seeds)


def _hash_values(column: pa.Array, seeds: Hashes) -> Hashes:
    """Hashes the values in the buffers, also those where the column is null."""
    kind = column.type
    if kind in _BYTES_TYPES:
        return _hash_bytes(*_bytes_of(column), seeds)
    if pa.types.is_decimal128(kind) and kind.precision > _LONG_DECIMAL_PRECISION_MAX:
        return _hash_bytes(*_big_integers_of(column), seeds)
    if pa.types.is_decimal128(kind):
        return _hash_longs(_buffer(column, "<u8", 2)[:, 0], seeds)
    if kind == pa.float64():
        return _hash_longs(_float_bits(_buffer(column, "<u8"), _INFINITY_64), seeds)
    if kind == pa.float32():
        return _hash_ints(_float_bits(_buffer(column, "<u4"), _INFINITY_32), seeds)
    if kind in _INT_TYPES:
        return _hash_ints(_int_bits(column), seeds)
    return _hash_longs(_buffer(column, "<u8"), seeds)


# --- Arrow buffers as numpy arrays -------------------------------------------------------------------------------


def _buffer(column: pa.Array, dtype: str, per_row: int = 1) -> npt.NDArray[Any]:
    """The values buffer of a fixed-width column, without a copy; undefined values where there are nulls."""
    itemsize = np.dtype(dtype).itemsize
    first, count = column.offset * per_row * itemsize, len(column) * per_row
    values = np.frombuffer(column.buffers()[1], dtype, count, first)
    return values if per_row == 1 else values.reshape(-1, per_row)


def _int_bits(column: pa.Array) -> Hashes:
    """Spark widens all small types to a signed int, of which the 32 bits are hashed."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    values = _buffer(column, f"<i{column.type.bit_width // 8}")
    return values.astype(np.int32, copy=False).view(np.uint32).astype(np.uint64)


def _float_bits(bits: npt.NDArray[Any], infinity: int) -> Hashes:
    """The bits that Spark hashes: Java's ``doubleToLongBits``, with -0.0 as 0.0 and one NaN for all NaNs."""
    magnitude = bits & bits.dtype.type((1 << (bits.itemsize * 8 - 1)) - 1)
    normal = np.where(magnitude == 0, bits.dtype.type(0), bits)
    normal[magnitude > infinity] = infinity | (infinity >> 1)
    return normal.astype(np.uint64, copy=False)


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Rows, Rows]:
    """All bytes of a string or binary column, and where each value starts and how long it is."""
    wide = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    dtype = np.dtype("<i8" if wide else "<i4")
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, dtype, len(column) + 1, column.offset * dtype.itemsize)
    data = np.empty(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return data, offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)


def _big_integers_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Rows, Rows]:
    """Unscaled values big-endian in 16 bytes, of which ``BigInteger.toByteArray`` keeps the last few."""
    halves = _buffer(column, "<u8", 2)
    low, high = halves[:, 0], halves[:, 1]
    sign = (high.view(np.int64) >> 63).view(np.uint64)
    magnitude_low, magnitude_high = low ^ sign, high ^ sign
    # n bytes hold a value if one bit is left for the sign, so the bounds lie at 2^7, 2^15, ... 2^127.
    bounds = np.uint64(1) << np.arange(7, 64, 8, dtype=np.uint64)
    lengths = np.where(
        magnitude_high == 0,
        1 + np.searchsorted(bounds, magnitude_low, side="right"),
        9 + np.searchsorted(bounds, magnitude_high, side="right"),
    )
    data = halves[:, ::-1].astype(">u8").view(np.uint8).reshape(-1)
    ends = np.arange(1, len(column) + 1, dtype=np.int64) * 16
    return data, ends - lengths, lengths


# --- XXH64 over many values at once; every operation wraps around at 64 bits -------------------------------------


def _hash_ints(bits: Hashes, seeds: Hashes) -> Hashes:
    return _avalanche(_absorb_4_bytes(seeds + (_PRIME_5 + np.uint64(4)), bits))


def _hash_longs(bits: Hashes, seeds: Hashes) -> Hashes:
    return _avalanche(_absorb_8_bytes(seeds + (_PRIME_5 + np.uint64(8)), bits))


def _hash_bytes(data: npt.NDArray[np.uint8], starts: Rows, lengths: Rows, seeds: Hashes) -> Hashes:
    """Values of equal length are hashed together by numpy; long values and rare lengths by the hash library."""
    hashes = np.empty_like(seeds)
    rest: list[Rows] = []
    for length, rows in _rows_by_length(lengths):
        if length <= _VECTOR_BYTES_MAX and len(rows) >= _VECTOR_ROWS_MIN:
            hashes[rows] = _hash_equally_long(data, starts[rows], length, seeds[rows])
        else:
            rest.append(rows)
    if rest:
        rows = np.concatenate(rest)
        hashes[rows] = _hash_one_by_one(data, starts[rows], lengths[rows], seeds[rows])
    return hashes


def _rows_by_length(lengths: Rows) -> Iterator[tuple[int, Rows]]:
    """Row numbers, ascending, for each length; all lengths above `_VECTOR_BYTES_MAX` count as one."""
    classes = np.minimum(lengths, _VECTOR_BYTES_MAX + 1).astype(np.uint8)  # one byte: a stable sort is a radix sort
    order = np.argsort(classes, kind="stable")
    counts = np.bincount(classes)
    ends = np.cumsum(counts)
    for length in np.flatnonzero(counts).tolist():
        yield length, order[ends[length] - counts[length] : ends[length]]


def _hash_one_by_one(data: npt.NDArray[np.uint8], starts: Rows, lengths: Rows, seeds: Hashes) -> Hashes:
    view, digest = data.data, xxhash.xxh64_intdigest
    spans = zip(starts.tolist(), (starts + lengths).tolist(), seeds.tolist(), strict=True)
    return np.array([digest(view[start:end], seed) for start, end, seed in spans], np.uint64)


def _hash_equally_long(data: npt.NDArray[np.uint8], starts: Rows, length: int, seeds: Hashes) -> Hashes:
    at = 0
    if length >= 32:
        hashes, at = _absorb_stripes(data, starts, length, seeds)
    else:
        hashes = seeds + _PRIME_5
    hashes += np.uint64(length)
    while at + 8 <= length:
        hashes = _absorb_8_bytes(hashes, _load(data, "<u8", starts + at))
        at += 8
    if at + 4 <= length:
        hashes = _absorb_4_bytes(hashes, _load(data, "<u4", starts + at))
        at += 4
    while at < length:
        hashes = _absorb_byte(hashes, _load(data, "<u1", starts + at))
        at += 1
    return _avalanche(hashes)


def _absorb_stripes(data: npt.NDArray[np.uint8], starts: Rows, length: int, seeds: Hashes) -> tuple[Hashes, int]:
    """All whole stripes of 32 bytes, in four lanes; also returns how many bytes that were."""
    lanes = [seeds + _PRIME_1 + _PRIME_2, seeds + _PRIME_2, seeds, seeds - _PRIME_1]
    end = length // 32 * 32
    for at in range(0, end, 8):
        lane = at // 8 % 4
        lanes[lane] = _rotate(lanes[lane] + _load(data, "<u8", starts + at) * _PRIME_2, 31) * _PRIME_1
    hashes = _rotate(lanes[0], 1) + _rotate(lanes[1], 7) + _rotate(lanes[2], 12) + _rotate(lanes[3], 18)
    for lane_hashes in lanes:
        hashes ^= _rotate(lane_hashes * _PRIME_2, 31) * _PRIME_1
        hashes = hashes * _PRIME_1 + _PRIME_4
    return hashes, end


def _load(data: npt.NDArray[np.uint8], dtype: str, at: Rows) -> Hashes:
    """Words at any byte position, also unaligned: a view in which consecutive words overlap."""
    width = np.dtype(dtype).itemsize
    words: npt.NDArray[Any] = np.ndarray((data.size - width + 1,), dtype, data, strides=(1,))
    return words[at].astype(np.uint64, copy=False)


def _absorb_8_bytes(hashes: Hashes, words: Hashes) -> Hashes:
    lanes = _rotate(words * _PRIME_2, 31)
    lanes *= _PRIME_1
    lanes ^= hashes
    mixed = _rotate(lanes, 27)
    mixed *= _PRIME_1
    mixed += _PRIME_4
    return mixed


def _absorb_4_bytes(hashes: Hashes, words: Hashes) -> Hashes:
    mixed = _rotate((words * _PRIME_1) ^ hashes, 23)
    mixed *= _PRIME_2
    mixed += _PRIME_3
    return mixed


def _absorb_byte(hashes: Hashes, values: Hashes) -> Hashes:
    mixed = _rotate((values * _PRIME_5) ^ hashes, 11)
    mixed *= _PRIME_1
    return mixed


def _rotate(values: Hashes, bits: int) -> Hashes:
    rotated = values << np.uint64(bits)
    rotated |= values >> np.uint64(64 - bits)
    return rotated


def _avalanche(hashes: Hashes) -> Hashes:
    """Changes `hashes` in place; callers hand over an array of their own."""
    hashes ^= hashes >> np.uint64(33)
    hashes *= _PRIME_2
    hashes ^= hashes >> np.uint64(29)
    hashes *= _PRIME_3
    hashes ^= hashes >> np.uint64(32)
    return hashes
