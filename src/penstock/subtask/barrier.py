"""The barrier: the moment at which a subtask stops stepping.

It counts from the moment the subtask has opened its state and inputs, on its own monotonic clock, so clocks of machines
need not agree and every epoch makes progress.
"""

from __future__ import annotations

from collections.abc import Callable


class Barrier:
    """Fires once the budget is used up; without a budget it never does."""

    def __init__(self, budget_s: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._start = clock()
        self._budget_s = budget_s

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        return float("inf") if self._budget_s is None else self._budget_s - self.elapsed_s

    @property
    def delay_s(self) -> float:
        """How far past the barrier we are."""
        return max(0.0, -self.left_s)

    def fired(self) -> bool:
        return self.left_s <= 0
