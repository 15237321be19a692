"""Windows over event time: what users write, and the arithmetic of panes. Microseconds and whole numbers throughout.

Tumbling and sliding windows are cut into *panes*, the longest stretches of time that never lie in a window in part.
A row belongs to one pane, and a window is a run of panes, so a row is aggregated once however many windows it is in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from penstock.errors import PipelineError
from penstock.plain import plain_errors
from penstock.units import Duration, parse_duration, parse_signed_duration

PANES_MAX = 100_000
"""A window of a day every second fits. Lengths with a tiny common divisor do not: almost every row would have a pane of
its own."""

Micros: TypeAlias = npt.NDArray[np.int64]
Numbers = TypeVar("Numbers", int, Micros)
"""One or many: times, or numbers of panes and windows."""


@dataclass(frozen=True, slots=True)
class RegularWindow:
    """Windows of one size that begin every `every` from `offset` after 1970 UTC on, as Spark's ``window`` has them."""

    size: int
    every: int
    offset: int = 0

    def __str__(self) -> str:
        return "tumbling" if self.size == self.every else "sliding"

    @property
    def lengths(self) -> str:
        return f"{self.size}/{self.every}/{self.offset}"

    @property
    def pane(self) -> int:
        return math.gcd(self.size, self.every)

    @property
    def panes_per_window(self) -> int:
        return self.size // self.pane

    @property
    def panes_per_step(self) -> int:
        return self.every // self.pane

    def panes_of(self, times: Numbers) -> Numbers:
        return (times - self.offset) // self.pane

    def first_window_of(self, panes: Numbers) -> Numbers:
        """The first window that has the pane in it."""
        return -((self.panes_per_window - 1 - panes) // self.panes_per_step)

    def last_window_of(self, panes: Numbers) -> Numbers:
        return panes // self.panes_per_step

    def pane_start(self, panes: Numbers) -> Numbers:
        return panes * self.pane + self.offset

    def start_of(self, windows: Numbers) -> Numbers:
        return windows * self.every + self.offset

    def end_of(self, windows: Numbers) -> Numbers:
        return windows * self.every + (self.offset + self.size)

    def first_ending_after(self, time: Numbers) -> Numbers:
        """The first window whose end is after a moment."""
        return (time - self.offset - self.size) // self.every + 1


@dataclass(frozen=True, slots=True)
class SessionWindow:
    """Rows of a key with at most `gap` between neighbours; a window ends `gap` after its last row."""

    gap: int

    def __str__(self) -> str:
        return "session"

    @property
    def lengths(self) -> str:
        return str(self.gap)


Window: TypeAlias = RegularWindow | SessionWindow


@plain_errors
def tumbling_window(size: Duration, *, offset: Duration = 0) -> RegularWindow:
    """Windows of one size, one after the other; the first begins at `offset` after 1970-01-01 00:00 UTC.

    Raises: `ConfigError`, `PipelineError`.
    """
    micros = _positive("tumbling_window", "size", size)
    return RegularWindow(micros, micros, _offset(offset) % micros)


@plain_errors
def sliding_window(size: Duration, *, every: Duration, offset: Duration = 0) -> RegularWindow:
    """Windows of one size, one beginning `every` so often. A row is in all windows that cover it.

    Raises: `ConfigError`, `PipelineError`.
    """
    micros, step = _positive("sliding_window", "size", size), _positive("sliding_window", "every", every)
    if step > micros:
        raise PipelineError(
            f"sliding_window: a window of {size} every {every}",
            cause="rows between the windows would be in none",
            next_step="let every be at most the size",
        )
    window = RegularWindow(micros, step, _offset(offset) % step)
    if window.panes_per_window > PANES_MAX:
        raise PipelineError(
            f"sliding_window: {size} every {every} has {window.panes_per_window:,} panes of {window.pane} us",
            cause=f"rows are kept by the longest stretch that divides both lengths; a window may have {PANES_MAX:,}",
            next_step="let every be longer, or divide the size: 1 h every 7 s has 3,600 panes, every 6 s has 600",
        )
    return window


@plain_errors
def session_window(gap: Duration) -> SessionWindow:
    """Windows that end when a key has had no row for `gap`.

    Raises: `ConfigError`, `PipelineError`.
    """
    return SessionWindow(_positive("session_window", "gap", gap))


def _offset(duration: Duration) -> int:
    return round(parse_signed_duration(duration, "offset") * 1e6)


def _positive(kind: str, option: str, duration: Duration) -> int:
    micros = round(parse_duration(duration, option) * 1e6)
    if micros <= 0:
        raise PipelineError(
            f"{kind}: {option} is {duration!r}",
            cause="a window needs a length of at least a microsecond",
            next_step='write for example "1 min"',
        )
    return micros
