"""The engine's backgrounds in the simulator: a fiber takes the steps that a thread takes elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable

from penstock.engine.background import Step
from penstock.testing.simulate.fibers import CheckFailed, Crashed, Fiber, Process, Scheduler


class SimBackground:
    """Steps of the engine, made by a fiber."""

    def __init__(
        self, scheduler: Scheduler, process: Process, name: str, step: Step, die: Callable[[BaseException], None]
    ):
        self._scheduler, self._process, self._name = scheduler, process, name.removeprefix("penstock-")
        self._step, self._die = step, die
        self.fiber: Fiber | None = None

    def start(self) -> None:
        self.fiber = self._scheduler.spawn(self._process, self._name, self._run)

    def wake(self) -> None:
        if self.fiber is not None:
            self._scheduler.wake(self.fiber)

    def join(self, timeout_s: float | None = None) -> bool:
        del timeout_s
        if self.fiber is not None:
            self._scheduler.join(self.fiber)
        return True

    def _run(self) -> None:
        try:
            while (pause := self._step()) is not None:
                if pause > 0:
                    self._scheduler.wait(None if pause == math.inf else pause)
                else:
                    self._scheduler.pause()
        except (Crashed, CheckFailed):
            raise
        except BaseException as error:
            self._die(error)
