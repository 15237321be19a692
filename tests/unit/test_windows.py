"""Windows against a dictionary: out of order, late, interrupted, rescaled (D2, A10)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import PipelineError
from penstock.operators import closing
from penstock.operators.base import NO_WATERMARK
from penstock.operators.window_aggregate import WindowAggregate
from penstock.operators.windows import RegularWindow, SessionWindow, Window
from tests.unit.operator_harness import Rows
from tests.unit.window_harness import Epoch, Windows

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
AGGREGATES = {"n": pen.count(), "total": pen.sum("amount"), "latest": pen.last("amount"), "high": pen.max("amount")}

TIMES = st.integers(-50, 150)
ROW = st.tuples(st.integers(0, 5), st.none() | TIMES, st.integers(-9, 9))
SLICE = st.tuples(st.integers(0, 25), st.lists(ROW, max_size=8))
EPOCH = st.tuples(
    st.integers(1, 3), st.lists(SLICE, max_size=3), st.sampled_from([1, 2, 1_000_000]), st.booleans()
)
EPOCHS = st.lists(EPOCH, min_size=1, max_size=8)
REGULAR = st.sampled_from([
    RegularWindow(10, 10), RegularWindow(10, 10, 3), RegularWindow(30, 10), RegularWindow(25, 10, 7),
    RegularWindow(12, 9), RegularWindow(40, 1),
])  # fmt: skip


def at(micros: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=micros)


def batch_of(rows: Iterable[tuple[int, int | None, int]]) -> pa.RecordBatch:
    named = [{"user": user, "ts": None if ts is None else at(ts), "amount": amount} for user, ts, amount in rows]
    return pa.RecordBatch.from_pylist(named, schema=SCHEMA)


def windows_of(window: RegularWindow, ts: int) -> list[tuple[int, int]]:
    """By trying all of them."""
    starts = range((ts - window.size) // window.every - 1, ts // window.every + 2)
    bounds = [(k * window.every + window.offset, k * window.every + window.offset + window.size) for k in starts]
    return [(start, end) for start, end in bounds if start <= ts < end]


def result(user: int, bounds: tuple[int, int], amounts: list[int]) -> dict[str, Any]:
    return {
        "user": user, "window_start": at(bounds[0]), "window_end": at(bounds[1]),
        "n": len(amounts), "total": sum(amounts), "latest": amounts[-1], "high": max(amounts),
    }  # fmt: skip


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: tuple(map(str, row.values())))


class RegularOracle:
    """Windows as a dictionary."""

    def __init__(self, window: RegularWindow, lateness: int, *, updates: bool) -> None:
        self.window, self.lateness, self.updates = window, lateness, updates
        self.panes: dict[tuple[int, tuple[int, int]], list[int]] = {}
        self.closed: set[tuple[int, tuple[int, int]]] = set()
        self.late = 0
        self.watermark = NO_WATERMARK

    def advance(self, watermark: int) -> Rows:
        self.watermark = max(self.watermark, watermark)
        rows = []
        for key, amounts in self.panes.items():
            if key[1][1] <= self.watermark and key not in self.closed:
                self.closed.add(key)
                rows.append(result(*key, amounts))
        return [] if self.updates else rows

    def add(self, rows: Iterable[tuple[int, int | None, int]]) -> set[tuple[int, tuple[int, int]]]:
        touched = set()
        for user, ts, amount in rows:
            windows = [] if ts is None else windows_of(self.window, ts)
            if not any(end + self.lateness > self.watermark for _, end in windows):
                self.late += 1
                continue
            for bounds in windows:
                if bounds[1] + self.lateness > self.watermark:
                    self.panes.setdefault((user, bounds), []).append(amount)
                    touched.add((user, bounds))
                    if bounds[1] <= self.watermark:
                        self.closed.add((user, bounds))
        return touched


def spec_of(window: Window, lateness: int = 0, emit: Any = "on_close") -> WindowAggregate:
    return WindowAggregate("w", SCHEMA, ("user",), "ts", window, AGGREGATES, lateness, emit)


@settings(deadline=None, max_examples=150)
@given(window=REGULAR, epochs=EPOCHS, step_rows=st.sampled_from([1, 4, 1 << 14]))
def test_each_window_closes_once_with_all_its_rows(window: RegularWindow, epochs: Any, step_rows: int) -> None:
    """D2, A10: whatever is interrupted, repeated and rescaled in between."""
    oracle = RegularOracle(window, 0, updates=False)
    expected: Rows = []
    watermark = 0
    with mock.patch.object(closing, "STEP_ROWS", step_rows), Windows(spec_of(window), ["user"]) as run:
        for parallelism, slices, yields, crash in epochs:
            made = []
            for step, rows in slices:
                watermark += step
                expected += oracle.advance(watermark)
                oracle.add(rows)
                made.append((watermark, batch_of(rows)))
            run.run(Epoch(parallelism, made, yields, crash))
        run.run(Epoch(2, [(1000, batch_of([]))]))
        expected += oracle.advance(1000)
        run.run(Epoch(1, []))
    assert in_order(run.rows()) == in_order(expected)
    assert len(run.late) == oracle.late
    assert all(due.event_time is None for due in run.due), "nothing is left"
