"""Signs of life: every few seconds one event, so that a reader of the folder can tell that the query was killed.

Beside the query, never in its way: a sign that cannot be written is left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.engine.background import Background, Pause, Spawn
from penstock.engine.feed import source_progress
from penstock.engine.history import utc_now
from penstock.engine.supervisor import Supervisor
from penstock.memory import memory_bytes
from penstock.observe.events import Alive

EVERY_S = 10.0
_log = logging.getLogger("penstock")


class Heartbeat:
    """One per query; `step` gives one sign."""

    def __init__(self, supervisor: Supervisor, spawn: Spawn, *, memory: Callable[[], int] = memory_bytes) -> None:
        self._supervisor, self._memory = supervisor, memory
        self._ending = self._begun = False
        self._lock = threading.Lock()
        self._background: Background = spawn("penstock-heartbeat", self.step, self._die)
        supervisor.beside.append(("the signs of life", self.finish))

    def start(self) -> None:
        """The query may have ended already; then there is nothing to tell."""
        with self._lock:
            if not self._ending:
                self._begun = True
                self._background.start()

    def finish(self, timeout_s: float) -> bool:
        with self._lock:
            self._ending = True
        if not self._begun:
            return True
        self._background.wake()
        return self._background.join(timeout_s)

    def step(self) -> Pause:
        supervisor = self._supervisor
        if self._ending:
            return None
        supervisor.history.record(self._sign())
        supervisor.history.sum_up()
        return EVERY_S

    def _sign(self) -> Alive:
        supervisor = self._supervisor
        job, now_s = supervisor.runner.jobs.running, supervisor.runner.clock()
        return Alive(
            at=utc_now(),
            generation=supervisor.runner.generation,
            every_s=EVERY_S,
            waiting_for=supervisor.waiting_for,
            stage=None if job is None else job.stage,
            running_s=0.0 if job is None else round(now_s - job.started_s, 3),
            memory_bytes=self._memory(),
            sources=source_progress(supervisor.feed),
        )

    def _die(self, error: BaseException) -> None:
        _log.warning("%s gives no more signs of life: %s", self._supervisor.name, error)
