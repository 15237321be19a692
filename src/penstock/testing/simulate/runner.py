"""Runs seeds and says what came out of them."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.pool import Pool
from multiprocessing.queues import SimpleQueue

from penstock.testing.simulate.fibers import CheckFailed
from penstock.testing.simulate.world import World


@dataclass(frozen=True, slots=True)
class Failure:
    """What a checker found; `checker` is the first word of `message`."""

    checker: str
    message: str
    last_events: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One seed."""

    seed: int
    trace_hash: str
    events: int
    checkpoints: int
    virtual_s: float
    real_s: float
    failure: Failure | None
    changes: bool = False

    def text(self) -> str:
        """What people need: the seed, what happened last, and how to see it again."""
        if self.failure is None:
            return f"seed {self.seed}: ok, {self.checkpoints} checkpoints, {self.events} events, hash {self.trace_hash}"
        events = "\n".join(self.failure.last_events)
        return (
            f"{events}\nseed {self.seed}: FAILED {self.failure.message}\n"
            f"replay: python -m penstock.testing.simulate --seed {self.seed} --trace"
            + (" --changes" if self.changes else "")
        )


def quiet() -> None:
    """Simulated faults are many, and each would be a warning."""
    logging.getLogger("penstock").setLevel(logging.ERROR)


def seed_pool(jobs: int) -> Pool:
    """Processes that run many seeds, each on a processor of its own.

    Fibers are threads that take turns: to wake one on another processor takes ten times as long.
    """
    context = multiprocessing.get_context("forkserver")
    processors: SimpleQueue[int] = context.SimpleQueue()
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for number in range(jobs if usable else 0):
        processors.put(usable[number % len(usable)])
    return context.Pool(jobs, initializer=_prepare, initargs=(processors,))


def _prepare(processors: SimpleQueue[int]) -> None:
    """Besides, garbage collection looks at less, and less often, which saves a sixth."""
    if not processors.empty():
        os.sched_setaffinity(0, {processors.get()})
    quiet()
    simulate(0)
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000)


def simulate_changes(seed: int, show: Callable[[str], None] | None = None) -> Outcome:
    """The same, with programs that change between starts."""
    return simulate(seed, show, changes=True)


def simulate(seed: int, show: Callable[[str], None] | None = None, *, changes: bool = False) -> Outcome:
    """Runs one seed to its end; `show` gets each event as a line."""
    started = time.perf_counter()
    world = World(seed, show, changes=changes)
    failure = None
    try:
        world.run()
    except CheckFailed as found:
        message = str(found)
        failure = Failure(message.partition(":")[0], message, tuple(world.trace.last))
    return Outcome(
        seed=seed,
        trace_hash=world.trace.hash(),
        events=world.trace.events,
        checkpoints=world.checks.publishes,
        virtual_s=world.scheduler.now,
        real_s=time.perf_counter() - started,
        failure=failure,
        changes=changes,
    )
