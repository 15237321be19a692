"""Reading many spans in a row, ahead of the consumer: in order, within the budget, and never hanging."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import CorruptFile, MissingFile
from penstock.inflight.prefetch import ReadAhead
from penstock.inflight.reader import PrefetchingReader
from penstock.protocol.keygroups import groups_of
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.store import MemoryStore
from penstock.store.arrowfile import ArrowFile
from tests.support.reading import GROUPS, at, drain, segments, store_batches


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
        assert [(part.path, part.rows_left) for part in reader.report()] == [(span.path, 0) for span in spans]


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
        assert reader.report() == [SpanReport("s0", 0, GROUPS, 0, 12, 80, 12)]
    assert reader.report() == [SpanReport("s0", 0, GROUPS, 0, 12, 80, 12)]


def test_an_exhausted_span_is_reported_with_the_span_that_follows_it() -> None:
    store = MemoryStore()
    spans = [at(many_batches(store, "a"), 9, 10), many_batches(store, "b")]
    with PrefetchingReader(store, spans, GROUPS) as reader:
        reader.peek()
        found = [(part.path, part.cursor, part.rows_at_open, part.consumed) for part in reader.report()]
    assert found == [("a", 80, 0, 0), ("b", 0, 80, 0)]


def test_nothing_is_opened_before_the_first_peek() -> None:
    with PrefetchingReader(MemoryStore(), [ReadSpan("nowhere", "", 0, 1, 0)], GROUPS) as reader:
        assert reader.report() == []


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
        assert [part.consumed for part in reader.report()] == ([4 * batch])


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


def test_memory_depends_on_the_budget_and_not_on_what_is_in_flight() -> None:
    """B11"""
    store = MemoryStore()
    spans = [store_batches(store, [[1] * 10_000] * 20, f"s{number}", size=100) for number in range(5)]
    before, peak, read = pa.total_allocated_bytes(), 0, 0
    with PrefetchingReader(store, spans, GROUPS, prefetch_bytes=8 << 20) as reader:
        while (batch := reader.peek()) is not None:
            read += batch.get_total_buffer_size()
            peak = max(peak, pa.total_allocated_bytes() - before)
            reader.advance(batch.num_rows)
    # The budget, one batch in the thread's hand, one in the consumer's.
    one = read // 100
    assert read > 100 << 20
    assert peak <= (8 << 20) + 3 * one
