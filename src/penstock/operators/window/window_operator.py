"""Tumbling and sliding windows in a subtask: one entry of state per key and pane, windows put together when they close.

Slices are reduced to one row per key and pane, as running aggregates are, and reach the state when a window is due or
the epoch ends. Closing goes in bounded steps; each leaves state and `PaneClock` as if it were the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.parts import Part, Pending, Reducer
from penstock.operators.base import OperatorContext
from penstock.operators.grouping import Numbered, group_rows
from penstock.operators.window.changes import RunsOfPanes, windows_with
from penstock.operators.window.closing import Closed, Closing
from penstock.operators.window.lateness import split_late
from penstock.operators.window.pane_clock import CLOCK_STATE, NEVER, PaneClock
from penstock.operators.window.panes import Hashes, PaneIndex
from penstock.operators.window.results import Results
from penstock.operators.window.windows import Micros, RegularWindow
from penstock.protocol.keygroups import groups_of
from penstock.records import LATE, MAIN_STATE, NO_WATERMARK, Due, Emitted, Records, Time
from penstock.state.keys import Flags, normalise_keys

if TYPE_CHECKING:
    from penstock.operators.window.window_aggregate import WindowAggregate

# Before every event time, and far enough from the smallest number for arithmetic.
_LONG_AGO = NO_WATERMARK // 2


class RegularWindowOperator:
    """One subtask attempt's windows."""

    def __init__(self, spec: WindowAggregate, window: RegularWindow, context: OperatorContext) -> None:
        self._spec, self._window = spec, window
        self._keys = list(spec.keys)
        self._state, self._schema = context.state, spec.state_tables[MAIN_STATE]
        self._first_group, self._max_parallelism = context.groups.lo, context.max_parallelism
        self._index = PaneIndex(context.max_parallelism)
        self._reducer = Reducer(spec.name, spec.aggregates, spec.accumulators, context.max_parallelism)
        self._results = Results(spec, self._reducer)
        self._pending = Pending(self._reducer)
        self._updates = spec.emit == "on_update"
        self._emits_changes = self._updates or spec.allowed_lateness > 0
        self._clock = PaneClock(context.groups, context.states[CLOCK_STATE])
        self._closing = Closing(
            window,
            spec.allowed_lateness,
            context.groups,
            context.max_parallelism,
            self._state,
            self._clock,
            closes=not self._updates,
        )
        self._watermarks = np.full(len(context.groups), NO_WATERMARK, np.int64)
        self._late = 0
        # By key group, when the first window with pending rows is over for good: its update must be out by then.
        self._expiry = np.full(len(context.groups), NEVER, np.int64)

    def process(self, records: Records) -> Iterator[Emitted]:
        timely = split_late(records, self._spec.time_column, self._spec.time_shift, self._deadline)
        self._late += 0 if timely.late is None else timely.late.num_rows
        if records.time is not None:
            self._watermarks = records.time.watermarks
        if timely.batch.num_rows:
            panes = self._window.panes_of(timely.times)
            keys = normalise_keys(timely.batch.select(self._keys), self._keys)
            hashes = self._index.hashes(timely.hashes, panes)
            part = self._reducer.reduce(hashes, self._with_pane(keys, panes), timely.batch)
            groups = groups_of(part.hashes, self._max_parallelism)
            self._clock.touch(groups, _panes_of(part), self._watermarks)
            self._pending.add(part)
            if self._emits_changes:
                self._expire(groups - self._first_group, _panes_of(part))
        return iter(() if timely.late is None else (self._spec.late(timely.late),))

    def _expire(self, groups: Hashes, panes: Hashes) -> None:
        over = np.maximum(self._watermarks[groups], _LONG_AGO) - self._spec.allowed_lateness
        following = self._window.first_ending_after(over)
        windows = np.maximum(self._window.first_window_of(panes), following)
        np.minimum.at(self._expiry, groups, self._window.end_of(windows) + self._spec.allowed_lateness)

    def _deadline(self, times: Micros) -> Micros:
        last = self._window.last_window_of(self._window.panes_of(times))
        return self._window.end_of(last) + self._spec.allowed_lateness

    def finish(self) -> Iterator[Emitted]:
        yield from self._flush()
        self._clock.store()

    def advance(self, time: Time) -> Iterator[Emitted]:
        due = np.flatnonzero(self._closing.due() <= time.watermarks)
        if len(due) or (self._expiry <= time.watermarks).any():
            changed = list(self._flush())
            if changed:
                # Before the yield: the generator may end here, and the state does not say what changed.
                yield pa.concat_batches(changed)
        self._watermarks = time.watermarks
        for steps in self._closing.steps(due, time.watermarks):
            closed = self._closing.read(steps)
            output = self._results.nothing if closed is None else self._closed(closed)
            self._closing.done(steps)
            yield output
        self._clock.follow(time.watermarks)

    def counters(self) -> Mapping[str, int]:
        return {LATE: self._late}

    def next_due(self) -> Due:
        due = int(self._closing.due().min())
        return Due(event_time=None if due == NEVER else due, last=self._closing.last_end())

    # -- windows that close --------------------------------------------------------------------------------------

    def _closed(self, closed: Closed) -> pa.RecordBatch:
        """The results of closed windows; their dead entries are deleted."""
        entries, rows, windows = closed.entries, closed.rows, closed.windows
        output = self._results.nothing
        if len(rows):
            picked = entries.take(rows)
            states = self._reducer.split(picked.values.columns)
            hashes = self._index.key_hashes(picked.orders)
            if self._window.panes_per_window == 1:
                part = Part(hashes, picked.keys, states)
            else:
                keys = self._with_pane(picked.keys.select(self._keys), windows)
                grouping = group_rows(self._index.hashes(hashes, windows), keys)
                firsts = grouping.firsts
                keys, windows = keys.take(pa.array(firsts)), windows[firsts]
                part = self._reducer.combine_groups(hashes[firsts], keys, states, grouping)
            output = self._emit(part, windows)
        self._state.delete(entries if closed.dead.all() else entries.take(np.flatnonzero(closed.dead)))
        return output

    # -- windows that change while they are open, or after they closed -------------------------------------------

    def _flush(self) -> Iterator[pa.RecordBatch]:
        """Writes pending rows into the state, and yields results of changed windows that are wanted now."""
        part = self._pending.take()
        if part is None:
            return
        found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(found.values, found.found, part)
        values = pa.RecordBatch.from_arrays(part.columns(), schema=self._schema.values)
        self._state.update(part.hashes, part.keys, values)
        self._expiry.fill(NEVER)
        if self._emits_changes:
            yield from self._changed(part)

    def _changed(self, part: Part) -> Iterator[pa.RecordBatch]:
        panes = _panes_of(part)
        if self._window.panes_per_window == 1:
            wanted = np.flatnonzero(self._is_wanted(part.hashes, panes))
            if len(wanted):
                yield self._emit(part.take(wanted), panes[wanted])
            return
        keys = part.keys.select(self._keys)
        ids = group_rows(self._index.hashes(part.hashes, np.zeros_like(panes)), keys).ids
        for every, windows in windows_with(self._window, ids, panes):
            wanted = np.flatnonzero(self._is_wanted(part.hashes[every], windows))
            if len(wanted):
                rows, runs = every[wanted], RunsOfPanes(self._window, ids[every[wanted]], windows[wanted])
                yield from self._looked_up(part.hashes[rows], keys.take(pa.array(rows)), runs)

    def _is_wanted(self, hashes: Hashes, windows: Hashes) -> Flags:
        """Whether changes of these windows are emitted at once: always, or if a result was already emitted."""
        groups = groups_of(hashes, self._max_parallelism) - self._first_group
        ends = self._window.end_of(windows)
        alive: Flags = ends + self._spec.allowed_lateness > self._watermarks[groups]
        if self._updates:
            return alive
        clock = self._clock
        halfway = (ends <= clock.target[groups]) & (self._index.places(hashes) < clock.place[groups])
        return alive & ((ends <= clock.done[groups]) | halfway)

    def _looked_up(self, hashes: Hashes, keys: pa.RecordBatch, runs: RunsOfPanes) -> Iterator[pa.RecordBatch]:
        """Windows of some keys, from all their panes; each pane is looked up once."""
        rows, panes = runs.panes()
        every = self._with_pane(keys.take(pa.array(rows)), panes)
        values, found = self._state.lookup(self._index.hashes(hashes[rows], panes), every)
        present = values.take(pa.array(np.flatnonzero(found)))
        for some, positions, ids in runs.combined(found):
            states = self._reducer.split(present.take(pa.array(positions)).columns)
            windows = runs.windows[some]
            named = self._with_pane(keys.slice(some.start, len(windows)), windows)
            part = self._reducer.combine_groups(hashes[some], named, states, Numbered(ids, len(windows)))
            yield self._emit(part, windows)

    def _emit(self, part: Part, windows: Hashes) -> pa.RecordBatch:
        return self._results.of(part, self._window.start_of(windows), self._window.end_of(windows))

    def _with_pane(self, keys: pa.RecordBatch, panes: Hashes) -> pa.RecordBatch:
        """Key columns and a number: of a pane as in the state, or of a window."""
        return pa.RecordBatch.from_arrays([*keys.columns, pa.array(panes)], schema=self._schema.keys)


def _panes_of(part: Part) -> Hashes:
    panes: Hashes = part.keys.column(part.keys.num_columns - 1).to_numpy()
    return panes
