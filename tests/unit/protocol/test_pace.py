"""How long things take, learned from epochs that ran (A2, B2)."""

from __future__ import annotations

import pytest

from penstock.engine.pace import Overhead, Pace
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.plan import InputPlan, StagePlan, SubtaskPlan
from penstock.protocol.report import SubtaskReport, Timing

SLOTS = 2


def subtasks(count: int) -> tuple[SubtaskPlan, ...]:
    live = InputPlan(edge="e", reads=(), live=True)
    return tuple(
        SubtaskPlan(
            subtask=number, groups=KeyGroupRange(number, number + 1), inputs=(live,), state={}, rows_in_flight=0
        )
        for number in range(count)
    )


def plan(count: int) -> StagePlan:
    return StagePlan(
        stage="s",
        checkpoint=1,
        generation=1,
        parallelism=count,
        max_parallelism=128,
        budget_s=None,
        consumer_parallelism={},
        subtasks=subtasks(count),
        row_cost_s=None,
        now=0,
    )


def report(subtask: int, elapsed_s: float, stepped_s: float) -> SubtaskReport:
    timing = Timing(elapsed_s=elapsed_s, stepped_s=stepped_s, barrier_fired=True)
    return SubtaskReport(stage="s", subtask=subtask, checkpoint=1, attempt="a", timing=timing)


def test_overhead_is_split_into_that_of_the_job_and_that_of_each_wave() -> None:
    timings = [Timing(elapsed_s=0.5, stepped_s=0.4, barrier_fired=True)] * 4
    overhead = Overhead.of(timings, job_s=1.25, slots=SLOTS)
    assert (overhead.job_s, overhead.wave_s) == (pytest.approx(0.25), pytest.approx(0.1))
    assert overhead.total_s(subtasks=8, slots=SLOTS) == pytest.approx(0.25 + 4 * 0.1)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 20])
def test_the_first_epoch_after_a_rescale_keeps_the_cadence(count: int) -> None:
    """B2: what was learned with 2 subtasks says how long any number of them take."""
    pace, job_s, wave_s, epoch_s = Pace(), 0.05, 0.02, 1.0
    for _ in range(20):
        stepped_s = pace.budget("s", subtasks(2), epoch_s, stages_left=1, slots=SLOTS, live=True)
        reports = [report(number, stepped_s + wave_s, stepped_s) for number in range(2)]
        pace.observe("s", plan(2), job_s + stepped_s + wave_s, SLOTS, reports)
    stepped_s = pace.budget("s", subtasks(count), epoch_s, stages_left=1, slots=SLOTS, live=True)
    took_s = job_s + -(-count // SLOTS) * (stepped_s + wave_s)
    assert took_s <= epoch_s
    assert took_s >= 0.6 * epoch_s


def test_one_slow_job_is_soon_forgotten() -> None:
    """A2: the first job of a JVM takes seconds; epochs must not stay short for long because of it."""
    known = Overhead(job_s=4.0, wave_s=1.0)
    for _ in range(4):
        known = known.after(Overhead(job_s=0.1, wave_s=0.02))
    assert known.job_s < 0.15
    assert known.wave_s < 0.03
