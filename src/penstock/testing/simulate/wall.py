"""The wall clock of the driver's machine: it jumps, for a moment or for good. And what processing time may make of it.

The bounds below say what users are promised, from the moments at which the simulator set the clock. How the product
gets there (`protocol.processingtime`) plays no part in them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.testing.simulate.fibers import Process

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

US = 1_000_000
BEGIN_US = 1_700_000_000 * US
"""Worlds begin in 2023."""
DAY_S, YEAR_S = 86_400.0, 31_536_000.0
WORLDS = 0.3
"""So many have a wall clock that jumps."""
JUMPS_S = (-YEAR_S, -3600.0, -20.0, -2.0, 2.0, 20.0, 3600.0, 0.8 * DAY_S, YEAR_S)
FOR_A_MOMENT = (0.05, 0.75)
"""Of the time after which a driver may believe a wrong clock: then it is put right."""
FOR_GOOD_S = (1.0, 40.0)
"""So long a clock keeps what it was set to, where it is not put right."""
BELIEVED_AFTER_S = (6.0, 60.0)
"""Worlds are short: with the product's figure few of them would ever believe a clock."""
IDLE_S = 2 * DAY_S
"""Sources count as idle after so long where clocks are wrong for moments only: nothing may ever make them so."""
FASTEST, SLOWEST = 2.0, 0.9
PACE_S = 1.0
"""Two readings of a wall clock that keeps pace differ by this much at most."""
ROUNDING_US = 10


@dataclass(frozen=True, slots=True)
class _Steady:
    """The wall clock is `offset_s` off, from `since_s` on."""

    since_s: float
    offset_s: float


@dataclass(frozen=True, slots=True)
class _Seen:
    """Processing time of one driver: `now` at `clock_s`; the first since the wall clock jumped was at `steady_s`."""

    now: int
    clock_s: float
    steady_s: float


class WallClock:
    """Of one world; draws from a generator of its own, so that worlds without jumps stay as they are."""

    def __init__(self, world: World, *, calm: bool) -> None:
        self._world, self._rng = world, random.Random(f"{world.seed} clock")
        self._may_jump = not calm and self._rng.random() < WORLDS
        self.for_moments = self._rng.random() < 0.5
        self._times = [_Steady(0.0, 0.0)]
        self._until_s = self._rng.uniform(*FOR_GOOD_S)
        self.believed_s = self._rng.choice(BELIEVED_AFTER_S)
        self._begun: dict[Process, float] = {}
        self._seen: dict[Process, _Seen] = {}
        self._readings: dict[Process, list[float]] = {}
        """The moments at which each driver is known to have read the wall clock."""

    @property
    def idle_s(self) -> float | None:
        """After which sources count as idle."""
        return IDLE_S if self.for_moments or not self._may_jump else None

    def now_us(self) -> int:
        clock_s = self._world.scheduler.clock()
        while self._may_jump and clock_s >= self._until_s:
            self._jump(self._until_s)
        return _wall(clock_s, self._times[-1])

    def _jump(self, at_s: float) -> None:
        """The clock is set wrong, or set right."""
        wrong = self._times[-1].offset_s
        if wrong and (self.for_moments or not self._world.faults.on):
            self._set(at_s, 0.0)
            self._until_s = at_s + self._rng.uniform(*FOR_GOOD_S)
        elif self._world.faults.on:
            self._set(at_s, wrong + self._rng.choice(JUMPS_S))
            moment_s = self.believed_s * self._rng.uniform(*FOR_A_MOMENT)
            self._until_s = at_s + (moment_s if self.for_moments else self._rng.uniform(*FOR_GOOD_S))
        else:
            self._until_s = float("inf")

    def _set(self, at_s: float, offset_s: float) -> None:
        self._times.append(_Steady(at_s, offset_s))
        self._world.log(f"WALL CLOCK is {offset_s:+.0f} s off since {at_s:.3f}")

    # -- what processing time may do -------------------------------------------------------------------------------

    def begins(self, process: Process) -> None:
        """A driver starts; it reads its clocks later."""
        self._begun[process] = self._world.scheduler.clock()

    def epoch(self, process: Process, now: int, stored: int | None) -> None:
        """An epoch begins at this moment; `now` is its processing time, `stored` that of the checkpoint before it,
        where the same driver wrote that."""
        clock_s, wall = self._world.scheduler.clock(), self.now_us()
        last, before = self._times[-1], self._seen.get(process)
        steady_s = clock_s if before is None or before.clock_s < last.since_s else before.steady_s
        self._seen[process] = _Seen(now, clock_s, steady_s)
        self._readings.setdefault(process, []).append(clock_s)
        if stored is not None and now < stored:
            self._fail(f"it goes back by {stored - now} us", wall)
        if before is None:
            if stored:
                self._first(process, now, stored, clock_s, wall)
            return
        passed = round((clock_s - before.clock_s) * US)
        if now - before.now < int(SLOWEST * passed) - ROUNDING_US:
            self._fail(f"{now - before.now} us passed in {passed} us", wall)
        if now > self._latest(process, before.now, (before.clock_s, clock_s), float("-inf")):
            self._fail(f"{now - before.now} us passed in {passed} us, and the wall clock had just jumped", wall)
        if clock_s - steady_s > self.believed_s + 0.1 and now < wall - ROUNDING_US:
            self._fail(f"it is {wall - now} us behind a wall clock that is steady for {clock_s - steady_s:.1f} s", wall)

    def _first(self, process: Process, now: int, stored: int, clock_s: float, wall: int) -> None:
        """A driver may believe that up to a day has passed since the checkpoint, and no more."""
        begun_s, day = self._begun[process], round(DAY_S * US)
        if now > self._latest(process, stored + day, (begun_s, clock_s), begun_s):
            self._fail(f"{now - stored} us passed since the checkpoint from which the driver goes on", wall)
        if self._times[-1].since_s < begun_s and 0 <= wall - stored <= day and now < wall - ROUNDING_US:
            self._fail(f"it is {wall - now} us behind the wall clock after a restart", wall)

    def _latest(self, process: Process, now: int, span_s: tuple[float, float], known_s: float) -> int:
        """The latest processing time allowed at the end of a span that begins with `now`.

        A driver that looks at the wall clock since `known_s` may take over its time at any moment after the clock was
        steady for long enough. From then on, as before, processing time runs at most twice as fast: the driver
        cannot know when between two readings a clock jumped."""
        from_s, to_s = span_s
        for number, steady in enumerate(self._times):
            until_s = self._times[number + 1].since_s if number + 1 < len(self._times) else to_s
            begin_s, end_s = max(steady.since_s, from_s), min(until_s, to_s)
            if begin_s >= end_s:
                continue
            now += round(FASTEST * (end_s - begin_s) * US)
            taken_s = max(begin_s, max(self._steady_since(process, number), known_s) + self.believed_s)
            if taken_s <= end_s:
                now = max(now, _wall(taken_s, steady) + round(FASTEST * (end_s - taken_s) * US))
        return now + ROUNDING_US

    def _steady_since(self, process: Process, number: int) -> float:
        """Since when this driver may hold the wall clock to be as it is at `number`: a clock that was wrong between two
        readings, and right at both, looks steady."""
        since_s, offset_s = self._times[number].since_s, self._times[number].offset_s
        for earlier in reversed(range(number)):
            if abs(self._times[earlier].offset_s - offset_s) <= PACE_S:
                since_s = self._times[earlier].since_s
            elif self._reads_within(process, self._times[earlier].since_s, self._times[earlier + 1].since_s):
                return since_s
        return since_s or float("-inf")

    def _reads_within(self, process: Process, begin_s: float, end_s: float) -> bool:
        return any(begin_s <= read_s < end_s for read_s in self._readings.get(process, ()))

    def _fail(self, what: str, wall: int) -> None:
        times = ", ".join(f"{time.offset_s:+.0f} s from {time.since_s:.3f}" for time in self._times[-3:])
        self._world.scheduler.fail(f"processing time: {what} (wall clock {wall}; off by {times})")


def _wall(clock_s: float, steady: _Steady) -> int:
    return BEGIN_US + round((clock_s + steady.offset_s) * US)
