"""How many rows a step takes: from what they cost, and not from what a step costs besides (A2, A4)."""

from __future__ import annotations

import math
import random

import pytest

from penstock.slices import MAX_SLICE_ROWS, STEP_SHARE, STEP_TARGET_S, Slicer

NEAR_S = STEP_TARGET_S / STEP_SHARE
"""From here on a step may last as long as it should near the barrier."""


def sizes(slicer: Slicer, steps: int, step_s: float, row_s: float, chance: random.Random | None = None) -> list[int]:
    taken = []
    for _ in range(steps):
        rows = slicer.rows(NEAR_S)
        noise = 1.0 if chance is None else chance.uniform(0.7, 1.3)
        slicer.observe(rows, (step_s + row_s * rows) * noise)
        taken.append(rows)
    return taken


@pytest.mark.parametrize("row_s", [0.001, 0.0001, 0.02])
def test_steps_last_about_as_long_as_they_should(row_s: float) -> None:
    """A4."""
    taken = sizes(Slicer(), 20, 0.0, row_s)
    assert max(rows * row_s for rows in taken[1:]) <= max(STEP_TARGET_S, row_s) * 1.01
    assert taken[-1] == max(1, int(STEP_TARGET_S / row_s + 1e-6))


@pytest.mark.parametrize("known", [None, 0.0004, 0.01])
@pytest.mark.parametrize("seed", range(5))
def test_dear_steps_with_cheap_rows_do_not_shrink(known: float | None, seed: int) -> None:
    """A2: a step that takes 40 ms whatever its size; by average cost it would end at one row a step."""
    taken = sizes(Slicer(known), 60, 0.04, 0.000005, random.Random(seed))
    assert sum(taken[-20:]) / 20 > 200, taken


def test_a_row_that_becomes_dear_is_believed_at_once() -> None:
    """A4."""
    slicer = Slicer()
    sizes(slicer, 20, 0.0, 0.00001)
    assert slicer.rows(NEAR_S) > 1000
    before = slicer.rows(NEAR_S)
    slicer.observe(before, before * 0.001)
    assert slicer.rows(NEAR_S) <= 20


def test_far_from_the_barrier_a_step_takes_a_tenth_of_the_time_that_is_left() -> None:
    """A4: rows may cost ten times what they did, and the step still ends before the barrier."""
    slicer = Slicer(row_cost_s=0.0001)
    assert [slicer.rows(left_s) for left_s in (2.0, 0.5, 0.2, 0.05, 0.01, 0.0)] == [2000, 500, 200, 200, 100, 50]


def test_without_a_barrier_steps_of_cheap_rows_are_as_large_as_they_may_be() -> None:
    """A3."""
    assert Slicer(row_cost_s=0.00001).rows(float("inf")) == MAX_SLICE_ROWS
    assert sizes(Slicer(), 30, 0.0, 0.0)[-1] == MAX_SLICE_ROWS


def test_nothing_is_larger_than_the_largest_slice() -> None:
    assert max(sizes(Slicer(), 30, 0.0, 0.0)) == MAX_SLICE_ROWS


def test_a_step_is_bounded_without_a_barrier_too() -> None:
    """Whoever watches over a subtask sees that it gets on; a slow function is not taken for one that hangs."""
    slicer = Slicer(row_cost_s=0.01, rows_max=1 << 18)
    assert slicer.rows(math.inf) == 200
    assert slicer.rows(3600.0) == 200
