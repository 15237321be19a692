"""Reading in-flight records: each row of a range exactly once, in order, from any cursor, after any rescaling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.inflight import scan as scan_module
from penstock.inflight.reader import PrefetchingReader, SpanReader
from penstock.inflight.segment import ExchangeWriter, SegmentWriter
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.protocol.manifest import Segment
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.store import MemoryStore
from penstock.store.arrowfile import ArrowFile
from tests.support.reading import GROUPS, SCHEMA, at, batch_of, drain, segments, store_batches


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
            cursors.append(reader.report().cursor)  # type: ignore[union-attr]
    assert cursors == [1, 3, 6, 7]


def test_a_cursor_inside_a_batch_of_the_range_alone_moves_on_from_there() -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5] * 10])
    with SpanReader(store, at(whole, 5, 6, 4), GROUPS) as reader:
        reader.peek()
        reader.advance(3)
        assert reader.report() == SpanReport("s", 5, 6, 4, 7, 6, 3)


def test_the_cursor_is_exact_where_the_rows_of_the_range_are_together_within_a_batch() -> None:
    store = MemoryStore()
    whole = store_batches(store, [[1], [1, 1, 5, 5, 5, 5, 6]])
    with SpanReader(store, at(whole, 5, 6), GROUPS) as reader:
        reader.peek()
        reader.advance(2)
        assert reader.report() == SpanReport("s", 5, 6, 0, 5, 4, 2)


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
        assert reader.report() == SpanReport("s", 5, 6, 0, 5, 1, 1)


def test_a_range_without_rows_is_exhausted_when_opened(reads: list[tuple[str, int]]) -> None:
    store = MemoryStore()
    whole = store_batches(store, [[5, 0], [1, 1, 1]])
    with SpanReader(store, at(whole, 7, 9, 1), GROUPS) as reader:
        assert reader.peek() is None
        assert reader.report() == SpanReport("s", 7, 9, 1, 5, 0, 0)
    assert reads == []


def test_a_reader_that_was_never_opened_reports_nothing() -> None:
    with SpanReader(MemoryStore(), ReadSpan("nowhere", "", 0, 1, 0), GROUPS) as reader:
        assert reader.report() is None


@pytest.mark.parametrize(("cursor", "rows"), [(0, 4), (1, 3), (2, 2), (4, 2), (5, 1), (6, 0)])
def test_the_rows_at_open_are_exact_also_inside_a_mixed_batch(cursor: int, rows: int) -> None:
    """A7"""
    store = MemoryStore()
    whole = store_batches(store, [[5, 5, 0, 0, 5, 5]])
    with SpanReader(store, at(whole, 5, 6, cursor), GROUPS) as reader:
        reader.peek()
        report = reader.report()
    assert report is not None
    assert (report.rows_at_open, report.rows_left, report.start_cursor) == (rows, rows, cursor)


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
        report = reader.report()
    assert report is not None
    with SpanReader(store, at(whole, 5, 6, report.cursor), GROUPS) as reader:
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
        report = reader.report()
    assert report is not None
    assert found == expected[:stop_after]
    assert (report.rows_at_open, report.consumed) == (len(expected), stop_after)
    if stop_after == len(expected):
        assert report.cursor == len(groups)
    else:
        assert report.cursor == (found[-1] + 1 if found else cursor)


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
                    report = reader.report()
                assert report is not None
                after.append(at(whole, part.lo, part.hi, report.cursor))
        left = after
    expected = {group: np.flatnonzero(groups == group).tolist() for group in np.unique(groups).tolist()}
    assert delivered == expected


# --- with the writers ------------------------------------------------------------------------------------------------


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
