"""Reads state by spans of orders instead of by key, and estimates how much a span holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.state.compact import Level
from penstock.state.keys import Rows
from penstock.state.runs import Orders, SortedRun, merge


class Entries(NamedTuple):
    """Live entries, sorted by order."""

    orders: Orders
    keys: pa.RecordBatch
    values: pa.RecordBatch

    @property
    def rows(self) -> int:
        return len(self.orders)

    def take(self, rows: Rows) -> Entries:
        indices = pa.array(rows)
        return Entries(self.orders[rows], self.keys.take(indices), self.values.take(indices))


class KeySpans(NamedTuple):
    """Spans of orders, first and last included, ascending and apart from each other."""

    firsts: Orders
    lasts: Orders


def count_within(levels: Iterable[Level], spans: KeySpans) -> Rows:
    """How many rows each span has at most; superseded and deleted ones count."""
    counts = np.zeros(len(spans.firsts), np.int64)
    for run in _touched(levels, spans):
        counts += np.searchsorted(run.orders, spans.lasts, side="right") - np.searchsorted(run.orders, spans.firsts)
    return counts


def read_within(levels: Iterable[Level], spans: KeySpans) -> SortedRun | None:
    """The live rows of all spans, from `levels`, newest first; None: there are none."""
    parts = [part for run in _touched(levels, spans) if (part := _picked(run, spans)) is not None]
    if not parts:
        return None
    merged = merge(parts, drop_deleted=True)
    return merged if merged.rows else None


def first_within(levels: Iterable[Level], spans: KeySpans) -> Orders:
    """The first order of each span that has rows, superseded and deleted ones included."""
    found = [np.empty(0, np.uint64)]
    for run in _touched(levels, spans):
        starts = np.searchsorted(run.orders, spans.firsts)
        firsts = run.orders[np.minimum(starts, run.rows - 1)]
        found.append(firsts[(starts < run.rows) & (firsts <= spans.lasts)])
    return np.concatenate(found)


def last_within(levels: Iterable[Level], spans: KeySpans) -> Orders:
    """The last order of each span that has rows, superseded and deleted ones included."""
    found = [np.empty(0, np.uint64)]
    for run in _touched(levels, spans):
        stops = np.searchsorted(run.orders, spans.lasts, side="right")
        lasts = run.orders[np.maximum(stops - 1, 0)]
        found.append(lasts[(stops > 0) & (lasts >= spans.firsts)])
    return np.concatenate(found)


def _touched(levels: Iterable[Level], spans: KeySpans) -> Iterable[SortedRun]:
    if len(spans.firsts):
        for level in levels:
            yield from level.between(spans.firsts[0], spans.lasts[-1])


def _picked(run: SortedRun, spans: KeySpans) -> SortedRun | None:
    starts = np.searchsorted(run.orders, spans.firsts)
    counts = np.searchsorted(run.orders, spans.lasts, side="right") - starts
    picked = np.flatnonzero(counts)
    if not len(picked):
        return None
    if len(picked) == 1:
        start = int(starts[picked[0]])
        return run.slice(start, start + int(counts[picked[0]]))
    starts, counts = starts[picked], counts[picked]
    # Positions start, start + 1, … of one span after the other.
    rows = np.arange(counts.sum()) + np.repeat(starts - np.concatenate([[0], np.cumsum(counts)[:-1]]), counts)
    indices = pa.array(rows)
    deleted = None if run.deleted is None else run.deleted[rows]
    return SortedRun(run.orders[rows], [column.take(indices) for column in run.columns], run.key_count, deleted)
