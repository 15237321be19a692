"""Processing time: the time of day as operators and idle sources get it, once per epoch.

It follows the driver's monotonic clock and is drawn towards the wall clock, because a wall clock can be set. No single
reading can do much harm: a wall clock that is ahead makes processing time run at most twice as fast, until it has kept
to that for a minute; one that is behind slows it down by a tenth. So it never goes back, and it never stands still: a
timer waits at most a little longer, even if the clock was wrong for a long time.

Across a restart there is no monotonic clock. A gap of up to a day is believed at once, a longer one after that minute.

Microseconds since 1970 UTC throughout, but for the readings of the monotonic clock, which are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

CONFIRMED_S = 60.0
"""After the wall clock has kept pace with the monotonic clock for this long, it is believed."""
PACE_US = 1_000_000
"""Two readings of a wall clock that keeps pace differ by this much at most."""
FASTER, SLOWER = 1.0, 0.1
"""The shares by which processing time runs faster or slower than time passes, to meet the wall clock."""
DOWNTIME_US_MAX = 86_400_000_000
"""A driver that was down looks the same as a wrong clock: at a restart timers may fire too early by this much."""


@dataclass(frozen=True, slots=True)
class ProcessingTime:
    """A reading: `now` is processing time. The wall clock has kept its `offset` to the monotonic one since `kept_s`."""

    now: int
    read_s: float
    offset: int
    kept_s: float


def begun(stored: int, wall: int, clock_s: float) -> ProcessingTime:
    """The first reading of a driver that goes on from a checkpoint made at `stored`, 0 for a new query."""
    believed = stored == 0 or 0 <= wall - stored <= DOWNTIME_US_MAX
    return ProcessingTime(wall if believed else stored, clock_s, wall - _micros(clock_s), clock_s)


def advanced(last: ProcessingTime, wall: int, clock_s: float) -> ProcessingTime:
    """The next reading; `now` is never lower than in the last one."""
    passed = max(0, _micros(clock_s - last.read_s))
    offset = wall - _micros(clock_s)
    kept_s = last.kept_s if abs(offset - last.offset) <= PACE_US else clock_s
    behind = wall - (last.now + passed)
    if behind < 0:
        behind = max(behind, -int(passed * SLOWER))
    elif clock_s - kept_s < CONFIRMED_S:
        behind = min(behind, int(passed * FASTER))
    return ProcessingTime(last.now + passed + behind, max(clock_s, last.read_s), offset, kept_s)


def _micros(seconds: float) -> int:
    return round(seconds * 1e6)
