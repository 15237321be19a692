"""The figures of an epoch, made from the reports of its subtasks: a few sums per subtask, nothing per row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.engine.epochs import EpochResult
from penstock.observe.figures import SUBTASKS_MAX, EdgeFigures, StageFigures, SubtaskFigures
from penstock.protocol.manifest import StateFile
from penstock.protocol.report import SubtaskReport, Timing

_NO_TIMING = Timing(elapsed_s=0.0, stepped_s=0.0, barrier_fired=False)


def stage_figures(result: EpochResult) -> dict[str, StageFigures]:
    """Of every stage that had work."""
    by_stage: dict[str, list[SubtaskReport]] = {}
    for report in result.reports:
        by_stage.setdefault(report.stage, []).append(report)
    return {stage: _stage(reports, result.stage_s.get(stage, 0.0)) for stage, reports in by_stage.items()}


def _stage(reports: Sequence[SubtaskReport], job_s: float) -> StageFigures:
    timings = [report.timing or _NO_TIMING for report in reports]
    slowest = max(timings, key=_elapsed_s)
    rows: list[int] = []
    rows_out: list[int] = []
    bytes_out = 0
    sinks: dict[str, int] = {}
    for report in reports:  # one pass and no generators: there may be thousands, in every epoch
        processed = handed_on = 0
        for part in report.inputs:
            processed += part.consumed
        for made in report.outputs:
            handed_on += made.rows
            for segment in made.segments:
                bytes_out += segment.bytes
        for sink in report.sinks:
            handed_on += sink.rows
            sinks[sink.sink] = sinks.get(sink.sink, 0) + sink.rows
            for committable in sink.committables:
                bytes_out += committable.bytes
        rows.append(max(0, processed))
        rows_out.append(handed_on)
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
        rows_out=sum(rows_out),
        bytes_in=sum([timing.bytes_in for timing in timings]),
        bytes_out=bytes_out,
        row_cost_s=max((timing.row_cost_s for timing in timings if timing.row_cost_s is not None), default=None),
        barrier_delay_s=_rounded(max([timing.barrier_delay_s for timing in timings])),
        memory_bytes=max([timing.memory_bytes for timing in timings]),
        sinks=sinks,
        subtasks=_subtasks(reports, timings, rows, rows_out),
    )


def _subtasks(
    reports: Sequence[SubtaskReport], timings: Sequence[Timing], rows: Sequence[int], rows_out: Sequence[int]
) -> SubtaskFigures:
    slowest = sorted(range(len(reports)), key=lambda place: -timings[place].elapsed_s)[:SUBTASKS_MAX]
    shown = sorted(slowest, key=lambda place: reports[place].subtask)

    def column(value: Callable[[Timing], float]) -> tuple[int, ...]:
        return tuple(max(0, round(value(timings[place]) * 1e6)) for place in shown)

    return SubtaskFigures(
        subtask=tuple(reports[place].subtask for place in shown),
        rows=tuple(rows[place] for place in shown),
        rows_out=tuple(rows_out[place] for place in shown),
        elapsed_us=column(_elapsed_s),
        opening_us=column(lambda timing: timing.opened_s),
        waiting_us=column(lambda timing: timing.waited_s),
        stepping_us=column(lambda timing: timing.stepped_s - timing.waited_s),
        writing_us=column(lambda timing: timing.elapsed_s - timing.opened_s - timing.stepped_s),
        barrier_us=column(lambda timing: timing.barrier_delay_s),
    )


@dataclass(slots=True)
class _Sums:
    """Of one edge, over all subtasks."""

    rows_in: int = 0
    rows_processed: int = 0
    rows_spilled: int = 0
    bytes_spilled: int = 0
    bytes_written: int = 0


def edge_figures(result: EpochResult) -> dict[str, EdgeFigures]:
    """Of every edge."""
    sums: dict[str, _Sums] = {name: _Sums() for name in result.manifest.edges}
    for report in result.reports:
        for part in report.inputs:
            edge = sums.setdefault(part.edge, _Sums())
            edge.rows_in += part.live_accepted
            edge.rows_processed += max(0, part.consumed)
            for segment in part.spilled:
                edge.rows_spilled += segment.rows
                edge.bytes_spilled += segment.bytes
        for made in report.outputs:
            edge = sums.setdefault(made.edge, _Sums())
            edge.rows_in += made.rows
            edge.bytes_written += sum(segment.bytes for segment in made.segments)
    return {
        name: EdgeFigures(
            rows_in=sums[name].rows_in,
            rows_processed=sums[name].rows_processed,
            rows_spilled=sums[name].rows_spilled,
            bytes_spilled=sums[name].bytes_spilled,
            bytes_written=sums[name].bytes_written,
            rows_in_flight=edge.rows_in_flight,
            bytes_in_flight=edge.bytes_in_flight,
            watermark=edge.watermark,
        )
        for name, edge in result.manifest.edges.items()
    }


def state_size(state: Mapping[str, Sequence[StateFile]]) -> tuple[int, int]:
    """Rows and bytes of all state files."""
    files = [file for table in state.values() for file in table]
    return sum([file.rows for file in files]), sum([file.bytes for file in files])


def _elapsed_s(timing: Timing) -> float:
    return timing.elapsed_s


def _rounded(seconds: float) -> float:
    """To a tenth of a millisecond: an event holds many of these."""
    return max(0.0, round(seconds, 4))
