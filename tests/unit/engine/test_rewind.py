"""Rows that were taken and come back: a rewound reader is where it was, and what is left adds up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.inflight.gate import Channel, TakenSlice
from penstock.inflight.live import LiveInputs, LiveRows
from penstock.inflight.reader import PrefetchingReader
from penstock.inflight.watermarks import ChannelWatermarks
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Segment
from penstock.protocol.reads import ReadSpan
from penstock.store import MemoryStore
from tests.support.reading import GROUPS, SCHEMA, at, batch_of, drain, segments, store_batches


class Written:
    """Where spilled rows go."""

    def __init__(self, watermark: int | None) -> None:
        self.watermark = watermark
        self.batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def close(self) -> list[Segment]:
        return []

    def numbers(self) -> list[int]:
        return [number for batch in self.batches for number in batch.column("number").to_pylist()]


def live_rows_of(
    batches: list[pa.RecordBatch], open_writer: Callable[[int | None], Written], watermark: int | None = None
) -> tuple[LiveInputs, LiveRows]:
    inputs, rows = LiveInputs.single(iter(batches), "edge"), LiveRows(SCHEMA, open_writer, watermark)
    inputs.attach("edge", rows)
    return inputs, rows


@settings(max_examples=60, deadline=None)
@given(
    st.lists(segments, min_size=1, max_size=3),
    st.integers(0, GROUPS - 1),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(0, 12),
)
def test_slices_given_back_are_read_again_in_order(
    stored: list[list[list[int]]], lo: int, sizes: list[int], kept: int, live_rows: int
) -> None:
    """D5, A5, A7, A8: across batches, spans and into live rows; nothing of a segment is written again."""
    store = MemoryStore()
    spans = [at(store_batches(store, batches, f"s{n}"), lo, GROUPS) for n, batches in enumerate(stored)]
    with PrefetchingReader(store, spans, GROUPS) as plain:
        wanted = drain(plain)
    live = batch_of(1000, [lo] * live_rows)
    opened: list[Written] = []

    def open_writer(watermark: int | None) -> Written:
        opened.append(Written(watermark))
        return opened[-1]

    reader = PrefetchingReader(store, spans, GROUPS)
    inputs, rows = live_rows_of([live], open_writer)
    channel = Channel("edge", reader, rows)
    taken: list[TakenSlice] = []
    for size in sizes:
        part = channel.take_returnable(size)
        if part is None:
            break
        taken.append(part)
    channel.rewind(taken[kept:])
    inputs.drain()
    report = channel.spill()
    channel.close()
    done = [n for part in taken[:kept] for n in part.batch.column("number").to_pylist()]
    rest = [span for span in (_rest(span, report.spans) for span in spans) if span is not None]
    with PrefetchingReader(store, rest, GROUPS) as again:
        left = drain(again) + (opened[0].numbers() if opened else [])
    assert done + left == [*wanted, *range(1000, 1000 + live_rows)]
    assert report.consumed == len(done)
    assert report.live_accepted == live_rows


def _rest(span: ReadSpan, reports: tuple) -> ReadSpan | None:
    mine = [part for part in reports if part.path == span.path]
    cursor = mine[0].cursor if mine else span.cursor
    return None if mine and not mine[0].rows_left else at(span, span.lo, span.hi, cursor)


def test_rows_put_back_are_written_in_front_of_live_ones_with_their_own_watermark() -> None:
    """D5, A7, A10."""
    opened: list[Written] = []

    def open_writer(watermark: int | None) -> Written:
        opened.append(Written(watermark))
        return opened[-1]

    store = MemoryStore()
    span = store_batches(store, [[1, 2, 3, 4]])
    inputs, rows = live_rows_of([batch_of(100, [1, 1, 1])], open_writer, watermark=50)
    channel = Channel("edge", PrefetchingReader(store, [span], GROUPS), rows)
    first, second = channel.take_returnable(10), channel.take_returnable(1)
    assert first is not None
    assert second is not None
    channel.put_back([first.batch.take(pa.array(np.array([1, 3])))], 20)
    inputs.drain()
    report = channel.spill()
    channel.close()
    assert [writer.watermark for writer in opened] == [20]
    assert opened[0].numbers() == [1, 3, 101, 102]
    assert (report.live_accepted, report.live_consumed, report.put_back, report.consumed) == (3, 1, 2, 3)


def test_a_key_group_waits_for_a_row_put_back_behind_younger_ones() -> None:
    """A10: its watermark is the lowest of all that is unread."""
    reads = [ReadSpan("old", "", 0, 4, watermark=30), ReadSpan("put-back", "", 0, 2, watermark=10)]
    marks = ChannelWatermarks(KeyGroupRange(0, 4), reads, 90)
    assert marks.now.tolist() == [10, 10, 30, 30]
    marks.passed(1)
    assert marks.now.tolist() == [10, 10, 90, 90]
    marks.passed(2)
    assert marks.now.tolist() == [90, 90, 90, 90]
