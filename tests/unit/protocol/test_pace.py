"""How long things take, learned from epochs that ran (A2, A9, B2)."""

from __future__ import annotations

import pytest

from penstock.engine.pace import RECENT, Overhead, Pace, useful_s
from penstock.protocol.epoch import USEFUL_TARGET, backlog_limit, cadence
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.plan import InputPlan, StagePlan, SubtaskPlan
from penstock.protocol.report import InputReport, SubtaskReport, Timing

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


# -- a floor under useful work -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fixed_s", [0.01, 0.4, 0.6, 1.3, 60.0])
def test_at_least_half_of_an_epoch_is_processing_whatever_else_it_needs(fixed_s: float) -> None:
    planned = cadence(1.0, fixed_s)
    assert planned.planned_s - fixed_s >= 0.5 * planned.planned_s
    assert planned.planned_s >= planned.asked_s


def test_an_epoch_that_grows_says_why_and_one_that_does_not_is_as_long_as_asked_for() -> None:
    assert cadence(1.0, 0.2).because is None
    assert cadence(1.0, 0.2).planned_s == 1.0
    assert cadence(1.0, None).planned_s == 1.0
    assert cadence(1.0, 1.04).because == "an epoch needs 1.04 s besides processing"


def test_a_single_slow_epoch_makes_no_epoch_longer() -> None:
    """A2: the first epochs of a JVM take seconds."""
    pace = Pace()
    pace.ended(7.0, live=False)
    assert pace.cadence(1.0, live=False).planned_s == 1.0
    for fixed_s in (0.1, 0.1, 5.0):
        pace.ended(fixed_s, live=False)
    assert pace.cadence(1.0, live=False).planned_s == 1.0


def test_epochs_grow_while_they_need_much_besides_and_shrink_back() -> None:
    pace = Pace()
    for _ in range(RECENT):
        pace.ended(1.2, live=False)
    assert pace.cadence(1.0, live=False).planned_s == pytest.approx(1.2 / (1 - USEFUL_TARGET))
    assert pace.cadence(1.0, live=True).planned_s == 1.0, "those with a micro-batch are another kind"
    for _ in range(RECENT - 1):
        pace.ended(0.1, live=False)
    assert pace.cadence(1.0, live=False).planned_s == 1.0


@pytest.mark.parametrize(("job_s", "wave_s"), [(0.05, 0.02), (0.8, 0.1), (3.0, 0.5)])
def test_an_overloaded_stage_processes_for_half_of_the_time(job_s: float, wave_s: float) -> None:
    """Four subtasks with a long backlog on two slots; every epoch needs so much besides."""
    pace, shares = Pace(), []
    for _ in range(20):
        planned_s = pace.cadence(1.0, live=True).planned_s
        budget_s = pace.budget("s", subtasks(4), planned_s, stages_left=1, slots=SLOTS, live=True)
        took_s = job_s + 2 * (budget_s + wave_s)
        reports = [report(number, budget_s + wave_s, budget_s) for number in range(4)]
        pace.observe("s", plan(4), took_s, SLOTS, reports)
        useful = useful_s([part.timing for part in reports if part.timing is not None], SLOTS)
        pace.ended(took_s - useful, live=True)
        shares.append(useful / took_s)
    assert min(shares[-10:]) >= 0.5


# -- a backlog in seconds ----------------------------------------------------------------------------------------------


def worked(subtask: int, rows: int, row_s: float, *, cost_s: float | None = None) -> SubtaskReport:
    timing = Timing(
        elapsed_s=1.0,
        stepped_s=rows * row_s,
        barrier_fired=True,
        row_cost_s=row_s if cost_s is None else cost_s,
        worked_s=rows * row_s,
    )
    part = InputReport(edge="e", live_accepted=10 * rows, live_consumed=rows)
    return SubtaskReport(stage="s", subtask=subtask, checkpoint=1, attempt="a", inputs=(part,), timing=timing)


def test_a_backlog_takes_as_long_as_its_slowest_subtask_or_as_all_of_them_on_the_slots() -> None:
    """A9."""
    pace = Pace()
    assert pace.backlog_s(SLOTS) == 0.0
    pace.observe("s", plan(4), 1.0, SLOTS, [worked(number, 100, 0.001) for number in range(4)])
    assert pace.backlog_s(SLOTS) == pytest.approx(4 * 900 * 0.001 / SLOTS)
    pace.observe("s", plan(4), 1.0, SLOTS, [worked(0, 1000, 0.001), *(worked(n, 10, 0.001) for n in (1, 2, 3))])
    assert pace.backlog_s(SLOTS) == pytest.approx(9000 * 0.001)


def test_a_subtask_with_few_rows_does_not_say_what_rows_cost() -> None:
    """One row that met a slow moment, beside a thousand others."""
    pace = Pace()
    pace.observe("s", plan(2), 1.0, SLOTS, [worked(0, 1000, 0.001), worked(1, 1, 0.5)])
    assert pace.row_cost_s["s"] == 0.001
    assert pace.row_wall_s["s"] < 0.002


def test_one_slow_epoch_makes_rows_twice_as_dear_at_most() -> None:
    pace = Pace()
    pace.observe("s", plan(1), 1.0, SLOTS, [worked(0, 100, 0.001)])
    pace.observe("s", plan(1), 1.0, SLOTS, [worked(0, 100, 0.05)])
    assert pace.row_cost_s["s"] == pytest.approx(0.002)
    assert pace.row_wall_s["s"] <= 0.002


def test_a_limit_on_the_backlog_leaves_room_for_some_epochs() -> None:
    """A9: less would leave slots empty, and autoscaling blind."""
    assert backlog_limit(10.0, 1.0) == 10.0
    assert backlog_limit(0.5, 1.0) == 3.0
    assert backlog_limit(None, 1.0) is None
