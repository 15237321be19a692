"""How long things take, learned from epochs that ran, so that checkpoints come at the cadence asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.protocol.plan import StagePlan, stage_budget
from penstock.protocol.report import SubtaskReport

LEARNING = 0.3


@dataclass(slots=True)
class Pace:
    """Estimates; forgotten at a restart, relearned within a few epochs, never needed for correctness."""

    overhead_s: dict[tuple[str, bool], float] = field(default_factory=dict)
    row_cost_s: dict[str, float] = field(default_factory=dict)
    publish_s: float = 0.01

    def budget(
        self, stage: str, left_s: float, *, stages_left: int, launched: int, slots: int, live: bool
    ) -> float:
        overhead_s = self.overhead_s.get((stage, live), 0.0) + self.publish_s / stages_left
        return stage_budget(
            left_s=left_s, stages_left=stages_left, launched=launched, slots=slots, overhead_s=overhead_s
        )

    def observe(
        self, stage: str, plan: StagePlan, job_s: float, slots: int, reports: Sequence[SubtaskReport]
    ) -> None:
        timings = [report.timing for report in reports if report.timing is not None]
        costs = [timing.row_cost_s for timing in timings if timing.row_cost_s is not None]
        if costs:
            self.row_cost_s[stage] = max(costs)
        if plan.budget_s is not None and any(timing.barrier_fired for timing in timings):
            waves = -(-len(timings) // slots)
            overhead_s = max(0.0, job_s - waves * plan.budget_s)
            key = (stage, plan.live)
            known = self.overhead_s.get(key)
            self.overhead_s[key] = overhead_s if known is None else known + LEARNING * (overhead_s - known)

    def published(self, publish_s: float) -> None:
        self.publish_s += LEARNING * (publish_s - self.publish_s)
