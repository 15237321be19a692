"""Slices of rows, small enough that a subtask can stop between two of them when the barrier fires.

A single record cannot be interrupted: a step lasts at least as long as one record takes.
"""

from __future__ import annotations

STEP_TARGET_S = 0.02
"""Near the barrier a step should last about this long: short against a 50 ms overshoot, long against the cost of
making one."""


STEP_SHARE = 0.1
"""Far from the barrier it may last this share of what is left: it then ends in time even if its rows cost ten times
what they did. The more rows of a key meet in a step, the fewer calls and lookups there are."""


STEP_S_MAX = 2.0
"""The longest step, also without a barrier: the watchdog must see that the subtask gets on."""


STEP_MIN_S = 0.005
"""The last step before the barrier is not cut smaller than this; making a step costs about 1 ms."""


FIRST_SLICE_ROWS = 16
"""The first step, before the cost of a row is known: at 1 ms per row it still meets the target."""


GROWTH = 8


CLEARLY = 2
"""Two steps whose sizes differ by this factor show what a step costs besides its rows."""


NOISE = 1.5
"""How much the time of equal steps may differ: on a busy machine it varies."""


MAX_SLICE_ROWS = 1 << 16


GATHERED_ROWS = 1 << 18
"""The same for rows that are gathered: as Python objects they then take about 60 MB."""


class Slicer:
    """Chooses how many rows the next step takes, from what rows cost so far.

    The fixed cost of a step must not count as the cost of its rows. Otherwise slices would shrink, their rows would
    look even more expensive, and in the end each step would take one row.
    """

    def __init__(self, row_cost_s: float | None = None, rows_max: int = MAX_SLICE_ROWS) -> None:
        self.row_cost_s = row_cost_s
        self._rows_max = rows_max
        self._limit = FIRST_SLICE_ROWS if row_cost_s is None else rows_max
        self._last: tuple[int, float] | None = None
        self._step_s = 0.0

    def rows(self, left_s: float) -> int:
        """How many rows fit, given the time until the barrier; infinity if there is none."""
        if self.row_cost_s is None:
            return self._limit
        step_s = max(min(STEP_TARGET_S, left_s), STEP_MIN_S, STEP_SHARE * left_s)
        return max(1, int(min(min(step_s, STEP_S_MAX) / max(self.row_cost_s, 1e-9), self._limit)))

    def observe(self, rows: int, elapsed_s: float) -> None:
        """Learns higher costs at once and lower ones slowly: a late barrier is worse than one more step."""
        if rows == 0:
            return
        self._learn_step_cost(rows, elapsed_s)
        cost = max(0.0, elapsed_s - NOISE * self._step_s) / rows
        known = self.row_cost_s
        self.row_cost_s = cost if known is None or cost > known else 0.5 * known + 0.5 * cost
        self._limit = min(max(self._limit, rows * GROWTH), self._rows_max)
        self._last = (rows, elapsed_s)

    def _learn_step_cost(self, rows: int, elapsed_s: float) -> None:
        """Compares two steps of clearly different size to find the cost that both have in common."""
        if self._last is None:
            return
        rows_before, elapsed_before_s = self._last
        if max(rows, rows_before) >= CLEARLY * min(rows, rows_before):
            row_s = max(0.0, (elapsed_s - elapsed_before_s) / (rows - rows_before))
            common_s = max(0.0, elapsed_s - row_s * rows)
            self._step_s = max(common_s, 0.5 * self._step_s + 0.5 * common_s)
