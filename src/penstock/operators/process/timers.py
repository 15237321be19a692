"""Timers of user code: one per key and name, in event time or in processing time, kept as state.

Three tables. `timers` says for each key and name when it is to fire. Two timelines, one per kind of time, hold the same
moments in the order of time within each key group, so that what is due is found without looking at the rest. Moving or
cancelling a timer leaves its old entry in the timeline. When that entry is due, `timers` shows that it is void.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Integral
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.display import shown
from penstock.hashing import hash_columns
from penstock.operators.base import OperatorContext
from penstock.operators.failures.failing import BadOutput
from penstock.protocol.keygroups import groups_of, order_bits, regrouped
from penstock.records import NO_WATERMARK, StateSchema, Time
from penstock.state.keyed import KeyedState
from penstock.state.keys import Rows
from penstock.state.ranges import Entries, KeySpans
from penstock.state.runs import Orders
from penstock.units import parse_duration

TIMER_TABLES = TIMERS, EVENT_TIMERS, PROCESSING_TIMERS = "timers", "event_timers", "processing_timers"
_SLOT_BITS = 17
"""Orders in a timeline tell moments apart to 131 ms. Below that there is room for correcting the key group, which
takes 15 bits up and down, and for 16 bits of the key's hash."""
_BIAS = 1 << 62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def micros_of(moment: datetime | int) -> int:
    """Microseconds since 1970; a time without a zone is in UTC. Raises: `BadOutput`."""
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return _within_years((aware - _EPOCH) // _MICROSECOND)
    if isinstance(moment, Integral) and not isinstance(moment, bool):
        return _within_years(int(moment))
    raise _bad_timer(f"a timer was set to {shown(moment)}", "give a datetime, or microseconds since 1970")


def _within_years(micros: int) -> int:
    if not _FIRST <= micros <= _LAST:
        raise _bad_timer(f"a timer was set to {micros} µs since 1970", "give a moment of the years 1 to 9999")
    return micros


def _checked_name(name: object) -> str:
    try:
        if isinstance(name, str) and (name.isascii() or name.encode()):
            return name
    except UnicodeEncodeError:
        pass
    raise _bad_timer(f"a timer was called {shown(name)}", "call it by a string")


def _bad_timer(seen: str, next_step: str) -> BadOutput:
    return BadOutput(seen, next_step, "a timer has a name and a moment")


def moment_of(micros: int) -> datetime:
    return _EPOCH + micros * _MICROSECOND


def timer_tables(keys: pa.Schema) -> dict[str, StateSchema]:
    name, time = pa.field("__name", pa.string()), pa.field("__time", pa.int64())
    line = StateSchema(pa.schema([time, name, *keys]), pa.schema([("hash", pa.int64())]), may_grow=True)
    moment = pa.schema([("time", pa.int64()), ("event", pa.bool_())])
    one = StateSchema(pa.schema([*keys, name]), moment, may_grow=True)
    return {TIMERS: one, EVENT_TIMERS: line, PROCESSING_TIMERS: line}


class Setting(NamedTuple):
    """When a timer is to fire."""

    time: int
    event: bool


@dataclass(frozen=True, slots=True)
class TimerRules:
    """Which timers user code may set: none without `on_timer`, none in event time on a stream without it."""

    fire: bool = False
    event_time: bool = True

    def check(self, *, event: bool) -> None:
        """Raises: `BadOutput`."""
        if not self.fire:
            raise BadOutput(
                "a timer was set, and there is no on_timer()",
                "write def on_timer(self, key, time, state, out, timers)",
                "without on_timer nothing happens when it fires",
            )
        if event and not self.event_time:
            raise BadOutput(
                "a timer was set in event time, which this stream does not have",
                'name it where the source is read, pen.read(…, event_time="ts"), or use timers.after(…)',
                "without watermarks it would never fire",
            )


class Timers:
    """The timers of the keys of one slice as user code sees them, and the current time."""

    __slots__ = ("_changes", "_firing", "_key", "_rules", "_time", "_watermarks", "name")

    def __init__(self, time: Time | None, hashes: npt.NDArray[np.int64], rules: TimerRules) -> None:
        self._time, self._rules = time, rules
        self._firing = False
        self._watermarks = None if time is None else time.watermark_of(hashes)
        self._key = 0
        self._changes: dict[int, dict[str, Setting | None]] = {}
        self.name = ""
        """The name of the timer that fires, inside `on_timer`."""

    def of_key(self, number: int) -> Timers:
        self._key = number
        return self

    def fire(self, name: str) -> None:
        """The timer of that name fires."""
        self.name, self._firing = name, True

    def changes_of_key(self) -> dict[str, Setting | None]:
        """By name; None: cancelled, or fired."""
        return self._changes.setdefault(self._key, {})

    def changes(self) -> list[tuple[int, str, Setting | None]]:
        """Number of the key, name, setting."""
        return [(key, name, setting) for key, named in self._changes.items() for name, setting in named.items()]

    def settings(self) -> list[Setting]:
        return [setting for _, _, setting in self.changes() if setting is not None]

    @property
    def now(self) -> datetime:
        """Processing time of the epoch, the same when the epoch is repeated."""
        return moment_of(self._now)

    @property
    def watermark(self) -> datetime | None:
        """All rows of this key before it have arrived; None before the first watermark."""
        mark = NO_WATERMARK if self._watermarks is None else int(self._watermarks[self._key])
        return None if mark == NO_WATERMARK else moment_of(min(max(mark, _FIRST), _LAST))

    def at(self, time: datetime | int, name: str = "") -> None:
        """Fires when the watermark has reached `time`. If this key has a timer of that name, it moves."""
        self._rules.check(event=True)
        self.changes_of_key()[_checked_name(name)] = Setting(micros_of(time), event=True)

    def after(self, duration: str | float | timedelta, name: str = "") -> None:
        """Fires after this much processing time, in the next epoch at the earliest if `on_timer` sets it. If this key
        has a timer of that name, it moves."""
        self._rules.check(event=False)
        delay = max(round(parse_duration(duration, "timers.after") * 1e6), int(self._firing))
        self.changes_of_key()[_checked_name(name)] = Setting(_within_years(self._now + delay), event=False)

    def cancel(self, name: str = "") -> None:
        """Removes the timer of that name, if there is one."""
        self.changes_of_key()[_checked_name(name)] = None

    @property
    def _now(self) -> int:
        return 0 if self._time is None else self._time.now


class Line:
    """One timeline: entries in the order of time within each key group."""

    def __init__(self, state: KeyedState, context: OperatorContext) -> None:
        self._state = state
        self._max_parallelism = context.max_parallelism
        self._bits = np.uint64(order_bits(context.max_parallelism))
        self._first_group = context.groups.lo
        groups = np.arange(context.groups.lo, context.groups.hi, dtype=np.uint64)
        # With a single key group all orders begin at 0; a shift by 64 bits would be undefined.
        self._starts: Orders = groups << (np.uint64(64) - self._bits) if self._bits else np.zeros(1, np.uint64)

    def add(self, hashes: npt.NDArray[np.int64], times: npt.NDArray[np.int64], keys: pa.RecordBatch) -> None:
        """Entries `keys`, whose first column is `times`, of keys with these hashes."""
        values = pa.RecordBatch.from_arrays([pa.array(hashes)], ["hash"])
        self._state.update(self._places(hashes, times), keys, values)

    def batches(self, until: npt.NDArray[np.int64], rows_max: int) -> list[Rows]:
        """Key groups that may have entries up to their moment, in portions of about `rows_max` entries and at least one
        group."""
        counts = self._state.count_within(KeySpans(self._starts, self._order(until, last=True)))
        groups = np.flatnonzero(counts)
        portions = np.cumsum(counts[groups]) // rows_max
        return np.split(groups, np.flatnonzero(np.diff(portions)) + 1) if len(groups) else []

    def due(self, groups: Rows, until: npt.NDArray[np.int64]) -> Entries | None:
        """The entries of some key groups up to a moment for each group of the line; None: there are none."""
        spans = KeySpans(self._starts[groups], self._order(until, last=True)[groups])
        entries = self._state.within(spans)
        if entries is None:
            return None
        past = np.flatnonzero(entries.keys.column(0).to_numpy() <= until[self._numbers(entries)])
        return entries.take(past) if len(past) else None

    def remove(self, entries: Entries) -> None:
        self._state.delete(entries)

    def next_after(self, done: npt.NDArray[np.int64]) -> int | None:
        """For each key group, a lower bound of its next moment."""
        same = self._state.within(KeySpans(self._order(done), self._order(done, last=True)))
        found: list[int] = []
        if same is not None:
            times = same.keys.column(0).to_numpy()
            found += times[times > done[self._numbers(same)]].tolist()
        ends = self._starts + ((np.uint64(1) << (np.uint64(63) - self._bits)) - np.uint64(1))
        firsts = self._state.first_within(KeySpans(self._order(done, last=True) + np.uint64(1), ends))
        if len(firsts):
            within = firsts & ((np.uint64(1) << (np.uint64(64) - self._bits)) - np.uint64(1)) if self._bits else firsts
            slots = (within << self._bits) >> np.uint64(_SLOT_BITS)
            found.append((int(slots.min()) << _SLOT_BITS) - _BIAS)
        return min(found, default=None)

    def last(self) -> int | None:
        """The last moment of all key groups; None if there are no entries."""
        ends = self._starts + ((np.uint64(1) << (np.uint64(63) - self._bits)) - np.uint64(1))
        lasts = self._state.last_within(KeySpans(self._starts, ends))
        if not len(lasts):
            return None
        within = lasts & ((np.uint64(1) << (np.uint64(64) - self._bits)) - np.uint64(1)) if self._bits else lasts
        slot = int(((within << self._bits) >> np.uint64(_SLOT_BITS)).max())
        begin = (slot << _SLOT_BITS) - _BIAS
        moments = np.full(len(self._starts), begin, np.int64)
        entries = self._state.within(KeySpans(self._order(moments), self._order(moments, last=True)))
        # Entries that were deleted are still there: then only the slot is known.
        return begin if entries is None else int(entries.keys.column(0).to_numpy().max())

    def _numbers(self, entries: Entries) -> Rows:
        """Counted from the first key group of the line."""
        return groups_of(entries.values.column(0).to_numpy(), self._max_parallelism) - self._first_group

    def _order(self, times: npt.NDArray[np.int64], *, last: bool = False) -> Orders:
        """The first or last order that entries of these moments can have, one moment for each key group."""
        slots = _slots(times) + np.uint64(last)
        return self._starts + ((slots << np.uint64(_SLOT_BITS)) >> self._bits) - np.uint64(last)

    def _places(self, hashes: npt.NDArray[np.int64], times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return places_in_time(hashes, times, self._max_parallelism)


def places_in_time(
    hashes: npt.NDArray[np.int64], times: npt.NDArray[np.int64], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Hashes for the state, which order by time and keep the key group."""
    low = np.int64(1 << 15) + ((hashes >> np.int64(24)) & np.int64(0xFFFF))
    base = (_slots(times).astype(np.int64) << np.int64(_SLOT_BITS)) + low
    return base - groups_of(base, max_parallelism) + groups_of(hashes, max_parallelism)


def places_of_names(hashes: npt.NDArray[np.int64], names: pa.Array, max_parallelism: int) -> npt.NDArray[np.int64]:
    """Hashes for the state, one for each name of a timer of a key."""
    return regrouped(hash_columns([pa.array(hashes), names]), hashes, max_parallelism)


def _slots(times: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Slots of times, cut to the range in which they can be computed."""
    clipped = np.clip(times, -_BIAS, _BIAS - (1 << 20))
    slots: npt.NDArray[np.uint64] = ((clipped + np.int64(_BIAS)) >> np.int64(_SLOT_BITS)).astype(np.uint64)
    return slots


class TimerStore:
    """The three tables of one subtask attempt."""

    def __init__(self, states: Mapping[str, KeyedState], context: OperatorContext) -> None:
        self._table = states[TIMERS]
        self._max_parallelism = context.max_parallelism
        self.lines = {True: Line(states[EVENT_TIMERS], context), False: Line(states[PROCESSING_TIMERS], context)}

    def apply(self, timers: Timers, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch) -> None:
        """Stores what user code set and cancelled for the keys of a slice."""
        changes = timers.changes()
        if not changes:
            return
        numbers = np.array([number for number, _, _ in changes], np.int64)
        names = pa.array([name for _, name, _ in changes], pa.string())
        settings = [setting or Setting(0, event=False) for _, _, setting in changes]
        cancelled = np.array([setting is None for _, _, setting in changes], np.bool_)
        times = np.array([setting.time for setting in settings], np.int64)
        events = np.array([setting.event for setting in settings], np.bool_)
        of_timers = keys.take(pa.array(numbers))
        entry = pa.RecordBatch.from_arrays(
            [*of_timers.columns, names], schema=pa.schema([*keys.schema, ("__name", pa.string())])
        )
        values = pa.RecordBatch.from_arrays([pa.array(times), pa.array(events)], ["time", "event"])
        self._table.update(self._places(hashes[numbers], names), entry, values, cancelled)
        for event, line in self.lines.items():
            rows = np.flatnonzero(~cancelled & (events == event))
            if len(rows):
                picked = pa.array(rows)
                columns = [pa.array(times[rows]), names.take(picked), *of_timers.take(picked).columns]
                line.add(hashes[numbers[rows]], times[rows], _unnamed(columns))

    def valid(self, entries: Entries, *, event: bool) -> Rows:
        """Which entries of a timeline agree with `timers`."""
        times, names, *keys = entries.keys.columns
        hashes = entries.values.column(0).to_numpy()
        found = self._table.lookup(self._places(hashes, names), _unnamed([*keys, names]))
        time, kind = found.values.columns
        same = time.fill_null(0).to_numpy() == times.to_numpy()
        same &= kind.fill_null(False).to_numpy(zero_copy_only=False) == event
        return np.flatnonzero(found.found & same)

    def _places(self, hashes: npt.NDArray[np.int64], names: pa.Array) -> npt.NDArray[np.int64]:
        return places_of_names(hashes, names, self._max_parallelism)


def _unnamed(columns: list[Any]) -> pa.RecordBatch:
    """Renames columns by position, because users may give them any name."""
    return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
