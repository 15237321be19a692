"""From reports to the next checkpoint: what was consumed, what is in flight, which files hold the state.

Nothing is trusted: each report must answer one launched subtask's plan, each cursor must move forward inside what
was planned, and the rows that readers found must be the rows that were in flight. What does not fit becomes a
`Violation`; a draft with violations is never published.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVar

import msgspec

from penstock.protocol.delivery import miscounted, misdelivered
from penstock.protocol.eventtime import Seen, advance_timers, highest, lowest
from penstock.protocol.keygroups import KeyGroupRange, subtract_all, union
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
from penstock.protocol.report import InputReport, OutputReport, StateReport, SubtaskReport
from penstock.protocol.violation import Violation

T = TypeVar("T")


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
    numbers = sorted([report.subtask for report in reports])
    launched = [subtask.subtask for subtask in plan.launched()]
    if numbers == launched:  # as is usual; subtasks of a plan ascend
        return ()
    given, wanted = Counter(numbers), set(launched)
    return tuple(sorted(k for k in wanted | given.keys() if given[k] != 1 or k not in wanted))


def absorb(draft: Draft, plan: StagePlan, reports: Sequence[SubtaskReport], handed_over: int | None = None) -> Draft:
    """The draft after one stage. Reports must be complete (`missing_reports`) and free of failures. `handed_over` is
    how many live rows went into the stage by the cluster's own count, None where it cannot tell.

    Each report is folded in once: what comes of all of them is gathered first, and every edge and table is made anew
    once.
    """
    assert not missing_reports(plan, reports)
    ordered = sorted(reports, key=attrgetter("subtask"))
    edges, violations = dict(draft.edges), [*draft.violations, *_foreign(plan, ordered)]
    violations += (*misdelivered(plan, ordered), *miscounted(plan, ordered, handed_over))
    given = _gathered(ordered)
    for edge in _input_edges(plan):
        inputs = given.inputs[edge]
        if edge in plan.broadcast_inputs:
            inputs, found = _as_one(edge, inputs)
            violations += found
        edges[edge], found = _advance_input(edge, edges[edge], inputs)
        violations += found
    stage = advance_clock(draft.stages.get(plan.stage, StageClock()), plan, ordered)
    for edge, outputs in given.outputs.items():
        segments = [segment for part in outputs for segment in part.segments]
        edges[edge] = _extended(edges[edge], sum([part.rows for part in outputs]), segments)
    # What is left of an earlier pipeline was on its way to the same readers: their time must not pass it.
    waiting = [segment.watermark for name in plan.leftovers for segment in edges[name].segments]
    for edge in plan.consumer_parallelism:
        # In a changed pipeline the stage may be new, or behind a new source, and its readers further than it is.
        before = edges[edge].watermark
        mark = before if plan.relays else highest((before, stage.watermark))
        edges[edge] = msgspec.structs.replace(edges[edge], watermark=lowest((mark, *waiting)))
    state = dict(draft.state)
    for table, changes in given.state.items():
        state[table] = advance_state(state.get(table, ()), changes)
    committables = dict(draft.committables)
    for sink, new in given.committables.items():
        committables[sink] = (*committables.get(sink, ()), *new)
    counters = dict(draft.counters)
    for name, count in given.counters.items():
        counters[name] = counters.get(name, 0) + count
    return replace(
        draft,
        edges=edges,
        state=state,
        stages={**draft.stages, plan.stage: stage},
        event_times=_event_times(draft.event_times, given.inputs),
        counters=counters,
        committables=committables,
        violations=tuple(violations),
    )


@dataclass(frozen=True, slots=True)
class _Gathered:
    """What reports say by edge, table, sink and counter, in the order in which they came."""

    inputs: defaultdict[str, list[InputReport]] = field(default_factory=lambda: defaultdict(list))
    outputs: defaultdict[str, list[OutputReport]] = field(default_factory=lambda: defaultdict(list))
    state: defaultdict[str, list[StateReport]] = field(default_factory=lambda: defaultdict(list))
    committables: defaultdict[str, list[Committable]] = field(default_factory=lambda: defaultdict(list))
    counters: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))


def _gathered(reports: Sequence[SubtaskReport]) -> _Gathered:
    """All of it in one go: there may be thousands of reports, too many for a cache to hold."""
    found = _Gathered()
    inputs, outputs, state, committables = found.inputs, found.outputs, found.state, found.committables
    for report in reports:
        for read in report.inputs:
            inputs[read.edge].append(read)
        for made in report.outputs:
            outputs[made.edge].append(made)
        for change in report.state:
            state[change.table].append(change)
        for written in report.sinks:
            committables[written.sink] += written.committables
        for name, count in report.counters.items():
            found.counters[name] += count
    return found


def advance_clock(clock: StageClock, plan: StagePlan, reports: Sequence[SubtaskReport]) -> StageClock:
    """The stage's watermark is the lowest of all subtasks; one that had nothing to do is as far as its inputs."""
    done = {report.subtask: report.watermark for report in reports}
    mark = lowest([done.get(subtask.subtask, subtask.watermark) for subtask in plan.subtasks])
    told: dict[str, list[tuple[KeyGroupRange, Timer | None]]] = {}
    for report in reports:
        groups = plan.subtasks[report.subtask].groups
        for due in report.due:
            waits = due.event_time is not None or due.processing_time is not None
            last = msgspec.UNSET if due.last == due.event_time else due.last
            mine = Timer(groups=groups, event_time=due.event_time, processing_time=due.processing_time, last=last)
            told.setdefault(due.operator, []).append((groups, mine if waits else None))
    timers = dict(clock.timers)
    for operator, changes in told.items():
        timers[operator] = advance_timers(timers.get(operator, ()), changes)
    return msgspec.structs.replace(clock, watermark=highest((clock.watermark, mark)), timers=timers)


def _event_times(known: Mapping[str, Seen], inputs: Mapping[str, Sequence[InputReport]]) -> dict[str, Seen]:
    times = dict(known)
    for edge, parts in inputs.items():
        newest = highest([part.max_event_time for part in parts])
        if newest is not None:
            seen = Seen(newest, _newest_by_part(parts))
            times[edge] = seen.after(times[edge]) if edge in times else seen
    return times


def _newest_by_part(inputs: Sequence[InputReport]) -> dict[str, int]:
    """By part of a source, the largest event time that any subtask saw."""
    newest: dict[str, int] = {}
    for part in inputs:
        for name, time in part.event_times.items():
            newest[name] = max(time, newest.get(name, time))
    return newest


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
        if report.checkpoint != plan.checkpoint or report.stage != plan.stage
    ]


def _input_edges(plan: StagePlan) -> tuple[str, ...]:
    """They are the same for all subtasks."""
    return tuple(part.edge for subtask in plan.subtasks[:1] for part in subtask.inputs)


def _advance_input(name: str, edge: EdgeState, inputs: Sequence[InputReport]) -> tuple[EdgeState, list[Violation]]:
    spans = [span for part in inputs for span in part.spans]
    reports = _by_path([span.path for span in spans], spans)
    violations: list[Violation] = []
    segments: list[Segment] = []
    for segment in edge.segments:
        reads = reports.pop(segment.path, None)
        if reads is None:  # nobody read it, and so it stays as it was, rows left or none
            if segment.rows_left > 0:
                segments.append(segment)
            continue
        if len(reads) == 1 and _as_planned(segment, reads[0]):
            if reads[0].rows_left:
                segments.append(_moved(segment, reads[0]))
            continue
        advanced, found = advance_segment(segment, reads)
        if found:
            violations += (Violation(name, what) for what in found)
        if advanced.rows_left > 0:
            segments.append(advanced)
    violations += (Violation(name, f"{path} was read but is not in flight") for path in reports)
    consumed = sum([part.consumed for part in inputs])
    after = msgspec.structs.replace(edge, consumed=edge.consumed + consumed, segments=tuple(segments))
    spilled = [segment for part in inputs for segment in part.spilled]
    return _extended(after, sum([part.live_accepted for part in inputs]), spilled), violations


def _by_path(paths: Sequence[str], parts: Sequence[T]) -> dict[str, Sequence[T]]:
    """What is said of each file, in the order in which it came. Usually each file has one reader, and needs no list."""
    if len(set(paths)) == len(paths):
        return {path: (part,) for path, part in zip(paths, parts, strict=True)}
    found = defaultdict[str, list[T]](list)
    for path, part in zip(paths, parts, strict=True):
        found[path].append(part)
    return dict(found)


def _extended(edge: EdgeState, accepted: int, segments: Sequence[Segment]) -> EdgeState:
    return msgspec.structs.replace(edge, accepted=edge.accepted + accepted, segments=(*edge.segments, *segments))


def advance_segment(segment: Segment, reads: Sequence[SpanReport]) -> tuple[Segment, list[str]]:
    """Moves a segment's cursors. A span read in parts is cut into them; what was not touched keeps its cursor."""
    if not reads:
        return segment, []
    if len(reads) == 1 and _as_planned(segment, reads[0]):
        return _moved(segment, reads[0]), []
    problems: list[str] = []
    reads_of_span: list[list[SpanReport]] = [[] for _ in segment.spans]
    ranges = sorted((part, number) for number, span in enumerate(segment.spans) for part in span.ranges)
    ends = [part.hi for part, _ in ranges]
    for read in sorted(reads, key=lambda read: read.lo):
        found = bisect_right(ends, read.lo)
        if found < len(ranges) and max(read.lo, ranges[found][0].lo) < min(read.hi, ends[found]):
            part, number = ranges[found]
            reads_of_span[number].append(read)
            if read.lo < part.lo or part.hi < read.hi:
                problems.append(f"{segment.path} [{read.lo}, {read.hi}): not all of it was in flight")
        else:
            problems.append(f"{segment.path}: key groups {read.lo} to {read.hi} were not in flight")
    spans: list[Span] = []
    for span, mine in zip(segment.spans, reads_of_span, strict=True):
        spans += _advance_span(segment, span, mine, problems) if mine else (span,)
    return msgspec.structs.replace(segment, spans=_joined(spans)), problems


def _moved(segment: Segment, read: SpanReport) -> Segment:
    """A segment after its only reader."""
    left = read.rows_left
    moved = Span(ranges=segment.spans[0].ranges, cursor=read.cursor, rows_left=left)
    return msgspec.structs.replace(segment, spans=(moved,) if left else ())


def _as_planned(segment: Segment, read: SpanReport) -> bool:
    """The usual case: one reader of all that is left of a segment, about whom there is nothing to complain."""
    if len(segment.spans) != 1 or len(segment.spans[0].ranges) != 1:
        return False
    (span,) = segment.spans
    (part,) = span.ranges
    whole = read.lo == part.lo and read.hi == part.hi and read.rows_at_open == span.rows_left
    forward = span.cursor == read.start_cursor <= read.cursor <= segment.rows
    return whole and forward and 0 <= read.consumed <= read.rows_at_open


def _advance_span(segment: Segment, span: Span, reads: Sequence[SpanReport], problems: list[str]) -> list[Span]:
    """`reads` ascend, and each overlaps the span."""
    rows_untouched = span.rows_left
    parts: list[Span] = []
    read_until = 0
    for read in reads:
        groups = KeyGroupRange(read.lo, read.hi)
        problems += (f"{segment.path} [{read.lo}, {read.hi}): {what}" for what in _misread(segment, span, read))
        if read.lo < read_until:
            problems.append(f"{segment.path} [{read.lo}, {read.hi}): read by two subtasks")
        read_until = max(read_until, read.hi)
        rows_untouched -= read.rows_at_open
        parts.append(Span(ranges=(groups,), cursor=read.cursor, rows_left=read.rows_at_open - read.consumed))
    taken = union(part.ranges[0] for part in parts)
    untouched = tuple(cut for part in span.ranges for cut in subtract_all(part, taken))
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


def advance_state(files: Sequence[StateFile], changes: Sequence[StateReport]) -> tuple[StateFile, ...]:
    """Takes key groups away from files that were superseded there, and adds the new files as the newest."""
    paths = [path for change in changes for path in change.replaced]
    superseded = _by_path(paths, [groups for change in changes for groups in change.replaced.values()])
    kept: list[StateFile] = []
    for file in files:
        parts = superseded.get(file.path)
        if parts is None:
            kept.append(file)
        elif len(parts) > 1 or parts[0] != file.ranges:  # else nothing is left of it, as is usual
            rest = _without(file, [groups for part in parts for groups in part])
            if rest.ranges:
                kept.append(rest)
    return (*kept, *[change.added for change in changes if change.added is not None])


def _without(file: StateFile, groups: Sequence[KeyGroupRange]) -> StateFile:
    taken = union(groups)
    return msgspec.structs.replace(file, ranges=tuple(cut for part in file.ranges for cut in subtract_all(part, taken)))


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
