"""Virtual time and cooperative fibers: at any moment exactly one runs, and only `pause` and `wait` let another one.

A fiber is a thread that waits for its baton, so real, unchanged code runs in it and can be stopped in the middle of
any call. What runs next follows from virtual time and the seed alone.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.testing.simulate.faults import Outage

SECONDS_REAL_MAX = 60


class Crashed(BaseException):
    """The process of this fiber is dead: everything unwinds, and nothing it still tries has an effect."""


class CheckFailed(BaseException):
    """A checker found that something cannot be; ends the simulation."""


@dataclass(eq=False, slots=True)
class Process:
    """Fibers that die and are paused together: a driver, or one attempt on an executor."""

    name: str
    alive: bool = True
    paused_until: float = 0.0
    slowness: float = 1.0
    generation: int = 0
    healthy: bool = False
    """Nothing has gone wrong since it started, also no call that is still under way."""
    paced: int = 0
    published_at: float = 0.0
    epoch: int = 0
    epoch_began: float = 0.0
    planned: tuple[int, int] | None = None
    """The job that was planned last: its checkpoint and the number of its stage."""
    outage: Outage | None = None
    calls_left: int | None = None
    late: bool = False
    hangs: str | None = None
    hangs_after: int = 0
    hung_for_ever: bool = False
    fibers: list[Fiber] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Fiber:
    """One line of execution; `ahead` is time spent since the last switch."""

    name: str
    process: Process
    body: Callable[[], None]
    worker: _Worker | None = None
    ahead: float = 0.0
    token: int = 0
    waiting: bool = False
    woken: bool = False
    killed: bool = False
    ended: bool = False
    joiners: list[Fiber] = field(default_factory=list)
    tags: dict[str, object] = field(default_factory=dict)


class _Worker:
    """A pooled thread, making one costs more than most fibers run; or the thread that calls, with `start` false."""

    def __init__(self, *, start: bool = True) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.task: Callable[[], None] = lambda: None
        if start:
            threading.Thread(target=self._run, name="simulated-fiber", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            self.task()


_idle: list[_Worker] = []


class Scheduler:
    """Runs fibers in virtual time. `tie` decides between fibers that are due at the same moment."""

    def __init__(self, rng: random.Random, time_limit_s: float) -> None:
        self.now = 0.0
        self._rng, self._time_limit_s = rng, time_limit_s
        self._queue: list[tuple[float, float, int, int, Fiber]] = []
        self._sequence = 0
        self._fibers: list[Fiber] = []
        self._main = Fiber("main", Process("world"), lambda: None, worker=_Worker(start=False))
        self._finished = False
        self.failure: CheckFailed | None = None
        self.current = self._main

    # -- inside fibers -------------------------------------------------------------------------------------------

    def clock(self) -> float:
        """Virtual seconds, as the running fiber sees them."""
        return self.now + self.current.ahead

    def spend(self, seconds: float) -> None:
        """The running fiber computes for a while; others notice at its next `pause` or `wait`."""
        self.current.ahead += seconds * self.current.process.slowness

    def doze(self, seconds: float) -> None:
        """As `spend`, for a fiber that waits: that takes no longer in a slow process."""
        self.current.ahead += seconds

    def pause(self, seconds: float = 0.0) -> None:
        """Goes on later; anything may happen in between."""
        fiber = self._running()
        at = self.now + fiber.ahead + seconds * fiber.process.slowness
        if (not self._queue or at < self._queue[0][0]) and fiber.process.paused_until <= at <= self._time_limit_s:
            self.now, fiber.ahead = at, 0.0  # no other fiber is due before
            return
        self._push(fiber, at)
        self._switch(fiber)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Goes on when woken (True) or after a while (False); a `wake` before the call counts."""
        fiber = self._running()
        if fiber.ahead:
            self.pause()
        if not fiber.woken:
            fiber.token += 1
            fiber.waiting = True
            if timeout_s is not None:
                self._push(fiber, self.now + timeout_s)
            self._switch(fiber)
            fiber.waiting = False
        woken, fiber.woken = fiber.woken, False
        return woken

    def join(self, fiber: Fiber) -> None:
        while not fiber.ended:
            fiber.joiners.append(self.current)
            self.wait()

    def fail(self, message: str) -> NoReturn:
        """Raises: `CheckFailed`, which ends the simulation whatever the code in between does with it."""
        self.failure = self.failure or CheckFailed(message)
        raise self.failure

    # -- from anywhere -------------------------------------------------------------------------------------------

    def spawn(self, process: Process, name: str, body: Callable[[], None], delay_s: float = 0.0) -> Fiber:
        fiber = Fiber(name, process, body)
        process.fibers.append(fiber)
        self._fibers.append(fiber)
        self._push(fiber, self.clock() + delay_s)
        return fiber

    def wake(self, fiber: Fiber) -> None:
        fiber.woken = True
        if fiber.waiting and not fiber.ended:
            fiber.waiting = False
            self._push(fiber, self.clock())

    def kill(self, process: Process) -> None:
        """Ends a process at once; a fiber that kills its own process goes on by raising `Crashed` itself."""
        process.alive = False
        for fiber in process.fibers:
            if not fiber.ended and not fiber.killed:
                fiber.killed = True
                if fiber is not self.current:
                    self._push(fiber, self.now)

    # -- the calling thread --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends everything that still runs. Afterwards nothing can be run any more."""
        self._finished = True
        for fiber in self._fibers:
            fiber.killed = True
            if fiber.worker is not None and not fiber.ended:
                self._resume(fiber)
                self._await_turn(self._main)

    # -- switching -----------------------------------------------------------------------------------------------

    def _running(self) -> Fiber:
        fiber = self.current
        if fiber.killed:
            raise Crashed
        if self.failure is not None:
            raise self.failure
        return fiber

    def _push(self, fiber: Fiber, at: float) -> None:
        fiber.token += 1
        self._sequence += 1
        heapq.heappush(self._queue, (at, self._rng.random(), self._sequence, fiber.token, fiber))

    def _switch(self, fiber: Fiber) -> None:
        fiber.ahead = 0.0
        following = self._next()
        if following is not fiber:
            self._resume(following)
            self._await_turn(fiber)
        if fiber.killed:
            raise Crashed
        if self.failure is not None:
            raise self.failure

    def _await_turn(self, fiber: Fiber) -> None:
        assert fiber.worker is not None
        if not fiber.worker.baton.acquire(timeout=SECONDS_REAL_MAX if fiber is self._main else -1):
            running = f"{self.current.process.name}.{self.current.name}"
            raise CheckFailed(f"stuck: {running} runs or waits for something real for {SECONDS_REAL_MAX} s")

    def _next(self) -> Fiber:
        """The fiber that is due first; the calling thread when the simulation has ended."""
        while self._queue and not self._finished and self.failure is None:
            at, tie, _, token, fiber = heapq.heappop(self._queue)
            if token != fiber.token or fiber.ended:
                continue
            if fiber.process.paused_until > max(at, self.now) and not fiber.killed:
                self._sequence += 1
                heapq.heappush(self._queue, (fiber.process.paused_until, tie, self._sequence, token, fiber))
                continue
            if fiber.killed and fiber.worker is None:
                fiber.ended = True
                continue
            self.now = max(self.now, at)
            if self.now > self._time_limit_s:
                self.failure = CheckFailed(f"liveness: not at its end after {self._time_limit_s:.0f} virtual seconds")
            return fiber
        if not self._queue and not self._finished and self.failure is None:
            self.failure = CheckFailed("liveness: nothing can run any more")
        return self._main

    def _resume(self, fiber: Fiber) -> None:
        self.current = fiber
        if fiber.worker is None:
            fiber.worker = _idle.pop() if _idle else _Worker()
            fiber.worker.task = lambda: self._body(fiber)
        fiber.worker.baton.release()

    def _body(self, fiber: Fiber) -> None:
        try:
            if not fiber.killed:
                fiber.body()
        except Crashed:
            pass
        except CheckFailed as failure:
            self.failure = self.failure or failure
        except BaseException as error:
            self.failure = self.failure or CheckFailed(f"{fiber.name} raised {type(error).__name__}: {error}")
            self.failure.__cause__ = error
        fiber.ended = True
        for joiner in fiber.joiners:
            self.wake(joiner)
        worker, fiber.worker = fiber.worker, None
        assert worker is not None
        _idle.append(worker)
        self._resume(self._main if self._finished else self._next())
