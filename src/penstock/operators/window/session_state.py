"""Sessions of keys: merged where they meet, and packed into one row of state per key.

Sessions of a key always stand in the order in which their first rows came, also in the state: when sessions merge,
their aggregates are combined in this order. So results do not depend on how rows were cut into slices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.parts import Part, Reducer, concat_parts
from penstock.operators.grouping import Groups, Numbered, group_rows
from penstock.operators.window.panes import Hashes
from penstock.operators.window.windows import Micros
from penstock.records import NO_WATERMARK
from penstock.state.keys import Rows

TIMERS_STATE = "timers"
TIMER_FIELDS = (pa.field("due", pa.int64()), pa.field("hash", pa.int64()))
"""Of a key in a pane of `TIMERS_STATE`: the end of its first session, and the hash its state is found by."""


def session_fields(states: Sequence[pa.Field]) -> list[pa.Field]:
    """State columns of a key: the pane of its timer, and lists with an item per session."""
    bounds = [pa.field(name, pa.list_(pa.int64())) for name in ("__start", "__end")]
    return [pa.field("__timer", pa.int64()), *bounds, *(pa.field(f.name, pa.list_(f.type)) for f in states)]


class Sessions(NamedTuple):
    """One row per session: key and aggregates, first event time and end."""

    part: Part
    starts: Micros
    ends: Micros

    @property
    def rows(self) -> int:
        return len(self.starts)

    def take(self, rows: Rows) -> Sessions:
        if len(rows) == self.rows:
            return self
        return Sessions(self.part.take(rows), self.starts[rows], self.ends[rows])


class Packed(NamedTuple):
    """Sessions by key: its hash and columns, the end of its first session, and the lists of its state row."""

    hashes: Hashes
    keys: pa.RecordBatch
    due: Micros
    lists: list[pa.Array]


def sessions_of(
    reducer: Reducer, hashes: Hashes, keys: pa.RecordBatch, times: Micros, gap: int, batch: pa.RecordBatch
) -> Sessions:
    """The rows of a slice as sessions."""
    ids = group_rows(hashes, keys).ids
    order, begins = _runs(ids, times, times + gap)
    groups, firsts, starts, stops = _numbered(order, begins)
    part = reducer.reduce_groups(hashes[firsts], keys.take(pa.array(firsts)), batch, groups)
    return Sessions(part, times[order[starts]], times[order[stops - 1]] + gap)


def merged(reducer: Reducer, parts: Sequence[Sessions]) -> Sessions:
    """Sessions joined where they overlap or touch; `parts` come oldest first."""
    if len(parts) == 1:
        return parts[0]
    together = concat(parts)
    part = together.part
    ids = group_rows(part.hashes, part.keys).ids
    order, begins = _runs(ids, together.starts, together.ends)
    groups, firsts, starts, _ = _numbered(order, begins)
    ends = np.full(groups.count, NO_WATERMARK, np.int64)
    np.maximum.at(ends, groups.ids, together.ends)
    keys = part.keys.take(pa.array(firsts))
    combined = reducer.combine_groups(part.hashes[firsts], keys, part.states, groups)
    return Sessions(combined, together.starts[order[starts]], ends)


def concat(parts: Sequence[Sessions]) -> Sessions:
    return Sessions(
        concat_parts([sessions.part for sessions in parts]),
        np.concatenate([sessions.starts for sessions in parts]),
        np.concatenate([sessions.ends for sessions in parts]),
    )


def _runs(ids: Rows, starts: Micros, ends: Micros) -> tuple[Rows, np.ndarray]:
    """Rows by id and start, and which of them begin a new run: after a gap, or of another id."""
    order = np.lexsort((starts, ids))
    ids, starts, ends = ids[order], starts[order], ends[order]
    # The largest end so far within an id: ends by rank, lifted above all those of earlier ids.
    by_end = np.argsort(ends)
    ranks = np.empty(len(ends), np.int64)
    ranks[by_end] = np.arange(len(ends))
    lifted = np.maximum.accumulate(ids * len(ends) + ranks)
    until = ends[by_end[lifted - ids * len(ends)]]
    begins = np.ones(len(ids), np.bool_)
    begins[1:] = (ids[1:] != ids[:-1]) | (starts[1:] > until[:-1])
    return order, begins


def _numbered(order: Rows, begins: np.ndarray) -> tuple[Groups, Rows, Rows, Rows]:
    """Runs as groups of the rows in their own order, by their first rows in that order, which come next; then where
    in `order` each run starts and stops."""
    starts = np.flatnonzero(begins)
    firsts = np.minimum.reduceat(order, starts)
    by_arrival = np.argsort(firsts)
    numbers = np.empty_like(by_arrival)
    numbers[by_arrival] = np.arange(len(starts))
    ids = np.empty(len(order), np.int64)
    ids[order] = numbers[np.cumsum(begins) - 1]
    stops = np.append(starts[1:], len(order))
    return Numbered(ids, len(starts)), firsts[by_arrival], starts[by_arrival], stops[by_arrival]


def pack(sessions: Sessions) -> Packed:
    """The state rows of the keys of some sessions."""
    part = sessions.part
    grouping = group_rows(part.hashes, part.keys)
    order, firsts = grouping.order, grouping.firsts
    offsets = pa.array(np.append(grouping.starts, len(order)).astype(np.int32))
    columns = [pa.array(sessions.starts), pa.array(sessions.ends), *part.columns()]
    indices = pa.array(order)
    lists = [pa.ListArray.from_arrays(offsets, column.take(indices)) for column in columns]
    due = np.minimum.reduceat(sessions.ends[order], grouping.starts)
    return Packed(part.hashes[firsts], part.keys.take(pa.array(firsts)), due, lists)


def unpack(reducer: Reducer, hashes: Hashes, keys: pa.RecordBatch, lists: Sequence[pa.Array]) -> tuple[Sessions, Rows]:
    """The sessions in state rows of keys, and the row that each came from; a null row has none."""
    counts = lists[0].value_lengths().fill_null(0).to_numpy()
    owners = np.repeat(np.arange(len(hashes)), counts)
    starts, ends, *states = [column.flatten() for column in lists]
    part = Part(hashes[owners], keys.take(pa.array(owners)), reducer.split(states))
    return Sessions(part, starts.to_numpy(), ends.to_numpy()), owners
