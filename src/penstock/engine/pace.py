"""How long things take, learned from epochs that ran, so that checkpoints come at the cadence asked for."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.protocol.epoch import Cadence, cadence
from penstock.protocol.plan import StagePlan, SubtaskPlan, stage_budget, waves
from penstock.protocol.report import SubtaskReport, Timing
from penstock.slices import DOUBT

LEARNING = 0.3
FORGETTING = 0.7
"""Lower costs are learned faster than higher ones: the first job of a JVM takes seconds."""
BROADCAST_SHARE = 0.5
"""The share of a stage's budget for broadcast rows; other rows need the rest."""
FIRST_BROADCAST_ROWS = 128
"""The number of broadcast rows before their cost is known."""
RECENT = 3
"""So many epochs of a kind say what one needs besides processing: the middle one, so that a single slow epoch does not
make the next ones long."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What a job of a stage needs besides processing: once, and again for each wave of subtasks.

    Kept apart, because the next epoch may have another number of subtasks: after a rescale, or when fewer have work.
    """

    job_s: float
    wave_s: float

    @staticmethod
    def of(timings: Sequence[Timing], job_s: float, slots: int) -> Overhead:
        """From one job; `timings` of its subtasks, at least one."""
        elapsed_s = [timing.elapsed_s for timing in timings]
        around_s = job_s - max(sum(elapsed_s) / slots, *elapsed_s)
        inside_s = sum([timing.elapsed_s - timing.stepped_s for timing in timings]) / len(timings)
        return Overhead(max(0.0, around_s), max(0.0, inside_s))

    def after(self, newer: Overhead) -> Overhead:
        return Overhead(_learned(self.job_s, newer.job_s), _learned(self.wave_s, newer.wave_s))

    def total_s(self, subtasks: int, slots: int) -> float:
        return self.job_s + self.wave_s * waves(subtasks, slots)


@dataclass(slots=True)
class Pace:
    """Estimates; forgotten at a restart, relearned within a few epochs, never needed for correctness."""

    overheads: dict[tuple[str, bool], Overhead] = field(default_factory=dict)
    row_cost_s: dict[str, float] = field(default_factory=dict)
    """What a row takes where a core is free: slices are cut by it."""
    row_wall_s: dict[str, float] = field(default_factory=dict)
    """What a row takes as things are: what is in flight needs so long."""
    broadcast_row_cost_s: dict[str, float] = field(default_factory=dict)
    live_rows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    left_rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By stage, after its last epoch: all rows that it may read, and those of the subtask that has most."""
    fixed_s: dict[bool, deque[float]] = field(default_factory=dict)
    """What the last epochs took besides processing, with and without a micro-batch."""
    publish_s: float = 0.01

    # -- asked before an epoch -----------------------------------------------------------------------------------

    def cadence(self, asked_s: float, *, live: bool) -> Cadence:
        recent = self.fixed_s.get(live, ())
        return cadence(asked_s, statistics.median(recent) if len(recent) == RECENT else None)

    def backlog_s(self, slots: int) -> float:
        """How long it takes to process what is in flight, without anything else that an epoch needs."""
        known = ((self.row_wall_s[stage], left) for stage, left in self.left_rows.items() if stage in self.row_wall_s)
        return sum(cost_s * max(most, rows / max(1, slots)) for cost_s, (rows, most) in known)

    def budget(
        self, stage: str, subtasks: Sequence[SubtaskPlan], left_s: float, *, stages_left: int, slots: int, live: bool
    ) -> float:
        needs_s = self._needs_s(stage, subtasks, live=live)
        known = self.overheads.get((stage, live))
        overhead_s = 0.0 if known is None else known.total_s(len(needs_s), slots)
        return stage_budget(
            left_s=left_s,
            stages_left=stages_left,
            needs_s=needs_s,
            slots=slots,
            overhead_s=overhead_s + self.publish_s / stages_left,
        )

    def broadcast_rows(self, stage: str, budget_s: float) -> int:
        """How many broadcast rows each subtask takes: as many as it can in its share of the time, at least one."""
        cost_s = self.broadcast_row_cost_s.get(stage)
        if cost_s is None:
            return FIRST_BROADCAST_ROWS
        return max(1, int(budget_s * BROADCAST_SHARE / max(cost_s, 1e-9)))

    def _needs_s(self, stage: str, subtasks: Sequence[SubtaskPlan], *, live: bool) -> list[float]:
        """How long each subtask with work needs, if live rows come as in the last micro-batch."""
        cost_s = self.row_wall_s.get(stage)
        expected = self.live_rows.get((stage, len(subtasks))) if live else [0] * len(subtasks)
        working = [subtask for subtask in subtasks if subtask.has_work]
        if cost_s is None or expected is None:
            return [float("inf")] * len(working)
        return [cost_s * (subtask.rows_in_flight + expected[subtask.subtask]) for subtask in working]

    # -- told after it -------------------------------------------------------------------------------------------

    def observe(self, stage: str, plan: StagePlan, job_s: float, slots: int, reports: Sequence[SubtaskReport]) -> None:
        timings = [report.timing for report in reports if report.timing is not None]
        consumed, accepted = _rows_of(reports)
        self._learn_rows(stage, reports, consumed)
        costs = [timing.broadcast_row_cost_s for timing in timings if timing.broadcast_row_cost_s is not None]
        if costs:
            self.broadcast_row_cost_s[stage] = max(costs)
        if plan.live:
            rows = {report.subtask: live for report, live in zip(reports, accepted, strict=True)}
            self.live_rows[(stage, plan.parallelism)] = [rows.get(k, 0) for k in range(plan.parallelism)]
        if timings:
            seen = Overhead.of(timings, job_s, slots)
            known = self.overheads.get((stage, plan.live))
            self.overheads[stage, plan.live] = seen if known is None else known.after(seen)
        change = [live - done for live, done in zip(accepted, consumed, strict=True)]
        self._count_left(stage, plan, reports, change)

    def _learn_rows(self, stage: str, reports: Sequence[SubtaskReport], consumed: Sequence[int]) -> None:
        """Each subtask counts by the rows that it did: one with few rows had little to learn from."""
        seen = [
            (report.timing, rows)
            for report, rows in zip(reports, consumed, strict=True)
            if report.timing is not None and report.timing.row_cost_s is not None
        ]
        if not seen:
            return
        costs = sorted([(timing.row_cost_s or 0.0, rows) for timing, rows in seen])
        cost_s, known_s = _middle(costs), self.row_cost_s.get(stage)
        self.row_cost_s[stage] = cost_s if known_s is None else min(cost_s, DOUBT * known_s)
        worked_s, rows = sum([timing.worked_s for timing, _ in seen]), sum([rows for _, rows in seen])
        wall_s, known_s = max(self.row_cost_s[stage], worked_s / max(1, rows)), self.row_wall_s.get(stage)
        self.row_wall_s[stage] = wall_s if known_s is None else 0.5 * known_s + 0.5 * min(wall_s, DOUBT * known_s)

    def _count_left(
        self, stage: str, plan: StagePlan, reports: Sequence[SubtaskReport], changes: Sequence[int]
    ) -> None:
        before = {subtask.subtask: subtask.rows_in_flight for subtask in plan.subtasks}
        for report, change in zip(reports, changes, strict=True):
            before[report.subtask] = max(0, before[report.subtask] + change)
        self.left_rows[stage] = (sum(before.values()), max(before.values(), default=0))

    def published(self, publish_s: float) -> None:
        self.publish_s = _learned(self.publish_s, publish_s)

    def ended(self, fixed_s: float, *, live: bool) -> None:
        """An epoch was published that took so long besides processing."""
        self.fixed_s.setdefault(live, deque(maxlen=RECENT)).append(fixed_s)


def useful_s(timings: Sequence[Timing], slots: int) -> float:
    """For how long subtasks of a job were stepping, at least; together they fill the slots at best."""
    stepped_s = [timing.stepped_s for timing in timings]
    return max(sum(stepped_s) / max(1, slots), *stepped_s, 0.0)


def _rows_of(reports: Sequence[SubtaskReport]) -> tuple[list[int], list[int]]:
    """Rows consumed and live rows accepted, of each report."""
    consumed, accepted = [], []
    for report in reports:  # once: there may be thousands
        done = live = 0
        for part in report.inputs:
            done += part.consumed
            live += part.live_accepted
        consumed.append(done)
        accepted.append(live)
    return consumed, accepted


def _middle(costs: Sequence[tuple[float, int]]) -> float:
    """Of costs in ascending order with the rows that they are known from: what half of the rows cost at most."""
    passed, half = 0, sum([rows for _, rows in costs]) / 2
    for cost_s, rows in costs:
        passed += rows
        if passed >= half:
            return cost_s
    raise AssertionError("no costs")


def _learned(known_s: float, seen_s: float) -> float:
    return known_s + (LEARNING if seen_s > known_s else FORGETTING) * (seen_s - known_s)
