"""Asynchronous calls in virtual time: the product's own code for them, on an event loop that the simulation turns.

The real loop runs in a thread of its own and the subtask waits at a queue. Here the thread that waits there turns the
loop until something is there; while nothing is ready, virtual time passes.
"""

from __future__ import annotations

import asyncio
import math
import queue
import random
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from penstock.operators.calls import calling

if TYPE_CHECKING:
    from penstock.testing.simulate.fibers import Scheduler


LEAST_S = 1e-6
"""Waiting in vain takes at least this long, or a wait shorter than the clock can tell would last for ever."""
TURNS_TO_CANCEL = 5


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop that runs only inside `turn`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._selector = SimpleNamespace(select=self._select, close=lambda: None)
        self._until = 0.0

    def time(self) -> float:
        return self._scheduler.clock()

    def turn(self, until: float) -> None:
        """Runs until it is stopped, until a moment, or until there is nothing to do."""
        self._until = until
        self.run_forever()

    def pass_time(self, seconds: float) -> None:
        self._scheduler.doze(seconds)

    def _select(self, timeout: float | None) -> list[object]:
        left = self._until - self.time()
        if timeout is None or timeout >= left:
            self.stop()
        if timeout is not None and timeout > 0:
            self.pass_time(max(0.0, min(timeout, left)))
        return []

    def _process_events(self, event_list: list[object]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """No thread sleeps here."""


class _Queue:
    """Stands for the queue between the loop's thread and the subtask's."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._loop.stop()

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            until = math.inf if timeout is None else self._loop.time() + timeout
            self._loop.turn(until)
            if not self._items:
                assert until < math.inf, "waits for a call that will never end"
                self._loop.pass_time(max(0.0, until - self._loop.time()) + LEAST_S)
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


@contextmanager
def virtual_calls(scheduler: Scheduler, rng: random.Random) -> Iterator[None]:
    """While this is open, `map_async` lives in virtual time."""
    loops: list[VirtualLoop] = []

    def event_loop() -> VirtualLoop:
        loops.append(VirtualLoop(scheduler))
        return loops[-1]

    with ExitStack() as stack:
        for name, stand_in in {
            "event_loop": event_loop,
            "time": SimpleNamespace(monotonic=scheduler.clock),
            "random": rng,
            "queue": SimpleNamespace(Queue=lambda: _Queue(loops[-1]), Empty=queue.Empty),
        }.items():
            if hasattr(calling, name):
                stack.enter_context(patch.object(calling, name, stand_in))
        stack.callback(_close, loops)
        yield


def _close(loops: list[VirtualLoop]) -> None:
    for loop in loops:
        for _ in range(TURNS_TO_CANCEL):  # what was cancelled gets to know it
            loop.turn(-math.inf)
        loop.close()
