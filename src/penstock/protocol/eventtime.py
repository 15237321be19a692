"""Event time as numbers: watermarks of sources, of edges, and what they make due. Microseconds throughout.

A source's watermark is the largest event time seen, minus the delay its user allows. Rows carry the watermark that was
in effect when they arrived, the lowest of all inputs: a segment keeps it, so a row is late if it was late on arrival,
and never because it waited in a checkpoint or moved to another subtask. A key group's watermark on an edge is the
lowest of its unread segments, or the edge's own when nothing is unread. That is the oldest one's, unless an operator
put rows back behind younger ones. An operator's watermark, the lowest of its inputs, never goes back: rows that are put
back were unread before, and what rows carry is no lower than it was when they arrived.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec

from penstock.protocol.keygroups import KeyGroupRange, subtasks_of, subtract_all, union
from penstock.protocol.manifest import PartClock, SourceClock, Timer


@dataclass(frozen=True, slots=True)
class SourceTime:
    """What a source promises: rows are at most `delay` behind the newest; after `idle` without rows others decide.

    With `by_part` each part of the source, such as a partition of a topic, promises that for itself. The source is then
    as far as its slowest part, of those that delivered rows in the last `part_idle`.
    """

    delay: int
    idle: int | None = None
    by_part: bool = False

    @property
    def part_idle(self) -> int:
        return PART_IDLE if self.idle is None else self.idle


PART_IDLE = 60_000_000
"""Unless the user says another time: a partition that is done for good must not hold back the rest for ever."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The largest event time of the rows that a source delivered in an epoch, of all and by part."""

    newest: int
    parts: Mapping[str, int] = field(default_factory=dict)

    def after(self, other: Seen) -> Seen:
        parts = {name: max(time, other.parts.get(name, time)) for name, time in self.parts.items()}
        return Seen(max(self.newest, other.newest), {**other.parts, **parts})


def lowest(watermarks: Iterable[int | None]) -> int | None:
    """The smallest; None, before any, if one of them is None or there are none."""
    marks = list(watermarks)
    known = [mark for mark in marks if mark is not None]
    return min(known) if known and len(known) == len(marks) else None


def highest(watermarks: Iterable[int | None]) -> int | None:
    return max((mark for mark in watermarks if mark is not None), default=None)


def advance_sources(
    clocks: Mapping[str, SourceClock],
    times: Mapping[str, SourceTime],
    seen: Mapping[str, Seen],
    now: int,
) -> dict[str, SourceClock]:
    """The clocks after an epoch in which sources delivered rows up to the event times `seen`.

    A source that delivered nothing for longer than it may follows the slowest of the others, so that it does not hold
    everything back; its watermark stays what it was if all sources are idle.
    """
    clocks = {name: _observed(clocks.get(name, SourceClock()), times[name], seen.get(name), now) for name in times}
    active = [clock.watermark for name, clock in clocks.items() if not is_idle(clock, times[name], now)]
    others = lowest(active)
    if others is None:
        return clocks
    return {
        name: msgspec.structs.replace(clock, watermark=highest((clock.watermark, others)))
        if is_idle(clock, times[name], now)
        else clock
        for name, clock in clocks.items()
    }


def resumed(clocks: Mapping[str, SourceClock], away: int) -> dict[str, SourceClock]:
    """The clocks after a time `away` in which no source could deliver: it does not count as idle."""
    return {name: _resumed(clock, away) for name, clock in clocks.items()}


def _resumed(clock: SourceClock, away: int) -> SourceClock:
    parts = {
        name: msgspec.structs.replace(part, active_at=part.active_at + away)
        for name, part in (clock.parts or {}).items()
    }
    active_at = None if clock.active_at is None else clock.active_at + away
    return msgspec.structs.replace(clock, active_at=active_at, parts=parts or clock.parts)


def undeliverable(counted: int, now: int, *, away: int, offered: int | None) -> int:
    """For how long no source could deliver since `counted`, the moment of the last checkpoint: for `away`, and from
    `offered` on, when a micro-batch came that has not been taken yet. What else the sources have waits behind it.

    >>> undeliverable(100, 150, away=0, offered=130), undeliverable(100, 150, away=40, offered=110)
    (20, 50)
    """
    held = 0 if offered is None else max(0, now - max(offered, counted + away))
    return away + held


def is_idle(clock: SourceClock, time: SourceTime, now: int) -> bool:
    return time.idle is not None and clock.active_at is not None and now - clock.active_at >= time.idle


def _observed(clock: SourceClock, time: SourceTime, seen: Seen | None, now: int) -> SourceClock:
    newest = highest((clock.max_event_time, None if seen is None else seen.newest))
    active_at = clock.active_at if seen is None and clock.active_at is not None else now
    if not time.by_part:
        reached = None if newest is None else newest - time.delay
        return SourceClock(max_event_time=newest, watermark=highest((clock.watermark, reached)), active_at=active_at)
    parts = _parts_observed(clock.parts or {}, {} if seen is None else seen.parts, now, time.part_idle)
    slowest = lowest(part.max_event_time for part in parts.values())
    reached = None if slowest is None else slowest - time.delay
    return SourceClock(
        max_event_time=newest, watermark=highest((clock.watermark, reached)), active_at=active_at, parts=parts
    )


def _parts_observed(
    known: Mapping[str, PartClock], seen: Mapping[str, int], now: int, idle: int
) -> dict[str, PartClock]:
    """The parts that are not idle. One that was idle and delivers again counts like a new one: nothing is forgotten
    that would have held the watermark back."""
    fresh = {
        name: PartClock(max_event_time=max(time, known[name].max_event_time) if name in known else time, active_at=now)
        for name, time in seen.items()
    }
    quiet = {name: part for name, part in known.items() if name not in seen and now - part.active_at < idle}
    return dict(sorted({**quiet, **fresh}.items()))


def due_subtasks(
    timers: Iterable[Timer],
    watermarks: Sequence[int | None],
    now: int,
    *,
    max_parallelism: int,
) -> set[int]:
    """The subtasks with a key group that waits for a moment which has come; `watermarks` are theirs."""
    due: set[int] = set()
    furthest = highest(watermarks)
    for timer in timers:
        if timer.processing_time is not None and timer.processing_time <= now:
            due.update(subtasks_of(timer.groups, len(watermarks), max_parallelism))
        elif timer.event_time is not None and furthest is not None and timer.event_time <= furthest:
            due.update(
                subtask
                for subtask in subtasks_of(timer.groups, len(watermarks), max_parallelism)
                if (mark := watermarks[subtask]) is not None and timer.event_time <= mark
            )
    return due


def is_due(timers: Iterable[Timer], watermark: int | None, now: int) -> bool:
    """Whether a moment has come that a key group waits for, where all key groups have the same watermark."""
    return any(
        (timer.event_time is not None and watermark is not None and timer.event_time <= watermark)
        or (timer.processing_time is not None and timer.processing_time <= now)
        for timer in timers
    )


def advance_timers(timers: Iterable[Timer], changes: Sequence[tuple[KeyGroupRange, Timer | None]]) -> tuple[Timer, ...]:
    """Replaces what was known for some key groups, all of them different; what others wait for stays."""
    same = {groups for groups, _ in changes}
    rest = [timer for timer in timers if timer.groups not in same]
    others = _cut_away(rest, union(same)) if rest else ()
    new = [timer for _, timer in changes if timer is not None]
    return tuple(sorted([*others, *new], key=attrgetter("groups")))


def _cut_away(timers: Iterable[Timer], told: Sequence[KeyGroupRange]) -> Iterator[Timer]:
    """What is left of timers once some key groups are taken away from them."""
    for timer in timers:
        for cut in subtract_all(timer.groups, told):
            yield timer if cut == timer.groups else msgspec.structs.replace(timer, groups=cut)


def flushed(clocks: Mapping[str, SourceClock], until: int | None) -> dict[str, SourceClock]:
    """The clocks of sources that are at their end: all rows up to `until` have come, whatever their delay."""
    return {
        name: msgspec.structs.replace(clock, watermark=highest((clock.watermark, until)))
        for name, clock in clocks.items()
    }


def flush_target(timers: Iterable[Timer], watermarks: Sequence[int | None]) -> int | None:
    """The watermark that brings out all that waits; None if nothing does, or the sources are there already.

    >>> flush_target([Timer(groups=KeyGroupRange(0, 8), event_time=5, last=60)], [50, None])
    60
    """
    target = highest(timer.flushed_at for timer in timers)
    reached = lowest(watermarks)
    if target is None or not watermarks or (reached is not None and reached >= target):
        return None
    return target


def next_processing_time(timers: Iterable[Timer]) -> int | None:
    return min((timer.processing_time for timer in timers if timer.processing_time is not None), default=None)
