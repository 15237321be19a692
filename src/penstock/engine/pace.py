"""How long things take, learned from epochs that ran, so that checkpoints come at the cadence asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.protocol.plan import StagePlan, SubtaskPlan, stage_budget
from penstock.protocol.report import SubtaskReport

LEARNING = 0.3
BROADCAST_SHARE = 0.5
"""Of a stage's budget, for broadcast rows: the rows they are meant for need the other half."""
FIRST_BROADCAST_ROWS = 128
"""Nothing is known about their cost yet."""


@dataclass(slots=True)
class Pace:
    """Estimates; forgotten at a restart, relearned within a few epochs, never needed for correctness."""

    overhead_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    row_cost_s: dict[str, float] = field(default_factory=dict)
    broadcast_row_cost_s: dict[str, float] = field(default_factory=dict)
    live_rows: dict[tuple[str, int], list[int]] = field(default_factory=dict)
    publish_s: float = 0.01

    def budget(
        self, stage: str, subtasks: Sequence[SubtaskPlan], left_s: float, *, stages_left: int, slots: int, live: bool
    ) -> float:
        overhead_s = self.overhead_s.get((stage, live), 0.0) + self.publish_s / stages_left
        return stage_budget(
            left_s=left_s,
            stages_left=stages_left,
            needs_s=[
                self._need_s(stage, subtask, len(subtasks), live=live) for subtask in subtasks if subtask.has_work
            ],
            slots=slots,
            overhead_s=overhead_s,
        )

    def broadcast_rows(self, stage: str, budget_s: float) -> int:
        """How many broadcast rows each subtask takes: as many as it can in its share of the time, at least one."""
        cost_s = self.broadcast_row_cost_s.get(stage)
        if cost_s is None:
            return FIRST_BROADCAST_ROWS
        return max(1, int(budget_s * BROADCAST_SHARE / max(cost_s, 1e-9)))

    def _need_s(self, stage: str, subtask: SubtaskPlan, parallelism: int, *, live: bool) -> float:
        """Live rows are expected to come as in the last micro-batch."""
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
        steps_s = [timing.stepped_s for timing in timings]
        if steps_s:
            overhead_s = max(0.0, job_s - max(sum(steps_s) / slots, *steps_s))
            key = (stage, plan.live)
            known = self.overhead_s.get(key)
            self.overhead_s[key] = overhead_s if known is None else known + LEARNING * (overhead_s - known)

    def published(self, publish_s: float) -> None:
        self.publish_s += LEARNING * (publish_s - self.publish_s)
