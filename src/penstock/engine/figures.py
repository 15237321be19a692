"""The figures of an epoch, made from the reports of its subtasks: a few sums per subtask, nothing per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.engine.epochs import EpochResult
from penstock.observe.figures import SUBTASKS_MAX, EdgeFigures, StageFigures, SubtaskFigures
from penstock.protocol.manifest import Segment, StateFile
from penstock.protocol.report import SubtaskReport, Timing

_NO_TIMING = Timing(elapsed_s=0.0, stepped_s=0.0, barrier_fired=False)


def stage_figures(result: EpochResult) -> dict[str, StageFigures]:
    """Of every stage that had work."""
    by_stage: dict[str, list[SubtaskReport]] = {}
    for report in result.reports:
        by_stage.setdefault(report.stage, []).append(report)
    return {stage: _stage(reports, result.stage_s.get(stage, 0.0)) for stage, reports in by_stage.items()}


def _stage(reports: Sequence[SubtaskReport], job_s: float) -> StageFigures:
    slowest = max(map(_timing, reports), key=lambda timing: timing.elapsed_s)
    rows = [_processed(report) for report in reports]
    costs = [cost for report in reports if (cost := _timing(report).row_cost_s) is not None]
    sinks: dict[str, int] = {}
    for part in (part for report in reports for part in report.sinks):
        sinks[part.sink] = sinks.get(part.sink, 0) + part.rows
    return StageFigures(
        job_s=_rounded(job_s),
        outside_s=_rounded(job_s - slowest.elapsed_s),
        opening_s=_rounded(slowest.opened_s),
        waiting_s=_rounded(min(slowest.waited_s, slowest.stepped_s)),
        stepping_s=_rounded(slowest.stepped_s - slowest.waited_s),
        writing_s=_rounded(slowest.elapsed_s - slowest.opened_s - slowest.stepped_s),
        launched=len(reports),
        rows=sum(rows),
        rows_max=max(rows),
        rows_out=sum(map(_handed_on, reports)),
        bytes_in=sum(_timing(report).bytes_in for report in reports),
        bytes_out=sum(_bytes_out(report) for report in reports),
        row_cost_s=max(costs, default=None),
        barrier_delay_s=_rounded(max(_timing(report).barrier_delay_s for report in reports)),
        memory_bytes=max(_timing(report).memory_bytes for report in reports),
        sinks=sinks,
        subtasks=_subtasks(reports),
    )


def _subtasks(reports: Sequence[SubtaskReport]) -> SubtaskFigures:
    shown = sorted(reports, key=lambda report: -_timing(report).elapsed_s)[:SUBTASKS_MAX]
    shown.sort(key=lambda report: report.subtask)

    def column(value: Callable[[Timing], float]) -> tuple[int, ...]:
        return tuple(max(0, round(value(_timing(report)) * 1e6)) for report in shown)

    return SubtaskFigures(
        subtask=tuple(report.subtask for report in shown),
        rows=tuple(map(_processed, shown)),
        rows_out=tuple(map(_handed_on, shown)),
        elapsed_us=column(lambda timing: timing.elapsed_s),
        opening_us=column(lambda timing: timing.opened_s),
        waiting_us=column(lambda timing: timing.waited_s),
        stepping_us=column(lambda timing: timing.stepped_s - timing.waited_s),
        writing_us=column(lambda timing: timing.elapsed_s - timing.opened_s - timing.stepped_s),
        barrier_us=column(lambda timing: timing.barrier_delay_s),
    )


def edge_figures(result: EpochResult) -> dict[str, EdgeFigures]:
    """Of every edge."""
    sums: dict[str, dict[str, int]] = {name: {} for name in result.manifest.edges}
    for report in result.reports:
        for part in report.inputs:
            rows_spilled, bytes_spilled = _sizes(part.spilled)
            _add(
                sums.setdefault(part.edge, {}),
                rows_in=part.live_accepted,
                rows_processed=part.consumed,
                rows_spilled=rows_spilled,
                bytes_spilled=bytes_spilled,
            )
        for made in report.outputs:
            _add(sums.setdefault(made.edge, {}), rows_in=made.rows, bytes_written=_sizes(made.segments)[1])
    return {
        name: EdgeFigures(
            rows_in_flight=edge.rows_in_flight,
            bytes_in_flight=edge.bytes_in_flight,
            watermark=edge.watermark,
            **sums[name],
        )
        for name, edge in result.manifest.edges.items()
    }


def _add(sums: dict[str, int], **more: int) -> None:
    for name, count in more.items():
        sums[name] = sums.get(name, 0) + max(0, count)


def state_size(state: Mapping[str, Sequence[StateFile]]) -> tuple[int, int]:
    """Rows and bytes of all state files."""
    files = [file for table in state.values() for file in table]
    return sum(file.rows for file in files), sum(file.bytes for file in files)


def _sizes(segments: Sequence[Segment]) -> tuple[int, int]:
    return sum(segment.rows for segment in segments), sum(segment.bytes for segment in segments)


def _timing(report: SubtaskReport) -> Timing:
    return report.timing or _NO_TIMING


def _processed(report: SubtaskReport) -> int:
    return max(0, sum(part.consumed for part in report.inputs))


def _handed_on(report: SubtaskReport) -> int:
    return sum(part.rows for part in report.outputs) + sum(part.rows for part in report.sinks)


def _bytes_out(report: SubtaskReport) -> int:
    handed_on = sum(_sizes(part.segments)[1] for part in report.outputs)
    return handed_on + sum(made.bytes for part in report.sinks for made in part.committables)


def _rounded(seconds: float) -> float:
    """To a tenth of a millisecond: an event holds many of these."""
    return max(0.0, round(seconds, 4))
