"""How long things take, learned from epochs that ran, so that checkpoints come at the cadence asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.protocol.plan import StagePlan, SubtaskPlan, stage_budget, waves
from penstock.protocol.report import SubtaskReport, Timing

LEARNING = 0.3
FORGETTING = 0.7
"""Lower costs are learned faster than higher ones: the first job of a JVM takes seconds."""
BROADCAST_SHARE = 0.5
"""The share of a stage's budget for broadcast rows; other rows need the rest."""
FIRST_BROADCAST_ROWS = 128
"""The number of broadcast rows before their cost is known."""


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
        inside_s = sum(timing.elapsed_s - timing.stepped_s for timing in timings) / len(timings)
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
    broadcast_row_cost_s: dict[str, float] = field(default_factory=dict)
    live_rows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    publish_s: float = 0.01

    def budget(
        self, stage: str, subtasks: Sequence[SubtaskPlan], left_s: float, *, stages_left: int, slots: int, live: bool
    ) -> float:
        needs_s = [self._need_s(stage, subtask, len(subtasks), live=live) for subtask in subtasks if subtask.has_work]
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

    def _need_s(self, stage: str, subtask: SubtaskPlan, parallelism: int, *, live: bool) -> float:
        """How long a subtask needs, if live rows come as in the last micro-batch."""
        cost_s = self.row_cost_s.get(stage)
        expected = self.live_rows.get((stage, parallelism)) if live else [0] * parallelism
        if cost_s is None or expected is None:
            return float("inf")
        return cost_s * (subtask.rows_in_flight + expected[subtask.subtask])

    def observe(self, stage: str, plan: StagePlan, job_s: float, slots: int, reports: Sequence[SubtaskReport]) -> None:
        timings = [report.timing for report in reports if report.timing is not None]
        costs = [timing.row_cost_s for timing in timings if timing.row_cost_s is not None]
        if costs:
            self.row_cost_s[stage] = max(costs)
        costs = [timing.broadcast_row_cost_s for timing in timings if timing.broadcast_row_cost_s is not None]
        if costs:
            self.broadcast_row_cost_s[stage] = max(costs)
        if plan.live:
            rows = {report.subtask: sum(part.live_accepted for part in report.inputs) for report in reports}
            self.live_rows[(stage, plan.parallelism)] = [rows.get(k, 0) for k in range(plan.parallelism)]
        if timings:
            seen = Overhead.of(timings, job_s, slots)
            known = self.overheads.get((stage, plan.live))
            self.overheads[stage, plan.live] = seen if known is None else known.after(seen)

    def published(self, publish_s: float) -> None:
        self.publish_s = _learned(self.publish_s, publish_s)


def _learned(known_s: float, seen_s: float) -> float:
    return known_s + (LEARNING if seen_s > known_s else FORGETTING) * (seen_s - known_s)
