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


# -- on a busy machine -------------------------------------------------------------------------------------------------


def test_time_of_waiting_for_a_core_is_not_the_cost_of_a_row() -> None:
    """A4: one row of 1 ms that waited for a core for 200 ms."""
    slicer = Slicer(row_cost_s=0.001)
    slicer.observe(1, 0.201, cpu_s=0.0001, delayed_s=0.2)
    assert slicer.row_cost_s == pytest.approx(0.001)


def test_a_single_slow_step_does_not_cut_the_next_slices_to_one_row() -> None:
    """A step that was late for a reason that nobody measured: rows are believed to be twice as dear, not 50 times."""
    slicer = Slicer()
    for _ in range(20):
        slicer.observe(20, 0.02, cpu_s=0.001)
    slicer.observe(20, 1.0, cpu_s=0.001)
    assert slicer.rows(NEAR_S) >= 9
    slicer.observe(10, 0.01, cpu_s=0.001)
    slicer.observe(10, 0.01, cpu_s=0.001)
    assert slicer.rows(NEAR_S) >= 15, "and soon forgotten"


def test_rows_that_wait_longer_are_believed_step_by_step() -> None:
    """A4: a service that answers in 16 ms instead of 1."""
    slicer, steps_s = Slicer(row_cost_s=0.001), []
    for _ in range(6):
        rows = slicer.rows(NEAR_S)
        steps_s.append(rows * 0.016)
        slicer.observe(rows, rows * 0.016, cpu_s=0.0)
    assert steps_s == pytest.approx([0.32, 0.16, 0.08, 0.032, 0.016, 0.016], rel=0.3)


def test_a_row_that_computes_longer_is_believed_at_once() -> None:
    """A4: its CPU time leaves no doubt."""
    slicer = Slicer(row_cost_s=0.00001)
    slicer.observe(1000, 1.0, cpu_s=1.0)
    assert slicer.rows(NEAR_S) <= 20


@pytest.mark.parametrize("seed", range(5))
def test_steps_that_wait_for_a_core_each_time_keep_their_rows(seed: int) -> None:
    """Each step of rows of 1 ms waits 10 to 60 ms for a core. By the clock alone slices would end at one row."""
    chance, slicer, taken = random.Random(seed), Slicer(row_cost_s=0.001), []
    for _ in range(100):
        rows, delayed_s = slicer.rows(NEAR_S), chance.uniform(0.01, 0.06)
        slicer.observe(rows, rows * 0.001 + delayed_s, cpu_s=0.001, delayed_s=delayed_s)
        taken.append(rows)
    assert min(taken) >= 4, taken


def test_steps_last_as_long_as_they_should_where_cores_are_shared() -> None:
    """A4: rows of 1 ms of computing that get a quarter of a core: a step of 20 ms has five of them."""
    slicer = Slicer(row_cost_s=0.001)
    for _ in range(20):
        rows = slicer.rows(NEAR_S)
        slicer.observe(rows, rows * 0.004, cpu_s=rows * 0.001, delayed_s=rows * 0.003)
    assert slicer.stretch == pytest.approx(4.0)
    assert slicer.rows(NEAR_S) == 5
