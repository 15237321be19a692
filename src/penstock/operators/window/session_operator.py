"""Session windows in a subtask: one entry of state per key with all its open sessions, and a timer for the first.

A timer is in the pane of time in which its key's first session ends if no more rows come. New rows do not move the
timer. When its pane is due, the operator sets it again for the sessions that are left. So a key that is always busy
costs one timer per pane, not one per row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.aggregate.parts import Reducer
from penstock.operators.base import OperatorContext
from penstock.operators.window.closing import Closing, Step
from penstock.operators.window.lateness import split_late
from penstock.operators.window.pane_clock import CLOCK_STATE, NEVER, PaneClock
from penstock.operators.window.panes import PLACES, Hashes, PaneIndex, Stretch
from penstock.operators.window.results import Results
from penstock.operators.window.session_state import (
    TIMERS_STATE,
    Packed,
    Sessions,
    concat,
    merged,
    pack,
    sessions_of,
    unpack,
)
from penstock.operators.window.windows import Micros, RegularWindow, SessionWindow
from penstock.protocol.keygroups import groups_of
from penstock.records import LATE, MAIN_STATE, NO_WATERMARK, Due, Emitted, Records, Time
from penstock.state.keys import normalise_keys
from penstock.state.layout import groups_of_orders
from penstock.state.ranges import Entries

if TYPE_CHECKING:
    from penstock.operators.window.window_aggregate import WindowAggregate

_PANES_PER_GAP = 16
# Pending sessions are merged once they are so many, and twice what the last time left.
_MERGE_ROWS_MIN = 1 << 18


class SessionOperator:
    """One subtask attempt's sessions."""

    def __init__(self, spec: WindowAggregate, window: SessionWindow, context: OperatorContext) -> None:
        self._spec, self._gap = spec, window.gap
        self._keys = list(spec.keys)
        self._state, self._schema = context.state, spec.state_tables[MAIN_STATE]
        self._timers, self._timer_schema = context.states[TIMERS_STATE], spec.state_tables[TIMERS_STATE]
        self._first_group, self._max_parallelism = context.groups.lo, context.max_parallelism
        self._pane = max(1, window.gap // _PANES_PER_GAP)
        self._index = PaneIndex(context.max_parallelism)
        self._reducer = Reducer(spec.name, spec.aggregates, spec.accumulators, context.max_parallelism)
        self._results = Results(spec, self._reducer)
        self._pending: list[Sessions] = []
        self._merge_at_rows = _MERGE_ROWS_MIN
        self._clock = PaneClock(context.groups, context.states[CLOCK_STATE])
        # A timer may be due as soon as its pane begins.
        self._closing = Closing(
            RegularWindow(self._pane, self._pane),
            -self._pane,
            context.groups,
            context.max_parallelism,
            self._timers,
            self._clock,
            closes=False,
        )
        self._pending_due = np.full(len(context.groups), NEVER, np.int64)
        self._watermarks = np.full(len(context.groups), NO_WATERMARK, np.int64)
        self._late = 0

    def process(self, records: Records) -> Iterator[Emitted]:
        timely = split_late(records, self._spec.time_column, self._spec.time_shift, self._deadline)
        self._late += 0 if timely.late is None else timely.late.num_rows
        if records.time is not None:
            self._watermarks = records.time.watermarks
        if timely.batch.num_rows:
            keys = normalise_keys(timely.batch.select(self._keys), self._keys)
            sessions = sessions_of(self._reducer, timely.hashes, keys, timely.times, self._gap, timely.batch)
            np.minimum.at(self._pending_due, self._groups_of(sessions.part.hashes), sessions.ends)
            self._pending.append(sessions)
            if sum(part.rows for part in self._pending) >= self._merge_at_rows:
                self._pending = [merged(self._reducer, self._pending)]
                self._merge_at_rows = max(_MERGE_ROWS_MIN, 2 * self._pending[0].rows)
        return iter(() if timely.late is None else (self._spec.late(timely.late),))

    def _deadline(self, times: Micros) -> Micros:
        return times + self._gap

    def finish(self) -> Iterator[Emitted]:
        self._flush()
        self._clock.store()
        return iter(())

    def advance(self, time: Time) -> Iterator[Emitted]:
        if (self._due() <= time.watermarks).any():
            self._flush()
        due = np.flatnonzero(self._due() <= time.watermarks)
        self._watermarks = time.watermarks
        for steps in self._closing.steps(due, time.watermarks):
            closed = self._closing.read(steps)
            output = self._results.nothing if closed is None else self._fire(closed.entries, steps)
            self._closing.done(steps)
            yield output
        self._clock.follow(time.watermarks)

    def counters(self) -> Mapping[str, int]:
        return {LATE: self._late}

    def next_due(self) -> Due:
        due = int(self._due().min())
        return Due(event_time=None if due == NEVER else due, last=self._last_end())

    def _last_end(self) -> int | None:
        """The latest end that a timer is set to. A session that grew since then, or one behind it, ends later: its
        timer is set again when this one fires."""
        clock = self._clock
        groups = np.flatnonzero(clock.alive)
        stretches = [
            Stretch(int(group) + self._first_group, int(clock.last[group]), int(clock.last[group]), 0, PLACES)
            for group in groups
        ]
        timers = self._timers.within(self._index.spans(stretches)) if stretches else None
        return None if timers is None else int(timers.values.column(0).to_numpy().max())

    def _due(self) -> Micros:
        """For each key group a moment before which no session ends."""
        clock, due = self._clock, self._closing.due()
        later = np.maximum(due, np.where(clock.done == NO_WATERMARK, NO_WATERMARK, clock.done + 1))
        return np.minimum(np.where(clock.halfway, due, later), self._pending_due)

    # -- rows into the state -------------------------------------------------------------------------------------

    def _flush(self) -> None:
        if not self._pending:
            return
        new = merged(self._reducer, self._pending)
        self._pending, self._merge_at_rows = [], _MERGE_ROWS_MIN
        self._pending_due.fill(NEVER)
        touched = pack(new)
        values, found = self._state.lookup(touched.hashes, touched.keys)
        if found.any():
            old, _ = unpack(self._reducer, touched.hashes, touched.keys, values.columns[1:])
            # Sessions that are over were emitted, or are about to be: rows no longer join them.
            over = old.ends <= self._watermarks[self._groups_of(old.part.hashes)]
            new = merged(self._reducer, [old.take(np.flatnonzero(~over)), new])
            if over.any():
                new = concat([old.take(np.flatnonzero(over)), new])
        timers = values.column(0)
        packed = pack(new)
        assert len(packed.hashes) == len(touched.hashes)
        if found.any():
            # Both list the same keys, each in an order of its own.
            timers = self._state.lookup(packed.hashes, packed.keys).values.column(0)
        panes, groups = self._write(packed, timers)
        self._clock.touch(groups, panes, self._watermarks)

    def _write(self, packed: Packed, timers: pa.Array) -> tuple[Hashes, Hashes]:
        """Stores keys with their sessions; `timers` are the panes in which they have a timer, null for none.

        A timer may come too early. Returns panes and key groups of new timers.
        """
        wanted = packed.due // self._pane
        has = timers.fill_null(NEVER).to_numpy()
        panes = np.minimum(wanted, has)
        arrays = [pa.array(panes), *packed.lists]
        values = pa.RecordBatch.from_arrays(arrays, schema=self._schema.values)
        self._state.update(packed.hashes, packed.keys, values)
        new = np.flatnonzero(wanted < has)
        hashes, panes = packed.hashes[new], wanted[new]
        keys = packed.keys.take(pa.array(new))
        keys = pa.RecordBatch.from_arrays([*keys.columns, pa.array(panes)], schema=self._timer_schema.keys)
        due = [pa.array(packed.due[new]), pa.array(hashes)]
        entries = pa.RecordBatch.from_arrays(due, schema=self._timer_schema.values)
        self._timers.update(self._index.hashes(hashes, panes), keys, entries)
        return panes, groups_of(hashes, self._max_parallelism)

    # -- sessions that end ---------------------------------------------------------------------------------------

    def _fire(self, timers: Entries, steps: Sequence[Step]) -> pa.RecordBatch:
        """The results of sessions that are over; their keys keep the others."""
        until = np.full(len(self._watermarks), NO_WATERMARK, np.int64)
        for step in steps:
            until[step.group] = step.target
        groups = groups_of_orders(timers.orders, self._max_parallelism) - self._first_group
        due = np.flatnonzero(timers.values.column(0).to_numpy() <= until[groups])
        if not len(due):
            return self._results.nothing
        timers = timers.take(due)
        self._timers.delete(timers)
        return self._end_sessions(timers, until)

    def _end_sessions(self, timers: Entries, until: Micros) -> pa.RecordBatch:
        hashes = timers.values.column(1).to_numpy()
        keys = timers.keys.select(self._keys)
        values, _ = self._state.lookup(hashes, keys)
        # A timer that was set again in another pane no longer counts here.
        valid = pc.equal(values.column(0), timers.keys.column(len(self._keys))).fill_null(False)
        rows = np.flatnonzero(valid.to_numpy(zero_copy_only=False))
        if not len(rows):
            return self._results.nothing
        indices = pa.array(rows)
        hashes, keys, lists = hashes[rows], keys.take(indices), values.take(indices).columns[1:]
        sessions, owners = unpack(self._reducer, hashes, keys, lists)
        over = sessions.ends <= until[self._groups_of(sessions.part.hashes)]
        ended, rest = sessions.take(np.flatnonzero(over)), sessions.take(np.flatnonzero(~over))
        gone = np.ones(len(hashes), np.bool_)
        gone[owners[~over]] = False
        if gone.any():
            lost = pa.array(np.flatnonzero(gone))
            nothing = pa.RecordBatch.from_arrays(
                [pa.nulls(len(lost), kind) for kind in self._schema.values.types], schema=self._schema.values
            )
            self._state.update(hashes[gone], keys.take(lost), nothing, np.ones(len(lost), np.bool_))
        if rest.rows:
            packed = pack(rest)
            panes, groups = self._write(packed, pa.nulls(len(packed.hashes), pa.int64()))
            self._clock.keep(groups, panes)
        return self._results.of(ended.part, ended.starts, ended.ends)

    def _groups_of(self, hashes: Hashes) -> Hashes:
        """Key groups, counted from the subtask's first."""
        return groups_of(hashes, self._max_parallelism) - self._first_group
