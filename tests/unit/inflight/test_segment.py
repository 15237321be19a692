"""Writing segments: nothing lost, nothing reordered, batches of a decent size, files that roll."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import StorageFailed
from penstock.inflight import segment as segment_module
from penstock.inflight.segment import (
    BATCH_BYTES_MAX,
    BATCH_ROWS_MAX,
    HASH_COLUMN,
    ExchangeWriter,
    SegmentWriter,
    edge_schema,
    split,
)
from penstock.protocol.keygroups import KeyGroupRange, groups_of
from penstock.protocol.manifest import Segment, Span
from penstock.store import LocalStore, MemoryStore, Store
from penstock.store.arrowfile import ArrowFile, BatchInfo

GROUPS = 128
NUMBERS = edge_schema(pa.schema([("number", pa.int64())]))
TEXTS = edge_schema(pa.schema([("number", pa.int64()), ("text", pa.string())]))


def numbers(first: int, rows: int, hashes: Sequence[int] | np.ndarray[Any, Any] | None = None) -> pa.RecordBatch:
    if hashes is None:
        hashes = np.random.default_rng(first).integers(-(2**63), 2**63 - 1, rows)
    return pa.record_batch([pa.array(np.arange(first, first + rows)), pa.array(hashes, pa.int64())], schema=NUMBERS)


def texts(sizes: Sequence[int], hashes: Sequence[int] | None = None) -> pa.RecordBatch:
    hashes = range(len(sizes)) if hashes is None else hashes
    columns = [pa.array(range(len(sizes)), pa.int64()), pa.array(["x" * size for size in sizes])]
    return pa.record_batch([*columns, pa.array(hashes, pa.int64())], schema=TEXTS)


def segment_writer(store: Store, schema: pa.Schema = NUMBERS, **options: Any) -> SegmentWriter:
    settled = {"groups": KeyGroupRange(0, GROUPS), "epoch": 7, "producer": 3, "watermark": 99} | options
    return SegmentWriter(store, "segments/{}".format, schema, max_parallelism=GROUPS, **settled)


def exchange_writer(store: Store, schema: pa.Schema = NUMBERS, consumers: int = 4, **options: Any) -> ExchangeWriter:
    settled = {"epoch": 7, "producer": 3, "watermark": None, "max_parallelism": GROUPS} | options
    return ExchangeWriter(store, "segments/{}".format, schema, consumer_parallelism=consumers, **settled)


def stored(store: Store, segments: Sequence[Segment]) -> list[tuple[BatchInfo, pa.RecordBatch]]:
    found = []
    for segment in segments:
        with ArrowFile(store, segment.path, segment.checksum) as file:
            assert file.rows == segment.rows
            found += [(info, file.read_batch(number)) for number, info in enumerate(file.batches)]
    return found


def rows_of(store: Store, segments: Sequence[Segment]) -> list[dict[str, Any]]:
    return [row for _, batch in stored(store, segments) for row in batch.to_pylist()]


def test_the_hash_is_the_last_column_of_an_edge() -> None:
    assert NUMBERS.names == ["number", HASH_COLUMN]
    assert NUMBERS.field(HASH_COLUMN).type == pa.int64()


def test_a_segment_tells_who_wrote_it_and_that_nothing_of_it_is_consumed() -> None:
    store = MemoryStore()
    writer = segment_writer(store, groups=KeyGroupRange(0, 64))
    writer.write(numbers(0, 3, [1, 2, 129]))
    [segment] = writer.close()
    span = Span(ranges=(KeyGroupRange(0, 64),), cursor=0, rows_left=3)
    assert (segment.age, segment.rows, segment.watermark, segment.spans) == ((7, 7, 3, 0), 3, 99, (span,))
    assert segment.bytes == store.list("")[0].bytes
    with ArrowFile(store, segment.path, segment.checksum) as file:
        assert file.meta == {"epoch": 7, "producer": 3, "sequence": 0, "watermark": 99, "max_parallelism": GROUPS}


@pytest.mark.parametrize("open_writer", [segment_writer, exchange_writer])
def test_without_rows_nothing_is_written(open_writer: Any) -> None:
    """A3"""
    store = MemoryStore()
    writer = open_writer(store)
    writer.write(numbers(0, 0))
    assert writer.close() == []
    assert store.list("") == []


def test_rows_stay_in_order_across_batches_and_files() -> None:
    """A8"""
    store = MemoryStore()
    writer = segment_writer(store, target_bytes=100_000)
    batches = [numbers(first, 700) for first in range(0, 70_000, 700)]
    for batch in batches:
        writer.write(batch)
    segments = writer.close()
    assert writer.rows == 70_000
    assert [segment.sequence for segment in segments] == list(range(len(segments)))
    assert len(segments) > 1
    assert pa.Table.from_batches([batch for _, batch in stored(store, segments)]) == pa.Table.from_batches(batches)


def test_files_roll_at_their_target_size() -> None:
    store = MemoryStore()
    writer = segment_writer(store, target_bytes=1 << 20)
    for first in range(0, 1_000_000, 50_000):
        writer.write(numbers(first, 50_000))
    sizes = [segment.bytes for segment in writer.close()]
    assert all(1 << 20 <= size < 5 << 20 for size in sizes[:-1])


def test_small_batches_are_gathered_into_decent_ones() -> None:
    store = MemoryStore()
    writer = segment_writer(store)
    for first in range(0, 200_000, 100):
        writer.write(numbers(first, 100))
    rows = [info.rows for info, _ in stored(store, writer.close())]
    assert all(30_000 < count <= BATCH_ROWS_MAX for count in rows[:-1])


@pytest.mark.parametrize("open_writer", [segment_writer, exchange_writer])
def test_large_batches_are_split(open_writer: Any) -> None:
    store = MemoryStore()
    writer = open_writer(store, TEXTS)
    writer.write(texts([100] * 200_000))
    batches = [batch for _, batch in stored(store, writer.close())]
    assert max(batch.nbytes for batch in batches) <= BATCH_BYTES_MAX
    assert max(batch.num_rows for batch in batches) <= BATCH_ROWS_MAX
    assert sum(batch.num_rows for batch in batches) == 200_000


@pytest.mark.parametrize("open_writer", [segment_writer, exchange_writer])
def test_a_record_larger_than_everything_passes(open_writer: Any) -> None:
    """B5"""
    store = MemoryStore()
    sizes = [10, 50 << 20, 10, 10, 6 << 20, 10]
    writer = open_writer(store, TEXTS, target_bytes=1 << 20)
    batch = texts(sizes, [5] * 6)
    writer.write(batch)
    batches = [batch for _, batch in stored(store, writer.close())]
    assert pa.Table.from_batches(batches).combine_chunks() == pa.Table.from_batches([batch])
    assert all(part.num_rows == 1 or part.nbytes <= BATCH_BYTES_MAX for part in batches)


@given(
    sizes=st.lists(st.integers(0, 400), max_size=60),
    bytes_max=st.integers(1, 2000),
    rows_max=st.none() | st.integers(1, 20),
)
def test_split_gives_all_rows_in_slices_that_fit_or_are_one_row(
    sizes: list[int], bytes_max: int, rows_max: int | None
) -> None:
    batch = texts(sizes)
    parts = list(split(batch, bytes_max, rows_max))
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([batch]).combine_chunks()
    assert all(part.nbytes <= bytes_max or part.num_rows <= 1 for part in parts)
    assert rows_max is None or all(part.num_rows <= rows_max for part in parts)


def test_a_batch_that_differs_in_nullability_only_is_taken() -> None:
    store = MemoryStore()
    strict = pa.schema([field.with_nullable(False) for field in NUMBERS])
    writer = segment_writer(store)
    writer.write(numbers(0, 2, [0, 1]).cast(strict))
    assert rows_of(store, writer.close()) == [{"number": 0, HASH_COLUMN: 0}, {"number": 1, HASH_COLUMN: 1}]


def test_a_batch_of_another_schema_is_our_own_mistake() -> None:
    writer = segment_writer(MemoryStore())
    with pytest.raises(AssertionError, match="wanted"):
        writer.write(texts([1]))


def test_a_row_of_a_foreign_key_group_is_never_written() -> None:
    """B3"""
    writer = segment_writer(MemoryStore(), groups=KeyGroupRange(0, 64))
    writer.write(numbers(0, 2, [3, 64]))
    with pytest.raises(AssertionError, match="key groups 3 to 64"):
        writer.close()


@pytest.mark.parametrize(
    ("open_writer", "options"), [(segment_writer, {}), (exchange_writer, {"buffer_bytes": 1 << 20})]
)
def test_abort_removes_every_file_also_the_finished_ones(open_writer: Any, options: dict[str, Any]) -> None:
    """B13"""
    store = MemoryStore()
    writer = open_writer(store, target_bytes=1 << 18, **options)
    for first in range(0, 600_000, 60_000):
        writer.write(numbers(first, 60_000))
    assert len(store.list("")) > 1
    writer.abort()
    assert store.list("") == []


@pytest.mark.parametrize("open_writer", [segment_writer, exchange_writer])
def test_abort_after_close_removes_what_nobody_will_name(open_writer: Any) -> None:
    """B13: an attempt may fail after its segments were closed."""
    store = MemoryStore()
    writer = open_writer(store)
    writer.write(numbers(0, 10))
    assert len(writer.close()) == 1
    writer.abort()
    assert store.list("") == []


def test_a_full_disk_surfaces_and_abort_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    writer = segment_writer(store, target_bytes=1 << 18)
    writer.write(numbers(0, 60_000))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(StorageFailed, match="segments/"):
            writer.write(numbers(0, 600_000))
    writer.abort()
    assert store.list("") == []


# --- ExchangeWriter --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", [1, 3, 4, 7, 128])
def test_a_stored_batch_belongs_to_one_consumer(consumers: int) -> None:
    store = MemoryStore()
    writer = exchange_writer(store, consumers=consumers)
    for first in range(0, 50_000, 5_000):
        writer.write(numbers(first, 5_000))
    for info, batch in stored(store, writer.close()):
        owners = {group * consumers // GROUPS for group in info.groups}
        assert len(owners) == 1
        groups = groups_of(batch.column(1).to_numpy(), GROUPS)
        assert np.unique(groups).tolist() == info.groups


def test_the_segment_of_an_exchange_is_in_flight_for_all_key_groups() -> None:
    writer = exchange_writer(MemoryStore())
    writer.write(numbers(0, 3, [1, 2, 3]))
    [segment] = writer.close()
    assert segment.spans == (Span(ranges=(KeyGroupRange(0, GROUPS),), cursor=0, rows_left=3),)


@settings(max_examples=60, deadline=None)
@given(
    hashes=st.lists(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3), max_size=40), max_size=12),
    consumers=st.integers(1, GROUPS),
    sort_bytes=st.integers(16, 600),
    buffer_bytes=st.integers(16, 2000),
)
def test_an_exchange_keeps_every_row_and_the_order_of_each_key(
    hashes: list[list[int]], consumers: int, sort_bytes: int, buffer_bytes: int
) -> None:
    """A8"""
    store = MemoryStore()
    expected: dict[int, list[int]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_module, "SORT_BYTES", sort_bytes)
        writer = exchange_writer(store, consumers=consumers, buffer_bytes=buffer_bytes, target_bytes=3000)
        number = 0
        for part in hashes:
            writer.write(numbers(number, len(part), part))
            for key in part:
                expected.setdefault(key, []).append(number)
                number += 1
        segments = writer.close()
    found: dict[int, list[int]] = {}
    for row in rows_of(store, segments):
        found.setdefault(row[HASH_COLUMN], []).append(row["number"])
    assert found == expected


def test_the_buffer_of_an_exchange_is_bounded() -> None:
    """B11"""
    store = MemoryStore()
    batch = texts([1000] * 4000)
    writer = exchange_writer(store, TEXTS, buffer_bytes=8 << 20)
    peak = 0
    before = pa.total_allocated_bytes()
    for _ in range(20):
        writer.write(batch)
        peak = max(peak, pa.total_allocated_bytes() - before)
    writer.abort()
    assert peak < 24 << 20
