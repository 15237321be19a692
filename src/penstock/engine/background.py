"""Background work as single steps. A thread makes them one after another; the simulator chooses the order.

A step does one action and says when the next one is wanted. Nothing else in the engine starts threads, so the
simulator, which replaces `Spawn`, decides about every interleaving.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

AT_ONCE = 0.0
WHEN_WOKEN = math.inf

Pause: TypeAlias = float | None
"""Seconds until the next step unless woken before: `AT_ONCE`, `WHEN_WOKEN` or between; None: that was the last step."""

Step: TypeAlias = Callable[[], Pause]


SLICE_S = 0.2
"""A program's main thread waits in slices: some libraries have signal handlers installed that let a wait go on after
Ctrl-C (polars, which comes with pypaimon, does), so that Python would notice it only at the end of the wait."""


def wait_for(event: threading.Event, timeout_s: float | None = None) -> bool:
    """`Event.wait` that Ctrl-C always interrupts."""
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not event.is_set():
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            return False
        event.wait(min(SLICE_S, left_s))
    return True


class Background(Protocol):
    """Steps that are made elsewhere."""

    def start(self) -> None: ...

    def wake(self) -> None:
        """Something changed: the next step is made at once. Never lost, also when a step is being made right now."""
        ...

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits for the last step; False when it was not made in time."""
        ...


class Spawn(Protocol):
    """Makes a `Background`. An exception of a step ends it, and `on_death` gets the exception."""

    def __call__(self, name: str, step: Step, on_death: Callable[[BaseException], None]) -> Background: ...


_here = threading.local()


def in_background() -> bool:
    """Whether the caller is inside a step: a listener that a query calls, for example, must not wait for its end."""
    return getattr(_here, "stepping", False)


class StepThread:
    """A daemon thread that makes the steps."""

    def __init__(self, name: str, step: Step, on_death: Callable[[BaseException], None]) -> None:
        self._step, self._on_death = step, on_death
        self._woken = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._woken.set()

    def join(self, timeout_s: float | None = None) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        _here.stepping = True
        try:
            # Cleared before the step looks at anything, so that no change after its look is missed.
            while (pause := self._step()) is not None:
                if pause > 0:
                    self._woken.wait(None if pause == WHEN_WOKEN else pause)
                self._woken.clear()
        except BaseException as error:  # a thread must not die unnoticed
            self._on_death(error)
