"""Which subtask reads what in an epoch. Plans are made anew each epoch from the manifest, so a change of
parallelism is nothing but other ranges in the next plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.protocol.eventtime import is_due, lowest
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.manifest import EdgeState, Segment, StateFile, Timer
from penstock.protocol.reads import ReadSpan

MIN_BUDGET_SHARE = 0.5
"""However slow a stage's start-up and finish were, at least this share of its budget is spent on records."""
BURST = 2
"""So many epochs may pass until the next checkpoint when a quiet stream's next micro-batch is a large one."""
SLACK = 1.25
"""A subtask may need this much more than expected and still get through with all of its input."""


class InputPlan(msgspec.Struct, frozen=True):
    """One input of one subtask: spans of segments in reading order, then live rows if `live`."""

    edge: str
    reads: tuple[ReadSpan, ...]
    live: bool
    watermark: int | None = None
    """In effect for live rows, and once all of `reads` are consumed."""


class SubtaskPlan(msgspec.Struct, frozen=True):
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
        return self.due or any(plan.live or plan.reads for plan in self.inputs)


class StagePlan(msgspec.Struct, frozen=True, kw_only=True):
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

    @property
    def live(self) -> bool:
        return any(plan.live for subtask in self.subtasks for plan in subtask.inputs)

    def launched(self) -> tuple[SubtaskPlan, ...]:
        """Subtasks that have something to do; with live input only Spark's shuffle decides, so all."""
        return tuple(subtask for subtask in self.subtasks if subtask.has_work)


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
        segments = tuple(segment for segment in self.state.segments if not self.holds_back(segment))
        return msgspec.structs.replace(self.state, segments=segments)

    def watermark_after_reads(self) -> int | None:
        """What is in effect once everything that may be read is: held rows must not become late."""
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


def arrival_watermark(inputs: Iterable[InputFacts]) -> int | None:
    """What is in effect for rows that arrive at a stage now, on any of its inputs: the lowest of all edges.

    Segments carry it rather than their own edge's, or rows would become late where they wait for their turn while
    another input moves on. What else is in flight does not count: a backlog that never ends would hold time for ever.
    """
    return lowest(part.state.watermark for part in inputs if part.timed)


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
