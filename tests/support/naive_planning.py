"""What planning and absorbing mean, written down without a thought for how long it takes.

Every subtask looks at every segment, every report makes every edge anew: quadratic, and easy to see through. The
product's sweeps in `penstock.protocol` must give the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from penstock.protocol.advance import Draft, _as_one, _foreign, _input_edges, _joined, _misread
from penstock.protocol.delivery import miscounted, misdelivered
from penstock.protocol.eventtime import Seen, highest, lowest
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.manifest import EdgeState, Segment, Span, StageClock, StateFile, Timer
from penstock.protocol.plan import InputFacts, InputPlan, StagePlan, SubtaskPlan, TableFacts, arrival_watermark
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.protocol.report import InputReport, StateReport, SubtaskReport
from penstock.protocol.violation import Violation


def plan_subtasks(
    *,
    inputs: Mapping[str, InputFacts],
    state: Mapping[str, TableFacts],
    parallelism: int,
    max_parallelism: int,
    timers: Sequence[Timer] = (),
    now: int = 0,
) -> tuple[SubtaskPlan, ...]:
    """Cuts edges and state at the boundaries of `parallelism` subtasks."""
    everything = KeyGroupRange(0, max_parallelism)
    readable = {name: part.readable() for name, part in inputs.items()}
    plans = []
    for subtask in range(parallelism):
        groups = range_of(subtask, parallelism, max_parallelism)
        parts = tuple(
            InputPlan(
                name,
                reads_of(readable[name], everything if part.broadcast else groups),
                part.live,
                part.watermark_after_reads() if part.timed else None,
            )
            for name, part in inputs.items()
        )
        watermark = lowest(
            mark
            for plan in parts
            if inputs[plan.edge].timed
            for mark in (plan.watermark, *(read.watermark for read in plan.reads))
        )
        plans.append(
            SubtaskPlan(
                subtask,
                groups,
                parts,
                {
                    name: files_of(table.files, everything if table.broadcast else groups)
                    for name, table in state.items()
                },
                round(sum(_share_of(readable[name], groups) for name, part in inputs.items() if not part.broadcast)),
                arrival_watermark(inputs.values()),
                watermark,
                is_due(timers, groups, watermark, now),
            )
        )
    return tuple(plans)


def reads_of(edge: EdgeState, groups: KeyGroupRange) -> tuple[ReadSpan, ...]:
    """The unread parts of an edge for some key groups, oldest first."""
    reads = []
    for segment in sorted(edge.segments, key=lambda segment: segment.age):
        for span in segment.spans:
            for part in (overlap for span_range in span.ranges if (overlap := span_range.intersect(groups))):
                reads.append(
                    ReadSpan(
                        path=segment.path,
                        checksum=segment.checksum,
                        lo=part.lo,
                        hi=part.hi,
                        cursor=span.cursor,
                        watermark=segment.watermark,
                        arrival=segment.arrived,
                    )
                )
    return tuple(reads)


def _share_of(edge: EdgeState, groups: KeyGroupRange) -> float:
    share = 0.0
    for segment in edge.segments:
        for span in segment.spans:
            mine = sum(len(overlap) for part in span.ranges if (overlap := part.intersect(groups)))
            share += span.rows_left * mine / sum(len(part) for part in span.ranges)
    return share


def files_of(files: tuple[StateFile, ...], groups: KeyGroupRange) -> tuple[StateFile, ...]:
    """State files that hold something for some key groups, oldest first."""
    return tuple(file for file in files if any(part.intersect(groups) for part in file.ranges))


def is_due(timers: Iterable[Timer], groups: KeyGroupRange, watermark: int | None, now: int) -> bool:
    """Whether a moment that somebody in `groups` waits for has come."""
    mine = [timer for timer in timers if timer.groups.intersect(groups)]
    return any(
        (timer.event_time is not None and watermark is not None and timer.event_time <= watermark)
        or (timer.processing_time is not None and timer.processing_time <= now)
        for timer in mine
    )


def advance_timers(timers: Sequence[Timer], groups: KeyGroupRange, mine: Timer | None) -> tuple[Timer, ...]:
    """Replaces what was known for `groups`; what other key groups wait for stays."""
    others = [msgspec.structs.replace(timer, groups=cut) for timer in timers for cut in timer.groups.subtract(groups)]
    return tuple(sorted([*others, mine] if mine is not None else others, key=lambda timer: timer.groups))


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
            last = msgspec.UNSET if due.last == due.event_time else due.last
            mine = Timer(groups=groups, event_time=due.event_time, processing_time=due.processing_time, last=last)
            timers[due.operator] = advance_timers(timers.get(due.operator, ()), groups, mine if waits else None)
    return msgspec.structs.replace(clock, watermark=highest((clock.watermark, mark)), timers=timers)


def _advance_input(name: str, edge: EdgeState, inputs: Sequence[InputReport]) -> tuple[EdgeState, list[Violation]]:
    progress: dict[str, list[SpanReport]] = {}
    for part in inputs:
        for span in part.spans:
            progress.setdefault(span.path, []).append(span)
    violations: list[Violation] = []
    segments: list[Segment] = []
    for segment in edge.segments:
        advanced, found = advance_segment(segment, progress.pop(segment.path, []))
        violations += (Violation(name, what) for what in found)
        if advanced.rows_left > 0:
            segments.append(advanced)
    violations += (Violation(name, f"{path} was read but is not in flight") for path in progress)
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


def _event_times(known: Mapping[str, Seen], reports: Iterable[SubtaskReport]) -> dict[str, Seen]:
    times = dict(known)
    for report in reports:
        for part in report.inputs:
            if part.max_event_time is not None:
                seen = Seen(part.max_event_time, part.event_times)
                times[part.edge] = seen.after(times[part.edge]) if part.edge in times else seen
    return times
