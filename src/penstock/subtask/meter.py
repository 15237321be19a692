"""What a step took: by the clock, in CPU time, and how long it was ready to run and had to wait for a core.

On a busy machine the clock alone tells little about rows: a step that waits 30 ms for a core looks like one with dear
rows. Linux counts that wait for each thread; elsewhere it counts as part of the step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

_SCHEDSTAT = "/proc/thread-self/schedstat"
"""Nanoseconds on a core, nanoseconds of waiting for one, and how often it ran."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What was spent between two readings; `cpu_s` is None where it is not measured."""

    wall_s: float = 0.0
    cpu_s: float | None = None
    delayed_s: float = 0.0

    def __add__(self, other: Effort) -> Effort:
        cpu_s = other.cpu_s if self.cpu_s is None else self.cpu_s + (other.cpu_s or 0.0)
        return Effort(self.wall_s + other.wall_s, cpu_s, self.delayed_s + other.delayed_s)

    def __sub__(self, before: Effort) -> Effort:
        cpu_s = None if self.cpu_s is None or before.cpu_s is None else self.cpu_s - before.cpu_s
        wall_s = self.wall_s - before.wall_s
        return Effort(wall_s, cpu_s, min(wall_s, max(0.0, self.delayed_s - before.delayed_s)))


class Meter:
    """Reads the clock alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def read(self) -> Effort:
        return Effort(self._clock())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass


class ThreadMeter(Meter):
    """Reads what the thread that made it spends; to be closed in the end."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._file: int | None = None
        with suppress(OSError):
            self._file = os.open(_SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> Effort:
        return Effort(self._clock(), time.thread_time(), self._delayed_s())

    def _delayed_s(self) -> float:
        if self._file is None:
            return 0.0
        try:
            return int(os.pread(self._file, 128, 0).split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def __exit__(self, *exc: object) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
