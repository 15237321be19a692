"""From reports to the next checkpoint: what was consumed, what is in flight, which files hold the state.

Nothing is trusted: each report must answer one launched subtask's plan, each cursor must move forward inside what
was planned, and the rows that readers found must be the rows that were in flight. What does not fit becomes a
`Violation`; a draft with violations is never published.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from penstock.protocol.delivery import miscounted, misdelivered
from penstock.protocol.eventtime import Seen, advance_timers, highest, lowest
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import (
    Committable,
    EdgeState,
    Segment,
    Span,
    StageClock,
    StateFile,
    Timer,
)
from penstock.protocol.plan import StagePlan
from penstock.protocol.reads import SpanReport
from penstock.protocol.report import InputReport, StateReport, SubtaskReport
from penstock.protocol.violation import Violation


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint in the making; each stage's reports make the next draft."""

    edges: Mapping[str, EdgeState]
    state: Mapping[str, tuple[StateFile, ...]]
    stages: Mapping[str, StageClock] = field(default_factory=dict)
    event_times: Mapping[str, Seen] = field(default_factory=dict)
    """The largest that were seen on an edge from a source."""
    counters: Mapping[str, int] = field(default_factory=dict)
    committables: Mapping[str, tuple[Committable, ...]] = field(default_factory=dict)
    violations: tuple[Violation, ...] = ()


def missing_reports(plan: StagePlan, reports: Sequence[SubtaskReport]) -> tuple[int, ...]:
    """Subtasks that were launched but gave no report, or gave more than one."""
    wanted = [subtask.subtask for subtask in plan.launched()]
    given = [report.subtask for report in reports]
    return tuple(sorted({k for k in (*wanted, *given) if given.count(k) != 1 or wanted.count(k) != 1}))


def absorb(draft: Draft, plan: StagePlan, reports: Sequence[SubtaskReport], handed_over: int | None = None) -> Draft:
    """The draft after one stage. Reports must be complete (`missing_reports`) and free of failures. `handed_over` is
    how many live rows went into the stage by the cluster's own count, None where it cannot tell."""
    assert not missing_reports(plan, reports)
    ordered = sorted(reports, key=lambda report: report.subtask)
    edges, violations = dict(draft.edges), [*draft.violations, *_foreign(plan, ordered)]
    violations += (*misdelivered(plan, ordered), *miscounted(plan, ordered, handed_over))
    for edge in _input_edges(plan):
        inputs = [part for report in ordered for part in report.inputs if part.edge == edge]
        if edge in plan.broadcast_inputs:
            inputs, found = _as_one(edge, inputs)
            violations += found
        edges[edge], found = _advance_input(edge, edges[edge], inputs)
        violations += found
    stage = advance_clock(draft.stages.get(plan.stage, StageClock()), plan, ordered)
    for report in ordered:
        for output in report.outputs:
            edges[output.edge] = _extended(edges[output.edge], output.rows, output.segments)
    for edge in plan.consumer_parallelism:
        edges[edge] = msgspec.structs.replace(edges[edge], watermark=stage.watermark)
    state = dict(draft.state)
    for report in ordered:
        for change in report.state:
            state[change.table] = advance_state(state.get(change.table, ()), change)
    committables = dict(draft.committables)
    for report in ordered:
        for sink in report.sinks:
            committables[sink.sink] = (*committables.get(sink.sink, ()), *sink.committables)
    counters = dict(draft.counters)
    for report in ordered:
        for name, count in report.counters.items():
            counters[name] = counters.get(name, 0) + count
    return replace(
        draft,
        edges=edges,
        state=state,
        stages={**draft.stages, plan.stage: stage},
        event_times=_event_times(draft.event_times, ordered),
        counters=counters,
        committables=committables,
        violations=tuple(violations),
    )


def advance_clock(clock: StageClock, plan: StagePlan, reports: Sequence[SubtaskReport]) -> StageClock:
    """The stage's watermark is the lowest of all subtasks; one that had nothing to do is as far as its inputs."""
    done = {report.subtask: report.watermark for report in reports}
    mark = lowest(done.get(subtask.subtask, subtask.watermark) for subtask in plan.subtasks)
    timers = dict(clock.timers)
    for report in reports:
        groups = plan.subtasks[report.subtask].groups
        for due in report.due:
            waits = due.event_time is not None or due.processing_time is not None
            mine = Timer(groups=groups, event_time=due.event_time, processing_time=due.processing_time)
            timers[due.operator] = advance_timers(timers.get(due.operator, ()), groups, mine if waits else None)
    return msgspec.structs.replace(clock, watermark=highest((clock.watermark, mark)), timers=timers)


def _event_times(known: Mapping[str, Seen], reports: Iterable[SubtaskReport]) -> dict[str, Seen]:
    times = dict(known)
    for report in reports:
        for part in report.inputs:
            if part.max_event_time is not None:
                seen = Seen(part.max_event_time, part.event_times)
                times[part.edge] = seen.after(times[part.edge]) if part.edge in times else seen
    return times


def _as_one(edge: str, inputs: Sequence[InputReport]) -> tuple[list[InputReport], list[Violation]]:
    """A broadcast edge is consumed once, by all subtasks alike."""
    reads = [tuple(span for span in part.spans if span.consumed) for part in inputs]
    found = [Violation(edge, "subtasks took different broadcast rows")] if len(set(reads)) > 1 else []
    if any(part.live_accepted for part in inputs):
        found.append(Violation(edge, "live rows on a broadcast edge"))
    return [InputReport(edge=edge, spans=spans) for spans in reads[:1]], found


def _foreign(plan: StagePlan, reports: Iterable[SubtaskReport]) -> list[Violation]:
    """Reports that answer another plan: a stale attempt's must never be taken."""
    return [
        Violation(plan.stage, f"a report of {report.stage} for checkpoint {report.checkpoint}")
        for report in reports
        if (report.stage, report.checkpoint) != (plan.stage, plan.checkpoint)
    ]


def _input_edges(plan: StagePlan) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.edge for subtask in plan.subtasks for part in subtask.inputs))


def _advance_input(name: str, edge: EdgeState, inputs: Sequence[InputReport]) -> tuple[EdgeState, list[Violation]]:
    reports: dict[str, list[SpanReport]] = {}
    for part in inputs:
        for span in part.spans:
            reports.setdefault(span.path, []).append(span)
    violations: list[Violation] = []
    segments: list[Segment] = []
    for segment in edge.segments:
        advanced, found = advance_segment(segment, reports.pop(segment.path, []))
        violations += (Violation(name, what) for what in found)
        if advanced.rows_left > 0:
            segments.append(advanced)
    violations += (Violation(name, f"{path} was read but is not in flight") for path in reports)
    consumed = sum(part.consumed for part in inputs)
    after = msgspec.structs.replace(edge, consumed=edge.consumed + consumed, segments=tuple(segments))
    for part in inputs:
        after = _extended(after, part.live_accepted, part.spilled)
    return after, violations


def _extended(edge: EdgeState, accepted: int, segments: tuple[Segment, ...]) -> EdgeState:
    return msgspec.structs.replace(edge, accepted=edge.accepted + accepted, segments=(*edge.segments, *segments))


def advance_segment(segment: Segment, reads: Sequence[SpanReport]) -> tuple[Segment, list[str]]:
    """Moves a segment's cursors. A span read in parts is cut into them; what was not touched keeps its cursor."""
    problems: list[str] = []
    spans: list[Span] = []
    left = list(reads)
    for span in segment.spans:
        mine = [read for read in left if _overlaps(span, read)]
        left = [read for read in left if read not in mine]
        spans += _advance_span(segment, span, mine, problems)
    problems += (f"{segment.path}: key groups {read.lo} to {read.hi} were not in flight" for read in left)
    return msgspec.structs.replace(segment, spans=_joined(spans)), problems


def _overlaps(span: Span, read: SpanReport) -> bool:
    return any(part.intersect(KeyGroupRange(read.lo, read.hi)) for part in span.ranges)


def _advance_span(segment: Segment, span: Span, reads: list[SpanReport], problems: list[str]) -> list[Span]:
    untouched, rows_untouched = span.ranges, span.rows_left
    parts: list[Span] = []
    for read in reads:
        groups = KeyGroupRange(read.lo, read.hi)
        problems += (f"{segment.path} [{read.lo}, {read.hi}): {what}" for what in _misread(segment, span, read))
        if not any(part.intersect(groups) == groups for part in untouched):
            problems.append(f"{segment.path} [{read.lo}, {read.hi}): read by two subtasks or never in flight")
        untouched = tuple(cut for part in untouched for cut in part.subtract(groups))
        rows_untouched -= read.rows_at_open
        parts.append(Span(ranges=(groups,), cursor=read.cursor, rows_left=read.rows_at_open - read.consumed))
    if rows_untouched < 0 or (not untouched and rows_untouched != 0):
        found = span.rows_left - rows_untouched
        problems.append(f"{segment.path}: {span.rows_left} rows were in flight, its readers found {found}")
    if untouched:
        parts.append(Span(ranges=untouched, cursor=span.cursor, rows_left=max(0, rows_untouched)))
    return [part for part in parts if part.rows_left > 0]


def _misread(segment: Segment, span: Span, read: SpanReport) -> list[str]:
    problems = []
    if read.start_cursor != span.cursor:
        problems.append(f"read from row {read.start_cursor}, not from the cursor {span.cursor}")
    if not read.start_cursor <= read.cursor <= segment.rows:
        problems.append(f"the cursor went from {read.start_cursor} to {read.cursor} of {segment.rows} rows")
    if not 0 <= read.consumed <= read.rows_at_open:
        problems.append(f"{read.consumed} rows consumed of {read.rows_at_open}")
    return problems


def _joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Neighbouring spans with the same cursor become one, so that rescaling back and forth leaves no debris."""
    joined: list[Span] = []
    for span in sorted(spans, key=lambda span: span.ranges):
        last = joined[-1] if joined else None
        if last is not None and last.cursor == span.cursor and last.ranges[-1].hi == span.ranges[0].lo:
            middle = KeyGroupRange(last.ranges[-1].lo, span.ranges[0].hi)
            joined[-1] = Span(
                ranges=(*last.ranges[:-1], middle, *span.ranges[1:]),
                cursor=span.cursor,
                rows_left=last.rows_left + span.rows_left,
            )
        else:
            joined.append(span)
    return tuple(joined)


def advance_state(files: tuple[StateFile, ...], change: StateReport) -> tuple[StateFile, ...]:
    """Takes key groups away from files that were superseded there, and adds the new file as the newest."""
    shrunk = (_without(file, change.replaced.get(file.path, ())) for file in files)
    kept = tuple(file for file in shrunk if file.ranges)
    return (*kept, change.added) if change.added is not None else kept


def _without(file: StateFile, groups: Sequence[KeyGroupRange]) -> StateFile:
    ranges = file.ranges
    for taken in groups:
        ranges = tuple(cut for part in ranges for cut in part.subtract(taken))
    return msgspec.structs.replace(file, ranges=ranges)


def unbalanced(edges: Mapping[str, EdgeState]) -> tuple[Violation, ...]:
    """Edges on which records accepted are not records consumed, dropped and in flight."""
    return tuple(
        Violation(name, f"{edge.accepted} accepted, {edge.consumed} consumed, {_left(edge)}")
        for name, edge in edges.items()
        if edge.accepted != edge.consumed + edge.dropped + edge.rows_in_flight
    )


def _left(edge: EdgeState) -> str:
    dropped = f"{edge.dropped} dropped, " if edge.dropped else ""
    return f"{dropped}{edge.rows_in_flight} in flight"
