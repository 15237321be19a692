"""The figures of an epoch, made from the reports of its subtasks: a few sums per subtask, nothing per row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.engine.epochs import EpochResult
from penstock.observe.figures import SUBTASKS_MAX, EdgeFigures, StageFigures, SubtaskFigures
from penstock.protocol.manifest import EdgeState, StateFile
from penstock.protocol.report import InputReport, OutputReport, SubtaskReport, Timing

_NO_TIMING = Timing(elapsed_s=0.0, stepped_s=0.0, barrier_fired=False)


@dataclass(frozen=True, slots=True)
class Figures:
    """What all reports of an epoch add up to."""

    stages: dict[str, StageFigures]
    """Of every stage that had work."""
    edges: dict[str, EdgeFigures]
    rows_in: int
    rows_processed: int
    state_written: int
    """Bytes of new files of state."""


def epoch_figures(result: EpochResult) -> Figures:
    """Looks at each report once: there may be thousands, too many for a cache to hold."""
    stages: defaultdict[str, _StageSums] = defaultdict(_StageSums)
    edges: defaultdict[str, _EdgeSums] = defaultdict(_EdgeSums)
    for report in result.reports:
        stages[report.stage].add(report, edges)
    return Figures(
        stages={name: _stage(sums, result.stage_s.get(name, 0.0)) for name, sums in stages.items()},
        edges={name: _edge(edges[name], edge) for name, edge in result.manifest.edges.items()},
        rows_in=sum([sums.rows_live for sums in edges.values()]),
        rows_processed=sum([sums.consumed for sums in edges.values()]),
        state_written=sum([sums.state_written for sums in stages.values()]),
    )


@dataclass(slots=True)
class _EdgeSums:
    """Of one edge, over all subtasks."""

    rows_live: int = 0
    rows_written: int = 0
    consumed: int = 0
    """Below zero for a subtask that put back more than it took."""
    rows_processed: int = 0
    rows_spilled: int = 0
    bytes_spilled: int = 0
    bytes_written: int = 0

    def read(self, part: InputReport) -> int:
        """Rows that were consumed."""
        consumed = part.consumed
        self.rows_live += part.live_accepted
        self.consumed += consumed
        if consumed > 0:
            self.rows_processed += consumed
        for segment in part.spilled:
            self.rows_spilled += segment.rows
            self.bytes_spilled += segment.bytes
        return consumed

    def write(self, part: OutputReport) -> int:
        """Bytes that were written."""
        size = 0
        for segment in part.segments:
            size += segment.bytes
        self.rows_written += part.rows
        self.bytes_written += size
        return size


@dataclass(slots=True)
class _StageSums:
    """Of one stage; lists have a value for each report."""

    reports: list[SubtaskReport] = field(default_factory=list)
    timings: list[Timing] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    rows_out: list[int] = field(default_factory=list)
    bytes_out: int = 0
    state_written: int = 0
    sinks: dict[str, int] = field(default_factory=dict)

    def add(self, report: SubtaskReport, edges: defaultdict[str, _EdgeSums]) -> None:
        processed = handed_on = 0
        for part in report.inputs:
            processed += edges[part.edge].read(part)
        for made in report.outputs:
            handed_on += made.rows
            self.bytes_out += edges[made.edge].write(made)
        for sink in report.sinks:
            handed_on += sink.rows
            self.sinks[sink.sink] = self.sinks.get(sink.sink, 0) + sink.rows
            for committable in sink.committables:
                self.bytes_out += committable.bytes
        for change in report.state:
            if change.added is not None:
                self.state_written += change.added.bytes
        self.reports.append(report)
        self.timings.append(report.timing or _NO_TIMING)
        self.rows.append(max(0, processed))
        self.rows_out.append(handed_on)


def _stage(sums: _StageSums, job_s: float) -> StageFigures:
    timings, rows = sums.timings, sums.rows
    slowest = max(timings, key=_elapsed_s)
    return StageFigures(
        job_s=_rounded(job_s),
        outside_s=_rounded(job_s - slowest.elapsed_s),
        opening_s=_rounded(slowest.opened_s),
        waiting_s=_rounded(min(slowest.waited_s, slowest.stepped_s)),
        stepping_s=_rounded(slowest.stepped_s - slowest.waited_s),
        writing_s=_rounded(slowest.elapsed_s - slowest.opened_s - slowest.stepped_s),
        launched=len(timings),
        rows=sum(rows),
        rows_max=max(rows),
        rows_out=sum(sums.rows_out),
        bytes_in=sum([timing.bytes_in for timing in timings]),
        bytes_out=sums.bytes_out,
        row_cost_s=max([timing.row_cost_s for timing in timings if timing.row_cost_s is not None], default=None),
        barrier_delay_s=_rounded(max([timing.barrier_delay_s for timing in timings])),
        memory_bytes=max([timing.memory_bytes for timing in timings]),
        sinks=sums.sinks,
        subtasks=_subtasks(sums.reports, timings, rows, sums.rows_out),
    )


def _subtasks(
    reports: Sequence[SubtaskReport], timings: Sequence[Timing], rows: Sequence[int], rows_out: Sequence[int]
) -> SubtaskFigures:
    elapsed_s = [-timing.elapsed_s for timing in timings]
    slowest = sorted(range(len(reports)), key=elapsed_s.__getitem__)[:SUBTASKS_MAX]
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


def _edge(sums: _EdgeSums, edge: EdgeState) -> EdgeFigures:
    return EdgeFigures(
        rows_in=sums.rows_live + sums.rows_written,
        rows_processed=sums.rows_processed,
        rows_spilled=sums.rows_spilled,
        bytes_spilled=sums.bytes_spilled,
        bytes_written=sums.bytes_written,
        rows_in_flight=edge.rows_in_flight,
        bytes_in_flight=edge.bytes_in_flight,
        watermark=edge.watermark,
    )


def state_size(state: Mapping[str, Sequence[StateFile]]) -> tuple[int, int]:
    """Rows and bytes of all state files."""
    rows = size = 0
    for table in state.values():
        for file in table:
            rows += file.rows
            size += file.bytes
    return rows, size


def _elapsed_s(timing: Timing) -> float:
    return timing.elapsed_s


def _rounded(seconds: float) -> float:
    """To a tenth of a millisecond: an event holds many of these."""
    return max(0.0, round(seconds, 4))
