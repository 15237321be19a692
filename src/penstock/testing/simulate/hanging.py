"""Attempts that hang: in a call, in a function of the user, or as a whole process, for a while or for ever.

The product's own watchdog looks at each attempt, and the query's own watch has jobs cancelled. An attempt that hung may
come back long after its job was given up, and goes on as if nothing had happened.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from penstock.subtask.watchdog import Watchdog
from penstock.testing.simulate.fibers import Process

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

WORLDS = 0.25
"""So many have attempts that hang, and a limit for them."""
CALLS_MAX = 8
"""A hang begins at one of the first so many calls of an attempt."""
FOR_EVER = 0.3
ATTEMPTS_MAX = 3
"""So many hang in one world: each costs a limit or more of virtual time."""
STEP_EPOCHS = 10.0
STEP_S_WITHOUT_BARRIER = 50.0
"""A healthy step takes less: a few rows that are dear. Without a barrier all rows may be one step."""

How = Literal["call", "code", "process"]
"""The thread in a call, the thread in a function of the user, or all threads of the process, the watchdog too."""


@dataclass(eq=False, slots=True)
class Progress:
    """When an attempt last read its clock, as the simulator sees it; the product has a record of its own."""

    moved_s: float
    stood_still: bool = False
    """Once, for longer than the limit."""


class Hanging:
    """What hangs in one world. Draws from a generator of its own: worlds in which nothing hangs stay as they are."""

    def __init__(self, world: World, *, calm: bool) -> None:
        self._world = world
        self._rng = rng = random.Random(f"{world.seed} hangs")
        self.limit_s: float | None = None
        self._rate, self._left = rng.uniform(0.05, 0.4), ATTEMPTS_MAX
        if not calm and rng.random() < WORLDS:
            least_s = STEP_EPOCHS * world.epoch_s if world.barrier else STEP_S_WITHOUT_BARRIER
            self.limit_s = least_s + rng.choice((3.0, 10.0))
        self._progress: dict[Process, Progress] = {}

    def draw(self, process: Process) -> None:
        """For a new attempt: whether it hangs, and when."""
        if self.limit_s is None or not self._world.faults.on or self._left == 0 or self._rng.random() >= self._rate:
            return
        self._left -= 1
        process.hangs = self._rng.choice(("call", "code", "process"))
        process.hangs_after = self._rng.randint(1, CALLS_MAX)

    def at_call(self, process: Process) -> None:
        """An attempt makes a call: perhaps the one in which it hangs."""
        if process.hangs in {"call", "process"}:
            process.hangs_after -= 1
            if process.hangs_after == 0:
                self._hang(process)

    def in_code(self) -> None:
        """A function of the user runs."""
        process = self._world.scheduler.current.process
        if process.hangs == "code":
            self._hang(process)

    def _hang(self, process: Process) -> None:
        how, process.hangs = process.hangs, None
        world, scheduler = self._world, self._world.scheduler
        if not world.faults.on or self.limit_s is None:
            return
        process.hung_for_ever = self._rng.random() < FOR_EVER
        seconds = 1e9 if process.hung_for_ever else self.limit_s * self._rng.uniform(0.5, 8)
        world.log(f"HANGS in its {how} for {seconds:.1f} s")
        if how == "process":
            process.paused_until = scheduler.clock() + seconds
            scheduler.pause()
        else:
            scheduler.pause(seconds)

    # -- who looks -------------------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, process: Process, watchdog: Watchdog) -> Iterator[Callable[[], float]]:
        """The product's watchdog beside an attempt, as a fiber; yields the clock for the attempt."""
        scheduler, progress = self._world.scheduler, Progress(self._world.scheduler.clock())
        self._progress[process] = progress
        every_s = watchdog.every_s
        over = False

        def clock() -> float:
            now_s = watchdog.clock()
            self._look(progress, now_s)
            progress.moved_s = now_s
            return now_s

        def watch() -> None:
            while not over and watchdog.look():
                scheduler.wait(every_s)

        beside = None if every_s is None else scheduler.spawn(process, "watchdog", watch, every_s)
        try:
            yield clock
        finally:
            over = True
            if beside is not None and beside.worker is None:
                beside.ended = True  # it never ran: most attempts are over before it would look
            elif beside is not None:
                scheduler.wake(beside)

    def _look(self, progress: Progress, now_s: float) -> None:
        if self.limit_s is not None and now_s - progress.moved_s > self.limit_s:
            progress.stood_still = True

    def cancelled(self, attempts: Iterable[Process]) -> None:
        """The query gives a job up: one of its attempts must have hung."""
        now_s = self._world.scheduler.clock()
        mine = [self._progress[process] for process in attempts if process in self._progress]
        for progress in mine:
            self._look(progress, now_s)
        if not any(progress.stood_still for progress in mine):
            seen = ", ".join(f"{now_s - progress.moved_s:.1f} s ago" for progress in mine)
            self._world.scheduler.fail(f"hung: a job was cancelled, whose attempts got on: {seen or 'none began'}")
