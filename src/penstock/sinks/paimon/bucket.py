"""In which bucket of a Paimon table a row belongs, and to which subtask its bucket goes.

A bucket number is part of the table's format: every engine must compute the same one. It is the Murmur3 hash of the
bucket key laid out as a Paimon *binary row*: a word of null bits, a word per column, then what does not fit a word.
Rows of equal length are hashed together, word by word, so the work is done by numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from penstock.hashing import hash_columns

_WORD = 8
_INLINE_BYTES_MAX = 7
_HEADER_BITS = 8
_SEED = 42
_COMPACT_DIGITS = 18

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BucketRouting:
    """Rows of one bucket of one partition meet in one subtask; buckets are dealt out evenly.

    `columns` are the bucket key's, as the table types them.
    """

    columns: pa.Schema
    partition_by: tuple[str, ...]
    bucket_key: tuple[str, ...]
    buckets: int

    @property
    def keys(self) -> tuple[str, ...]:
        """What a checkpoint remembers: in-flight rows were dealt out by it."""
        return (*self.partition_by, f"bucket({self.buckets}; {', '.join(self.bucket_key)})")

    @property
    def ordered(self) -> bool:
        """The last row of a primary key counts, and readers of a bucket get its rows in their order."""
        return True

    def lanes(self, batch: pa.RecordBatch) -> Ints:
        """Equal for rows of one bucket; consecutive for the buckets of one partition."""
        key = [batch.column(name).cast(self.columns.field(name).type) for name in self.bucket_key]
        buckets = buckets_of(key, self.buckets)
        return buckets + _partition_lanes(batch, self.partition_by) if self.partition_by else buckets


@dataclass(frozen=True)
class PartitionRouting:
    """Rows of one partition meet in one subtask: fewer files, at the price of skew where partitions differ in size."""

    partition_by: tuple[str, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return self.partition_by

    @property
    def ordered(self) -> bool:
        """A table without keys and buckets is read in any order."""
        return False

    def lanes(self, batch: pa.RecordBatch) -> Ints:
        return _partition_lanes(batch, self.partition_by)


def _partition_lanes(batch: pa.RecordBatch, partition_by: Sequence[str]) -> Ints:
    return hash_columns([_hashable(batch.column(name)) for name in partition_by]) & np.int64(0x7FFF_FFFF)


def _hashable(column: pa.Array) -> pa.Array:
    """As the one type of its kind that can be hashed."""
    kind = column.type
    if pat.is_timestamp(kind):
        return column.cast(pa.timestamp("us", tz=kind.tz))
    return column.cast(kind.value_type) if pat.is_dictionary(kind) else column


def why_no_bucket_key(kind: pa.DataType) -> str | None:
    """Why a column of this type cannot tell buckets apart; None if it can."""
    if pat.is_decimal(kind) and kind.precision > _COMPACT_DIGITS:
        # pypaimon and Paimon itself lay some of them out differently, so they would look into different buckets.
        return f"use a decimal of at most {_COMPACT_DIGITS} digits"
    plain = (pat.is_boolean, pat.is_signed_integer, pat.is_decimal128, pat.is_date32, pat.is_string, pat.is_binary)
    if any(test(kind) for test in plain) or (pat.is_timestamp(kind) and kind.unit != "ns"):
        return None
    return "use a column of integers, strings, decimals, dates or timestamps"


def buckets_of(columns: Sequence[pa.Array], buckets: int) -> Ints:
    """The bucket of each row, given its bucket key.

    >>> buckets_of([pa.array([1, 2, 3], pa.int64())], 4).tolist()
    [2, 0, 1]
    """
    return np.abs(np.fmod(hashes_of(columns).astype(np.int64), buckets))


def hashes_of(columns: Sequence[pa.Array]) -> npt.NDArray[np.int32]:
    """The hash of each row as a binary row."""
    rows = len(columns[0])
    slots = [_slot(column) for column in columns]
    tail_words = np.stack([slot.tail_words for slot in slots])
    hashes = np.empty(rows, dtype=np.int32)
    for layout, members in _by_layout(tail_words):
        hashes[members] = _murmur(_binary_rows(slots, layout, members))
    return hashes


@dataclass(frozen=True, slots=True)
class _Slot:
    """One column of binary rows: its word, and how many words follow at the end of the row."""

    valid: npt.NDArray[np.bool_]
    words: Ints
    tail_words: Ints
    tail: _Tail | None = None


@dataclass(frozen=True, slots=True)
class _Tail:
    """Bytes that do not fit a word: `lengths` bytes from `starts` on. `low` is the low half of the word."""

    data: Bytes
    starts: Ints
    lengths: Ints
    low: Ints


def _slot(column: pa.Array) -> _Slot:
    valid = np.asarray(column.is_valid())
    kind = column.type
    if pat.is_string(kind) or pat.is_binary(kind):
        return _bytes_slot(column, valid)
    if pat.is_decimal(kind):
        return _decimal_slot(column, valid)
    if pat.is_timestamp(kind):
        return _timestamp_slot(column, valid)
    values = column.cast(pa.int32()) if pat.is_date(kind) else column
    numbers = np.asarray(pc.fill_null(values, False if pat.is_boolean(kind) else 0))
    # A narrow number fills the low bytes of its word; the rest is zero, not its sign.
    unsigned = numbers.view(f"u{numbers.dtype.itemsize}").astype(np.uint64)
    return _Slot(valid, unsigned.view(np.int64), _no_tail(column))


def _no_tail(column: pa.Array) -> Ints:
    return np.zeros(len(column), dtype=np.int64)


def _timestamp_slot(column: pa.Array, valid: npt.NDArray[np.bool_]) -> _Slot:
    unit = column.type.unit
    values = np.asarray(pc.fill_null(column.cast(pa.int64()), 0))
    if unit in {"s", "ms"}:
        return _Slot(valid, values * (1000 if unit == "s" else 1), _no_tail(column))
    millis, micros = np.divmod(values, 1000)
    starts = np.arange(len(column), dtype=np.int64) * _WORD
    tail = _Tail(millis.view(np.uint8), starts, np.full(len(column), _WORD, np.int64), micros * 1000)
    return _Slot(valid, _no_tail(column), np.where(valid, 1, 0), tail)


def _decimal_slot(column: pa.Array, valid: npt.NDArray[np.bool_]) -> _Slot:
    data = np.frombuffer(column.buffers()[1], dtype=np.int64)
    low = data[2 * column.offset : 2 * (column.offset + len(column)) : 2]
    return _Slot(valid, np.where(valid, low, 0), _no_tail(column))


def _bytes_slot(column: pa.Array, valid: npt.NDArray[np.bool_]) -> _Slot:
    buffers = column.buffers()
    offsets = np.frombuffer(buffers[1], dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    starts = offsets[:-1].astype(np.int64)
    lengths = np.where(valid, np.diff(offsets.astype(np.int64)), 0)
    data = np.frombuffer(buffers[2], dtype=np.uint8) if buffers[2] is not None else np.empty(0, np.uint8)
    short = lengths <= _INLINE_BYTES_MAX
    inline = _gather(data, starts, np.where(short, lengths, 0), _WORD)
    inline[:, _INLINE_BYTES_MAX] = np.where(valid, 0x80 | lengths, 0).astype(np.uint8)
    words = np.where(short & valid, inline.view(np.int64)[:, 0], 0)
    tail_words = np.where(short, 0, -(-lengths // _WORD))
    return _Slot(valid, words, tail_words, _Tail(data, starts, lengths, lengths))


def _gather(data: Bytes, starts: Ints, lengths: Ints, width: int) -> Bytes:
    """`lengths` bytes from `starts` on, one row each, zeros behind them up to `width`."""
    if not len(data):
        return np.zeros((len(starts), width), dtype=np.uint8)
    places = np.arange(width, dtype=np.int64)
    index = np.minimum(starts[:, None] + places, len(data) - 1)
    return np.where(places < lengths[:, None], data[index], 0).astype(np.uint8)


def _by_layout(tail_words: npt.NDArray[np.int64]) -> list[tuple[Ints, Ints]]:
    """Rows with equal numbers of words in each column's tail, by those numbers."""
    if not tail_words.any():
        return [(tail_words[:, :1].reshape(-1), np.arange(tail_words.shape[1]))] if tail_words.shape[1] else []
    layouts, member_of = np.unique(tail_words, axis=1, return_inverse=True)
    member_of = member_of.reshape(-1)
    order = np.argsort(member_of, kind="stable")
    cuts = np.searchsorted(member_of[order], np.arange(layouts.shape[1] + 1))
    return [(layouts[:, k], order[cuts[k] : cuts[k + 1]]) for k in range(layouts.shape[1])]


def _binary_rows(slots: Sequence[_Slot], layout: Ints, members: Ints) -> npt.NDArray[np.uint32]:
    """Rows of one layout as 32-bit words, a row of words each."""
    null_words = (len(slots) + 63 + _HEADER_BITS) // 64
    fixed = null_words + len(slots)
    rows = np.zeros((len(members), fixed + int(layout.sum())), dtype=np.int64)
    cursor = fixed
    for index, slot in enumerate(slots):
        bit = index + _HEADER_BITS
        nulls = ~slot.valid[members]
        rows[:, bit // 64] |= nulls.astype(np.int64) << np.int64(bit % 64)
        width = int(layout[index])
        if width == 0:
            rows[:, null_words + index] = np.where(nulls, 0, slot.words[members])
            continue
        assert slot.tail is not None
        tail = slot.tail
        rows[:, null_words + index] = np.int64(cursor * _WORD << 32) | tail.low[members]
        gathered = _gather(tail.data, tail.starts[members], tail.lengths[members], width * _WORD)
        rows[:, cursor : cursor + width] = gathered.view(np.int64)
        cursor += width
    return rows.view(np.uint32)


def _murmur(rows: npt.NDArray[np.uint32]) -> npt.NDArray[np.int32]:
    """Murmur3 of each row, four bytes at a time."""
    hashes = np.full(len(rows), _SEED, dtype=np.uint32)
    for word in rows.T:
        mixed = word * np.uint32(0xCC9E2D51)
        mixed = (mixed << np.uint32(15)) | (mixed >> np.uint32(17))
        hashes ^= mixed * np.uint32(0x1B873593)
        hashes = (hashes << np.uint32(13)) | (hashes >> np.uint32(19))
        hashes = hashes * np.uint32(5) + np.uint32(0xE6546B64)
    hashes ^= np.uint32(rows.shape[1] * 4)
    hashes ^= hashes >> np.uint32(16)
    hashes *= np.uint32(0x85EBCA6B)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(0xC2B2AE35)
    hashes ^= hashes >> np.uint32(16)
    return hashes.view(np.int32)
