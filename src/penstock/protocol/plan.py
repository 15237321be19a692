"""Which subtask reads what in an epoch. Plans are made anew each epoch from the manifest, so a change of
parallelism is nothing but other ranges in the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import TypeVar

import msgspec

from penstock.protocol.eventtime import due_subtasks, lowest
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange, range_of, subtasks_of
from penstock.protocol.manifest import EdgeState, Segment, Span, StateFile, Timer
from penstock.protocol.reads import ReadSpan

T = TypeVar("T")

MIN_BUDGET_SHARE = 0.5
"""However slow a stage's start-up and finish were, at least this share of its budget is spent on records."""
BURST = 2
"""So many epochs may pass until the next checkpoint when a quiet stream's next micro-batch is a large one."""
SLACK = 1.25
"""A subtask may need this much more than expected and still get through with all of its input."""


class InputPlan(msgspec.Struct, frozen=True, gc=False):
    """One input of one subtask: spans of segments in reading order, then live rows if `live`."""

    edge: str
    reads: tuple[ReadSpan, ...]
    live: bool
    watermark: int | None = None
    """In effect for live rows, and once all of `reads` are consumed."""


class SubtaskPlan(msgspec.Struct, frozen=True, gc=False):
    """Everything one subtask needs to know; the same for all of its attempts."""

    subtask: int
    groups: KeyGroupRange
    inputs: tuple[InputPlan, ...]
    state: dict[str, tuple[StateFile, ...]]

    rows_in_flight: int
    """Estimated: rows of a segment that several subtasks share are divided by their key groups."""

    arrival_watermark: int | None = None
    """What live rows carry that are not processed in this epoch: see `arrival_watermark`."""
    watermark: int | None = None
    """Of the subtask's key groups, the lowest, before it runs."""
    due: bool = False
    """Time alone gives it something to do."""

    @property
    def has_work(self) -> bool:
        if self.due:
            return True
        for plan in self.inputs:  # noqa: SIM110 - asked for thousands of subtasks: half the time of any()
            if plan.live or plan.reads:
                return True
        return False


class StagePlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One stage in one epoch. `budget_s` is the time until the barrier, None for no barrier."""

    stage: str
    checkpoint: CheckpointId
    generation: Generation
    parallelism: int
    max_parallelism: int
    budget_s: float | None
    row_cost_s: float | None
    consumer_parallelism: dict[str, int]
    subtasks: tuple[SubtaskPlan, ...]
    now: int = 0
    output_watermarks: dict[str, int | None] = {}
    """By edge, what new segments carry."""
    broadcast_inputs: tuple[str, ...] = ()
    broadcast_rows_max: int | None = None
    """Every subtask takes the same broadcast rows, so their number is planned and not cut by time; None: all."""
    leftovers: tuple[str, ...] = ()
    """Edges of an earlier pipeline whose rows this stage emits once more."""
    rerouting: bool = False
    """Whether some of them have rows: then the stage does nothing else in this epoch."""
    relays: bool = False
    """Whether that is all the stage is for: the time of what it sends to is not its own."""

    @cached_property
    def live(self) -> bool:
        """Which inputs are live is the same for all subtasks."""
        return any(plan.live for subtask in self.subtasks[:1] for plan in subtask.inputs)

    def of(self, subtask: int) -> SubtaskPlan:
        """The plan of one subtask; the plan that a task has got has no other."""
        return self.subtasks[subtask if len(self.subtasks) == self.parallelism else 0]

    def launched(self) -> tuple[SubtaskPlan, ...]:
        """Subtasks that have something to do; with live input only Spark's shuffle decides, so all."""
        return self._launched

    @cached_property
    def _launched(self) -> tuple[SubtaskPlan, ...]:
        return self.subtasks if self.live else tuple([subtask for subtask in self.subtasks if subtask.has_work])


@dataclass(frozen=True, slots=True)
class InputFacts:
    """An input of a stage: what is in flight, and what kind of input it is."""

    state: EdgeState
    live: bool = False
    broadcast: bool = False
    timed: bool = False
    after: int | None = None
    """Rows that arrived later are held back: others must come first (`protocol.order.held_after`)."""
    before: CheckpointId | None = None
    """Rows that arrived earlier are held back: their lanes are not free (`protocol.order.held_before`)."""

    def holds_back(self, segment: Segment) -> bool:
        arrived = segment.arrived
        return (self.after is not None and arrived > self.after) or (self.before is not None and arrived < self.before)

    def readable(self) -> EdgeState:
        """The edge without the segments that are held back."""
        if self.after is None and self.before is None:
            return self.state
        segments = tuple(segment for segment in self.state.segments if not self.holds_back(segment))
        return msgspec.structs.replace(self.state, segments=segments)

    def watermark_after_reads(self) -> int | None:
        """What is in effect once everything that may be read is: held rows must not become late."""
        if self.after is None and self.before is None:
            return self.state.watermark
        held = (segment.watermark for segment in self.state.segments if self.holds_back(segment))
        return lowest((self.state.watermark, *held))


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table of state of a stage."""

    files: tuple[StateFile, ...]
    broadcast: bool = False


def plan_subtasks(
    *,
    inputs: Mapping[str, InputFacts],
    state: Mapping[str, TableFacts],
    parallelism: int,
    max_parallelism: int,
    timers: Sequence[Timer] = (),
    now: int = 0,
) -> tuple[SubtaskPlan, ...]:
    """Cuts edges and state at the boundaries of `parallelism` subtasks.

    Every range of key groups is looked at once, and handed to the subtasks that own some of it: the work grows with
    subtasks and files, never with their product.
    """
    groups = [range_of(subtask, parallelism, max_parallelism) for subtask in range(parallelism)]
    cuts = {name: _cut(part, groups, max_parallelism) for name, part in inputs.items()}
    tables = {name: _files(table, parallelism, max_parallelism) for name, table in state.items()}
    marks = {name: part.watermark_after_reads() if part.timed else None for name, part in inputs.items()}
    timed = [name for name, part in inputs.items() if part.timed]
    arrival = arrival_watermark(inputs.values())
    watermarks = [
        lowest(
            [mark for name in timed for mark in (marks[name], *[read.watermark for read in cuts[name].reads[subtask]])]
        )
        if timed
        else None
        for subtask in range(parallelism)
    ]
    due = due_subtasks(timers, watermarks, now, max_parallelism=max_parallelism)
    parts = [(name, cuts[name].reads, part.live, marks[name]) for name, part in inputs.items()]
    return tuple(
        [
            SubtaskPlan(
                subtask,
                mine,
                tuple([InputPlan(name, reads[subtask], live, mark) for name, reads, live, mark in parts]),
                {name: files[subtask] for name, files in tables.items()},
                round(sum([cut.rows[subtask] for cut in cuts.values()])),
                arrival,
                watermarks[subtask],
                subtask in due,
            )
            for subtask, mine in enumerate(groups)
        ]
    )


def arrival_watermark(inputs: Iterable[InputFacts]) -> int | None:
    """What is in effect for rows that arrive at a stage now, on any of its inputs: the lowest of all edges.

    Segments carry it rather than their own edge's, or rows would become late where they wait for their turn while
    another input moves on. What else is in flight does not count: a backlog that never ends would hold time for ever.
    """
    return lowest(part.state.watermark for part in inputs if part.timed)


@dataclass(frozen=True, slots=True)
class _Cut:
    """An edge, cut at the boundaries of subtasks: what each reads, oldest first, and about how many rows that is."""

    reads: Sequence[tuple[ReadSpan, ...]]
    rows: Sequence[float]


def _cut(part: InputFacts, groups: Sequence[KeyGroupRange], max_parallelism: int) -> _Cut:
    """Each range goes to the subtasks that own some of it. Rows of a span that several of them share are divided by
    their key groups."""
    edge, parallelism = part.readable(), len(groups)
    if part.broadcast:
        return _Cut([reads_of(edge, KeyGroupRange(0, max_parallelism))] * parallelism, [0.0] * parallelism)
    segments = sorted(edge.segments, key=_age)
    spans = [span for segment in segments for span in segment.spans]
    origins = [segment for segment in segments for _ in segment.spans]
    owners = _owners([span.ranges for span in spans], parallelism, max_parallelism)
    reads: list[ReadSpan] = []
    readers: list[int] = []
    rows = [0.0] * parallelism
    for owner, segment, span in zip(owners, origins, spans, strict=True):
        if owner != _SHARED:
            reads.append(_read(segment, span, span.ranges[0]))
            readers.append(owner)
            rows[owner] += span.rows_left
            continue
        per_group = span.rows_left / sum(map(len, span.ranges))
        for cut in span.ranges:
            for subtask in subtasks_of(cut, parallelism, max_parallelism):
                mine = cut.intersect(groups[subtask])
                if mine is not None:
                    reads.append(_read(segment, span, mine))
                    readers.append(subtask)
                    rows[subtask] += per_group * (mine.hi - mine.lo)
    return _Cut(_dealt(reads, readers, parallelism), rows)


_SHARED = -1


def _owners(ranges: Sequence[tuple[KeyGroupRange, ...]], parallelism: int, max_parallelism: int) -> list[int]:
    """Of things that are valid for some ranges of key groups: the subtask that owns all of it, as is usual while the
    parallelism stays what it is; `_SHARED` where several may have a part."""
    alone = [parts[0] if len(parts) == 1 else _NO_GROUPS for parts in ranges]
    return [
        owner
        if (owner := part.lo * parallelism // max_parallelism) == (part.hi - 1) * parallelism // max_parallelism
        else _SHARED
        for part in alone
    ]


_NO_GROUPS = KeyGroupRange(0, 0)
"""Begins and ends in different subtasks, so to say."""


def _dealt(things: Sequence[T], owners: Sequence[int], parallelism: int) -> list[tuple[T, ...]]:
    """The things of each subtask, in the order in which they came."""
    ordered = tuple([things[place] for place in sorted(range(len(owners)), key=owners.__getitem__)])
    counts = [0] * parallelism
    for owner in owners:
        counts[owner] += 1
    return [ordered[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]


def reads_of(edge: EdgeState, groups: KeyGroupRange) -> tuple[ReadSpan, ...]:
    """The unread parts of an edge for some key groups, oldest first."""
    return tuple(
        _read(segment, span, mine)
        for segment in sorted(edge.segments, key=_age)
        for span in segment.spans
        for cut in span.ranges
        if (mine := cut.intersect(groups))
    )


_age = attrgetter("age")


def _read(segment: Segment, span: Span, groups: KeyGroupRange) -> ReadSpan:
    arrival = segment.arrival
    return ReadSpan(
        segment.path,
        segment.checksum,
        groups.lo,
        groups.hi,
        span.cursor,
        segment.watermark,
        segment.epoch if arrival is msgspec.UNSET else arrival,
    )


def _files(table: TableFacts, parallelism: int, max_parallelism: int) -> list[tuple[StateFile, ...]]:
    """By subtask, the state files that hold something for it, oldest first."""
    if table.broadcast:
        return [table.files] * parallelism
    owners = _owners([file.ranges for file in table.files], parallelism, max_parallelism)
    if _SHARED not in owners:
        return _dealt(table.files, owners, parallelism)
    shared = [
        (subtask, file)
        for owner, file in zip(owners, table.files, strict=True)
        for subtask in (_sharing(file.ranges, parallelism, max_parallelism) if owner == _SHARED else (owner,))
    ]
    return _dealt([file for _, file in shared], [subtask for subtask, _ in shared], parallelism)


def _sharing(ranges: Sequence[KeyGroupRange], parallelism: int, max_parallelism: int) -> list[int]:
    """The subtasks that own some of the ranges, each once."""
    return list(
        dict.fromkeys([subtask for part in ranges for subtask in subtasks_of(part, parallelism, max_parallelism)])
    )


def waves(subtasks: int, slots: int) -> int:
    """How often `slots` slots are filled, at least once.

    >>> waves(8, 3)
    3
    """
    return max(1, -(-subtasks // max(1, slots)))


def stage_budget(*, left_s: float, stages_left: int, needs_s: Sequence[float], slots: int, overhead_s: float) -> float:
    """Time until the barrier for each launched subtask of a stage.

    What is left of the epoch is shared by the stages still to come. `needs_s` is what each subtask would need for all
    of its input, infinity where it is unknown. Subtasks that need little leave their time to those that need much: the
    budget is the largest B for which any schedule on `slots` slots ends in time, that is ``sum(min(need, B)) / slots +
    (1 - 1 / slots) * B <= share`` (Graham's bound), but at least an equal share of the waves. Where everything is
    expected to fit, needs may still prove wrong, for all subtasks at once: beyond what is needed, the budget is no more
    than lets all of them end within `BURST` epochs. `overhead_s` is what a stage was seen to need besides processing,
    so that checkpoints come at the cadence asked for and not that much later.
    """
    share = left_s / max(1, stages_left)
    share = max(share - overhead_s, share * MIN_BUDGET_SHARE)
    equal = share / waves(len(needs_s), slots)
    enough = max(BURST * equal, SLACK * max(needs_s, default=0.0))
    return max(equal, min(share, enough, _water_level(sorted(needs_s), share, max(1, slots))))


def _water_level(needs_s: Sequence[float], share: float, slots: int) -> float:
    """Solves the bound above for B; `needs_s` ascending. With k needs below B it is linear in B."""
    below = 0.0
    for index, need in enumerate(needs_s):
        level = (share - below / slots) / ((len(needs_s) - index) / slots + 1 - 1 / slots)
        if level <= need:
            return max(0.0, level)
        below += need
    return share
