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


DOUBT = 2.0
"""A single step makes rows look at most this much dearer, unless its CPU time says more: steps are late for many
reasons that have nothing to do with rows."""


STRETCH_FADES = 0.8
"""What is remembered of earlier steps at each one."""


MAX_SLICE_ROWS = 1 << 16


GATHERED_ROWS = 1 << 18
"""The same for rows that are gathered: as Python objects they then take about 60 MB."""


class Slicer:
    """Chooses how many rows the next step takes, from what rows cost so far.

    The fixed cost of a step must not count as the cost of its rows. Otherwise slices would shrink, their rows would
    look even more expensive, and in the end each step would take one row.
    The same goes for the time in which a step waits for a core. It counts in another way: `stretch` is how much longer
    steps take than their rows need, over many steps.
    """

    def __init__(self, row_cost_s: float | None = None, rows_max: int = MAX_SLICE_ROWS) -> None:
        self.row_cost_s = row_cost_s
        self._rows_max = rows_max
        self._limit = FIRST_SLICE_ROWS if row_cost_s is None else rows_max
        self._last: tuple[int, float] | None = None
        self._step_s = 0.0
        self._wall_s = self._own_s = 0.0

    @property
    def stretch(self) -> float:
        return max(1.0, self._wall_s / self._own_s) if self._own_s > 0 else 1.0

    def rows(self, left_s: float) -> int:
        """How many rows fit, given the time until the barrier; infinity if there is none."""
        if self.row_cost_s is None:
            return self._limit
        cost_s = max(self.row_cost_s, 1e-9)
        step_s = min(max(min(STEP_TARGET_S, left_s), STEP_MIN_S, STEP_SHARE * left_s), STEP_S_MAX)
        # A slice never has less than the shortest step's work: on a busy machine making slices would be all we do.
        wanted = max(step_s / self.stretch, STEP_MIN_S) / cost_s
        return max(1, int(min(wanted, self._limit)))

    def observe(self, rows: int, elapsed_s: float, *, cpu_s: float | None = None, delayed_s: float = 0.0) -> None:
        """Learns higher costs at once and lower ones slowly: a late barrier is worse than one more step.

        Where the CPU time is known, a higher cost is learned at once only as far as the CPU time shows it. Whatever
        else was slow may have been chance, and is learned step by step.
        """
        if rows == 0:
            return
        own_s = max(0.0, elapsed_s - delayed_s)
        self._wall_s = STRETCH_FADES * self._wall_s + elapsed_s
        self._own_s = STRETCH_FADES * self._own_s + own_s
        self._learn_step_cost(rows, own_s)
        besides_s = NOISE * self._step_s
        cost, known = max(0.0, own_s - besides_s) / rows, self.row_cost_s
        if known is not None and cpu_s is not None:
            cost = min(cost, max(DOUBT * known, max(0.0, cpu_s - besides_s) / rows))
        self.row_cost_s = cost if known is None or cost > known else 0.5 * known + 0.5 * cost
        self._limit = min(max(self._limit, rows * GROWTH), self._rows_max)
        self._last = (rows, own_s)

    def _learn_step_cost(self, rows: int, elapsed_s: float) -> None:
        """Compares two steps of clearly different size to find the cost that both have in common."""
        if self._last is None:
            return
        rows_before, elapsed_before_s = self._last
        if max(rows, rows_before) >= CLEARLY * min(rows, rows_before):
            row_s = max(0.0, (elapsed_s - elapsed_before_s) / (rows - rows_before))
            common_s = max(0.0, elapsed_s - row_s * rows)
            self._step_s = max(common_s, 0.5 * self._step_s + 0.5 * common_s)
