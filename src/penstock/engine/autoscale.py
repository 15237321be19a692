"""Autoscaling of a running query: `protocol.scale` decides after each epoch, `Query.rescale`'s path acts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from penstock.engine.epochs import EpochResult
from penstock.protocol.parallelism import Bounds
from penstock.protocol.report import Timing
from penstock.protocol.scale import Load, ScaleMemory, rescaling


@dataclass(frozen=True, slots=True)
class Change:
    """A stage that gets another number of subtasks."""

    stage: str
    old: int
    new: int
    why: str


class Autoscaler:
    """Watches epochs, stage by stage. A stage that the user rescaled is left alone from then on."""

    def __init__(self, bounds: Bounds, slots: Callable[[], int], clock: Callable[[], float]) -> None:
        self._bounds, self._slots, self._clock = bounds, slots, clock
        self._memories: dict[str, ScaleMemory] = {}
        self._fixed: set[str] = set()
        self._last_s: float | None = None

    def leave_alone(self, stages: Iterable[str]) -> None:
        self._fixed.update(stages)

    def observe(self, result: EpochResult) -> tuple[dict[str, str], list[Change]]:
        """Remarks about stages for the event, and the changes to make."""
        now = self._clock()
        span_s = result.duration_s if self._last_s is None else max(now - self._last_s, result.duration_s)
        self._last_s = now
        said, changes = {}, []
        for stage, count in result.manifest.parallelism.items():
            if stage in self._fixed:
                continue
            decision = rescaling(
                self._memories.get(stage, ScaleMemory()), _load(result, stage, self._slots(), span_s), self._bounds
            )
            self._memories[stage] = decision.memory
            if decision.why is not None:
                said[stage] = decision.why
                if decision.parallelism != count:
                    changes.append(Change(stage, count, decision.parallelism, decision.why))
        return said, changes


def _load(result: EpochResult, stage: str, slots: int, span_s: float) -> Load:
    manifest = result.manifest
    mine = (name for name, ends in manifest.shape.edges.items() if ends.consumer == stage)
    # More subtasks do not help rows that wait for other stages.
    edges = [result.readable.get(name, manifest.edges[name]) for name in mine]
    reports = [report for report in result.reports if report.stage == stage]
    return Load(
        parallelism=manifest.parallelism[stage],
        slots=slots,
        rows_in_flight=sum(edge.rows_in_flight for edge in edges),
        bytes_in_flight=sum(edge.bytes_in_flight for edge in edges),
        rows_processed=sum(part.consumed for report in reports for part in report.inputs),
        stepped_s=sum(report.timing.stepped_s for report in reports if report.timing is not None),
        duration_s=result.duration_s,
        span_s=span_s,
        computing=_computing([report.timing for report in reports if report.timing is not None]),
    )


def _computing(timings: Sequence[Timing]) -> float | None:
    measured = [timing for timing in timings if timing.cpu_s is not None]
    worked_s = sum(timing.worked_s - timing.delayed_s for timing in measured)
    return sum(timing.cpu_s or 0.0 for timing in measured) / worked_s if worked_s > 0 else None
