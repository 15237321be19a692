"""Reading in-flight records: each row of a range exactly once, in order, from any cursor, after any rescaling."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.channel import scan as scan_module
from penstock.channel.prefetch import ReadAhead
from penstock.channel.reader import PrefetchingReader, SpanReader
from penstock.channel.segment import ExchangeWriter, SegmentWriter, edge_schema
from penstock.errors import CorruptFile, MissingFile
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.protocol.manifest import Segment
from penstock.protocol.reads import ReadSpan, SpanProgress
from penstock.store import MemoryStore
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter

GROUPS = 16
SCHEMA = edge_schema(pa.schema([("number", pa.int64()), ("text", pa.string())]))


def batch_of(first: int, hashes: Sequence[int] | npt.NDArray[np.int64], size: int = 3) -> pa.RecordBatch:
    rows = len(hashes)
    columns = [pa.array(np.arange(first, first + rows)), pa.array([str(first)[-1] * size] * rows, pa.string())]
    return pa.record_batch([*columns, pa.array(hashes, pa.int64())], schema=SCHEMA)


def store_batches(store: MemoryStore, batches: Sequence[Sequence[int]], path: str = "s", size: int = 3) -> ReadSpan:
    """A segment with exactly these batches; row numbers are also in the column `number`. Whole, from the start."""
    meta: dict[str, str | int | None] = {"max_parallelism": GROUPS}
    writer = ArrowFileWriter(store, path, SCHEMA, kind="segment", compression="lz4", meta=meta)
    first = 0
    for hashes in batches:
        writer.write(batch_of(first, hashes, size), groups_of(np.array(hashes, np.int64), GROUPS))
        first += len(hashes)
    return ReadSpan(path, writer.close().checksum, 0, GROUPS, 0)


def at(span: ReadSpan, lo: int, hi: int, cursor: int = 0) -> ReadSpan:
    return ReadSpan(span.path, span.checksum, lo, hi, cursor)


def drain(reader: SpanReader | PrefetchingReader, step: int = 1 << 30) -> list[int]:
    """The numbers of all rows to come, consumed `step` rows at a time."""
    found: list[int] = []
    while (batch := reader.peek()) is not None:
        taken = batch.slice(0, step)
        found += taken.column("number").to_pylist()
        reader.advance(taken.num_rows)
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Every batch that is read from a file."""
    seen: list[tuple[str, int]] = []
    real = ArrowFile.read_batch

    def record(self: ArrowFile, number: int) -> pa.RecordBatch:
        seen.append((self._path, number))
        return real(self, number)

    monkeypatch.setattr(ArrowFile, "read_batch", record)
    return seen


# --- SpanReader ------------------------------------------------------------------------------------------------------


def test_a_span_gives_only_rows_of_its_key_groups() -> None:
    """B3"""
    store = MemoryStore()
    whole = store_batches(store, [[0, 5, 9, 5, -1], [15, 4, 5]])
    with SpanReader(store, at(whole, 4, 6), GROUPS) as reader:
        batch = reader.peek()
        assert batch is not None
        assert batch.schema == SCHEMA
        assert drain(reader) == [1, 3, 6, 7]


def test_batches_without_rows_of_the_range_are_never_read(reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[1, 2], [9, 9], [3, 1], [9, 1]])
    with SpanReader(store, at(whole, 8, 16), GROUPS) as reader:
        assert drain(reader) == [2, 3, 6]
    assert reads == [("s", 1), ("s", 3)]


def test_batches_before_the_cursor_are_never_read(reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[1, 2], [9, 1], [3, 1]])
    with SpanReader(store, at(whole, 0, 8, 4), GROUPS) as reader:
        assert drain(reader) == [4, 5]
    assert reads == [("s", 2)]


def test_a_batch_that_belongs_to_the_range_as_a_whole_is_not_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[1, 2, 3], [1, 2, 3]])
    monkeypatch.setattr(scan_module, "groups_of", lambda *_: pytest.fail("filtered"))
    with SpanReader(store, at(whole, 1, 4, 1), GROUPS) as reader:
        assert drain(reader) == [1, 2, 3, 4, 5]


def test_a_consumer_that_takes_some_rows_gets_the_exact_cursor() -> None:
    """A5: what is left is told by numbers alone."""
    store = MemoryStore()
    whole = store_batches(store, [[5, 0, 5, 0, 0, 5, 5]])
    with SpanReader(store, at(whole, 5, 6), GROUPS) as reader:
        reader.peek()
        cursors = []
        for _ in range(4):
            reader.advance(1)
            cursors.append(reader.progress().cursor)  # type: ignore[union-attr]
    assert cursors == [1, 3, 6, 7]


def test_peek_is_stable_and_shows_what_is_left() -> None:
    store = MemoryStore()
    with SpanReader(store, store_batches(store, [[1, 2, 3]]), GROUPS) as reader:
        assert reader.peek() is reader.peek()
        reader.advance(2)
        rest = reader.peek()
        assert rest is not None
        assert rest.column("number").to_pylist() == [2]
        reader.advance(0)
        assert rest is reader.peek()


def test_an_exhausted_range_has_its_cursor_at_the_end_of_the_segment() -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5, 0], [1, 1, 1]])
    with SpanReader(store, at(whole, 5, 6), GROUPS) as reader:
        drain(reader)
        assert reader.progress() == SpanProgress("s", 5, 6, 0, 5, 1, 1)


def test_a_range_without_rows_is_exhausted_when_opened(reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5, 0], [1, 1, 1]])
    with SpanReader(store, at(whole, 7, 9, 1), GROUPS) as reader:
        assert reader.peek() is None
        assert reader.progress() == SpanProgress("s", 7, 9, 1, 5, 0, 0)
    assert reads == []


def test_a_reader_that_was_never_opened_reports_nothing() -> None:
    with SpanReader(MemoryStore(), ReadSpan("nowhere", "", 0, 1, 0), GROUPS) as reader:
        assert reader.progress() is None


@pytest.mark.parametrize(("cursor", "rows"), [(0, 4), (1, 3), (2, 2), (4, 2), (5, 1), (6, 0)])
def test_the_rows_at_open_are_exact_also_inside_a_mixed_batch(cursor: int, rows: int) -> None:
    """A7"""
    store = MemoryStore()
    whole = store_batches(store, [[5, 5, 0, 0, 5, 5]])
    with SpanReader(store, at(whole, 5, 6, cursor), GROUPS) as reader:
        reader.peek()
        progress = reader.progress()
    assert progress is not None
    assert (progress.rows_at_open, progress.rows_left, progress.start_cursor) == (rows, rows, cursor)


def test_the_batch_that_holds_the_cursor_is_read_once(reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5, 0, 5, 0, 5], [5]])
    with SpanReader(store, at(whole, 5, 6, 1), GROUPS) as reader:
        assert drain(reader) == [2, 4, 5]
    assert reads == [("s", 0), ("s", 1)]


def test_rows_read_but_not_consumed_are_still_there_for_the_next_reader() -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5, 0, 5, 0, 5], [5]])
    with SpanReader(store, at(whole, 5, 6), GROUPS) as reader:
        reader.peek()
        reader.advance(2)
        progress = reader.progress()
    assert progress is not None
    with SpanReader(store, at(whole, 5, 6, progress.cursor), GROUPS) as reader:
        assert drain(reader) == [4, 5]


def test_a_few_rows_picked_from_a_batch_do_not_keep_it_in_memory() -> None:
    """B11"""
    store = MemoryStore()
    whole = store_batches(store, [[5] * 10 + [0] * 10_000], size=100)
    with SpanReader(store, at(whole, 5, 6), GROUPS) as reader:
        batch = reader.peek()
        assert batch is not None
        assert batch.get_total_buffer_size() < 10_000


def test_advancing_beyond_what_is_in_hand_is_our_own_mistake() -> None:
    store = MemoryStore()
    with SpanReader(store, store_batches(store, [[1, 2]]), GROUPS) as reader:
        with pytest.raises(AssertionError):
            reader.advance(1)
        reader.peek()
        with pytest.raises(AssertionError):
            reader.advance(3)


# --- against a plain model -------------------------------------------------------------------------------------------

hashes = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)
segments = st.lists(st.lists(hashes, min_size=1, max_size=30), min_size=1, max_size=6)


@settings(deadline=None)
@given(batches=segments, data=st.data())
def test_a_span_equals_a_plain_filter(batches: list[list[int]], data: st.DataObject) -> None:
    store = MemoryStore()
    whole = store_batches(store, batches)
    groups = groups_of(np.array([key for part in batches for key in part], np.int64), GROUPS)
    lo = data.draw(st.integers(0, GROUPS - 1))
    hi = data.draw(st.integers(lo + 1, GROUPS))
    cursor = data.draw(st.integers(0, len(groups)))
    kept = np.flatnonzero((groups >= lo) & (groups < hi))
    expected = kept[kept >= cursor].tolist()
    stop_after = data.draw(st.integers(0, len(expected)))
    with SpanReader(store, at(whole, lo, hi, cursor), GROUPS) as reader:
        found: list[int] = []
        while (batch := reader.peek()) is not None and len(found) < stop_after:
            taken = batch.slice(0, data.draw(st.integers(1, stop_after - len(found))))
            found += taken.column("number").to_pylist()
            reader.advance(taken.num_rows)
        progress = reader.progress()
    assert progress is not None
    assert found == expected[:stop_after]
    assert (progress.rows_at_open, progress.consumed) == (len(expected), stop_after)
    if stop_after == len(expected):
        assert progress.cursor == len(groups)
    else:
        assert progress.cursor == (found[-1] + 1 if found else cursor)


def cut_points(data: st.DataObject) -> list[tuple[int, int]]:
    """A random cut of all key groups into ranges, as a parallelism would make it."""
    inner = data.draw(st.lists(st.integers(1, GROUPS - 1), unique=True, max_size=5).map(sorted))
    bounds = [0, *inner, GROUPS]
    return list(pairwise(bounds))


@settings(deadline=None)
@given(batches=segments, data=st.data())
def test_a_chain_of_rescalings_delivers_every_row_once_and_in_order_per_key_group(
    batches: list[list[int]], data: st.DataObject
) -> None:
    """A8, B3, B7: only ranges and cursors are re-cut, as a checkpoint does."""
    store = MemoryStore()
    whole = store_batches(store, batches)
    groups = groups_of(np.array([key for part in batches for key in part], np.int64), GROUPS)
    left = [at(whole, 0, GROUPS)]
    delivered: dict[int, list[int]] = {}
    for phase in range(4):
        after: list[ReadSpan] = []
        for lo, hi in cut_points(data):
            for span in left:
                part = KeyGroupRange(span.lo, span.hi).intersect(KeyGroupRange(lo, hi))
                if part is None:
                    continue
                budget = data.draw(st.integers(0, 20)) if phase < 3 else len(groups)
                with SpanReader(store, at(whole, part.lo, part.hi, span.cursor), GROUPS) as reader:
                    while (batch := reader.peek()) is not None and budget > 0:
                        taken = batch.slice(0, budget)
                        budget -= taken.num_rows
                        for number in taken.column("number").to_pylist():
                            delivered.setdefault(int(groups[number]), []).append(number)
                        reader.advance(taken.num_rows)
                    progress = reader.progress()
                assert progress is not None
                after.append(at(whole, part.lo, part.hi, progress.cursor))
        left = after
    expected = {group: np.flatnonzero(groups == group).tolist() for group in np.unique(groups).tolist()}
    assert delivered == expected


# --- PrefetchingReader -----------------------------------------------------------------------------------------------


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-prefetch"]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert threads() == []


@settings(deadline=None)
@given(
    parts=st.lists(segments, max_size=4),
    budget=st.integers(0, 3000),
    step=st.integers(1, 40),
    data=st.data(),
)
def test_a_row_of_spans_is_read_in_order_whatever_the_budget(
    parts: list[list[list[int]]], budget: int, step: int, data: st.DataObject
) -> None:
    """A8"""
    store = MemoryStore()
    lo = data.draw(st.integers(0, GROUPS - 1))
    hi = data.draw(st.integers(lo + 1, GROUPS))
    spans, expected = [], []
    for number, batches in enumerate(parts):
        spans.append(at(store_batches(store, batches, f"s{number}"), lo, hi))
        groups = groups_of(np.array([key for part in batches for key in part], np.int64), GROUPS)
        expected += np.flatnonzero((groups >= lo) & (groups < hi)).tolist()
    with PrefetchingReader(store, spans, GROUPS, budget) as reader:
        assert drain(reader, step) == expected
        assert [(part.path, part.rows_left) for part in reader.progress()] == [(span.path, 0) for span in spans]


def many_batches(store: MemoryStore, path: str = "s", count: int = 20, size: int = 3) -> ReadSpan:
    return store_batches(store, [[1, 2, 3, 4]] * count, path, size)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_tiny_input_starts_no_thread(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(threading.Thread, "start", lambda _: pytest.fail("a thread was started"))
    with PrefetchingReader(store, [many_batches(store, count=count)], GROUPS) as reader:
        assert len(drain(reader)) == 4 * count


def test_a_larger_input_is_read_ahead_in_one_thread() -> None:
    store = MemoryStore()
    spans = [many_batches(store, f"s{number}") for number in range(5)]
    with PrefetchingReader(store, spans, GROUPS) as reader:
        for _ in range(3):
            batch = reader.peek()
            assert batch is not None
            reader.advance(batch.num_rows)
        assert len(threads()) <= 1
        assert len(drain(reader)) == 5 * 80 - 12


def test_spans_that_were_only_read_ahead_are_not_reported() -> None:
    """A5: what the consumer did not touch keeps its cursor."""
    store = MemoryStore()
    spans = [many_batches(store, f"s{number}") for number in range(3)]
    with PrefetchingReader(store, spans, GROUPS) as reader:
        for _ in range(12):
            assert reader.peek() is not None
            reader.advance(1)
        reader.peek()
        [thread] = threads()
        thread.join()  # all three spans fit into the budget, so it ends by itself
        assert reader.progress() == [SpanProgress("s0", 0, GROUPS, 0, 12, 80, 12)]
    assert reader.progress() == [SpanProgress("s0", 0, GROUPS, 0, 12, 80, 12)]


def test_an_exhausted_span_is_reported_with_the_span_that_follows_it() -> None:
    store = MemoryStore()
    spans = [at(many_batches(store, "a"), 9, 10), many_batches(store, "b")]
    with PrefetchingReader(store, spans, GROUPS) as reader:
        reader.peek()
        found = [(part.path, part.cursor, part.rows_at_open, part.consumed) for part in reader.progress()]
    assert found == [("a", 80, 0, 0), ("b", 0, 80, 0)]


def test_nothing_is_opened_before_the_first_peek() -> None:
    with PrefetchingReader(MemoryStore(), [ReadSpan("nowhere", "", 0, 1, 0)], GROUPS) as reader:
        assert reader.progress() == []


def flip_byte(store: MemoryStore, path: str, batch: int) -> None:
    with ArrowFile(store, path) as file:
        offset = file.batches[batch].offset + 8
    data = bytearray(store.read(path))
    data[offset] ^= 1
    store.delete([path])
    store.create(path, bytes(data))


@pytest.mark.parametrize("batch", [0, 1, 10])
def test_an_error_surfaces_at_peek_after_the_rows_before_it_and_again(batch: int) -> None:
    """B12: also from the thread, and never as a normal end."""
    store = MemoryStore()
    span = many_batches(store)
    flip_byte(store, "s", batch)
    with PrefetchingReader(store, [span], GROUPS) as reader:
        for _ in range(batch):
            assert reader.peek() is not None
            reader.advance(4)
        for _ in range(2):
            with pytest.raises(CorruptFile, match=f"s: batch {batch} has checksum"):
                reader.peek()
        assert [part.consumed for part in reader.progress()] == ([4 * batch])


def test_a_missing_segment_in_the_middle_surfaces_as_missing_file() -> None:
    """B12"""
    store = MemoryStore()
    spans = [many_batches(store, "a"), ReadSpan("gone", "", 0, 1, 0), many_batches(store, "b")]
    with PrefetchingReader(store, spans, GROUPS) as reader, pytest.raises(MissingFile, match="gone"):
        drain(reader)


def test_batches_larger_than_the_whole_budget_pass_alone() -> None:
    """B5"""
    store = MemoryStore()
    span = many_batches(store, size=5000)
    with PrefetchingReader(store, [span], GROUPS, prefetch_bytes=1) as reader:
        assert len(drain(reader)) == 80


def test_closing_early_ends_a_thread_that_waits_for_room() -> None:
    """B12: nothing hangs."""
    store = MemoryStore()
    reader = PrefetchingReader(store, [many_batches(store, size=5000)], GROUPS, prefetch_bytes=1)
    for _ in range(3):
        reader.peek()
        reader.advance(4)
    assert len(threads()) == 1
    reader.close()
    reader.close()
    assert threads() == []
    with pytest.raises(AssertionError, match="closed"):
        reader.peek()


def test_one_read_buffer_serves_all_spans_and_is_freed() -> None:
    """B4"""
    store = MemoryStore()
    spans = [many_batches(store, f"s{number}", size=1000) for number in range(3)]
    with PrefetchingReader(store, spans, GROUPS) as reader:
        drain(reader)
        assert reader._buffer.bytes > 0
    assert reader._buffer.bytes == 0


def spill(store: MemoryStore, batches: Sequence[pa.RecordBatch]) -> list[Segment]:
    writer = SegmentWriter(store, "s/{}".format, SCHEMA, groups=KeyGroupRange(0, GROUPS), **ORIGIN)
    for batch in batches:
        writer.write(batch)
    return writer.close()


def exchange(store: MemoryStore, batches: Sequence[pa.RecordBatch]) -> list[Segment]:
    writer = ExchangeWriter(store, "s/{}".format, SCHEMA, consumer_parallelism=4, **ORIGIN)
    for batch in batches:
        writer.write(batch)
    return writer.close()


ORIGIN: dict[str, Any] = {"epoch": 1, "producer": 0, "watermark": None, "max_parallelism": GROUPS}


@pytest.mark.parametrize("write", [spill, exchange])
@pytest.mark.parametrize("consumers", [1, 4, 5, 16])
def test_what_a_writer_wrote_each_consumer_reads_exactly_once_at_any_parallelism(write: Any, consumers: int) -> None:
    """B3"""
    store = MemoryStore()
    keys = np.random.default_rng(3).integers(-(2**63), 2**63 - 1, 5000)
    segments = write(store, [batch_of(first, keys[first : first + 500]) for first in range(0, 5000, 500)])
    found: list[int] = []
    for consumer in range(consumers):
        lo, hi = range_of(consumer, consumers, GROUPS).lo, range_of(consumer, consumers, GROUPS).hi
        spans = [ReadSpan(segment.path, segment.checksum, lo, hi) for segment in segments]
        with PrefetchingReader(store, spans, GROUPS) as reader:
            mine = drain(reader)
        assert all(lo <= group < hi for group in groups_of(keys[mine], GROUPS))
        found += mine
    assert sorted(found) == list(range(5000))


@pytest.mark.parametrize("consumer", range(4))
def test_a_consumer_of_an_exchange_reads_its_own_batches_only(consumer: int, reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    segments = exchange(store, [batch_of(0, list(range(1000)))])
    span = ReadSpan(segments[0].path, segments[0].checksum, consumer * 4, consumer * 4 + 4)
    with SpanReader(store, span, GROUPS) as reader:
        assert drain(reader)
    assert reads == [("s/0", consumer)]


# --- ReadAhead -------------------------------------------------------------------------------------------------------


def test_what_waits_never_exceeds_the_budget_unless_it_is_one_item() -> None:
    """B4, B11"""
    peaks: list[int] = []
    sizes = [3, 4, 5, 1, 1, 1, 30, 2, 9, 10, 11, 1] * 20

    def items() -> Any:
        for size in sizes:
            peaks.append(ahead.waiting_bytes)
            yield size

    ahead: ReadAhead[int] = ReadAhead(items(), lambda size: size, 10)
    ahead.start()
    found = []
    while (size := ahead.get()) is not None:
        found.append(size)
    ahead.close()
    assert found == sizes
    assert all(peak <= 10 or peak in (11, 30) for peak in peaks)
