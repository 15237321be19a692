"""A subtask as a model: it numbers the records of each key group, by the plan that a real subtask gets.

A record is a key group and its number there. Records of a key group are numbered 1 to n by the source, and state is
the last number that was seen: a record that is lost, doubled or reordered is noticed at the next one. Files hold
plain arrays, and lie in the same store under the same names as real ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import SEGMENTS, STATE, AttemptId, DataFile
from penstock.protocol.manifest import Committable, Segment, Span, StateFile
from penstock.protocol.plan import InputPlan, StagePlan, SubtaskPlan
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.protocol.report import (
    DueReport,
    InputReport,
    SinkReport,
    StateReport,
    SubtaskReport,
    Timing,
)
from penstock.store.base import Store

Rows = npt.NDArray[np.int32]
"""Two columns: key group, number."""
NO_ROWS: Rows = np.empty((0, 2), np.int32)
STATE_FILES_MAX = 4
"""A subtask that has so many folds the oldest into the one it writes."""
NEVER = 1 << 60
"""A moment for which everybody waits: the manifest has a timer for each subtask."""


class OutOfOrder(Exception):
    """A record was lost, doubled or overtaken."""


@dataclass(frozen=True, slots=True)
class Names:
    """What the graph calls the parts of the only stage."""

    edge: str
    table: str
    operator: str
    sink: str


def packed(rows: Rows) -> bytes:
    return rows.tobytes()


def unpacked(data: bytes) -> Rows:
    return np.frombuffer(data, np.int32).reshape(-1, 2)


@dataclass(slots=True)
class ModelSubtask:
    """One attempt. It takes `rows_max` rows, those of segments first."""

    names: Names
    plan: StagePlan
    mine: SubtaskPlan
    store: Store
    attempt: str
    rows_max: int
    files: dict[str, tuple[Rows, StateFile]] = field(default_factory=dict)

    def run(self, live: Rows) -> SubtaskReport:
        (plan,) = self.mine.inputs
        taken, spans = self._read(plan)
        rest = self.rows_max - sum(len(rows) for rows in taken)
        through = all(span.rows_left == 0 for span in spans) and len(spans) == len(plan.reads)
        now = live[:rest] if through and rest > 0 else NO_ROWS
        done = np.concatenate([*taken, now]) if taken else now
        spilled = self._spilled(live[len(now) :])
        added, replaced = self._state(done)
        return SubtaskReport(
            stage=self.plan.stage,
            subtask=self.mine.subtask,
            checkpoint=self.plan.checkpoint,
            attempt=self.attempt,
            inputs=(
                InputReport(
                    edge=plan.edge, live_accepted=len(live), live_consumed=len(now), spilled=spilled, spans=spans
                ),
            ),
            delivered={plan.edge: len(live)} if plan.live else {},
            state=(StateReport(table=self.names.table, added=added, replaced=replaced),),
            sinks=(SinkReport(sink=self.names.sink, rows=len(done), committables=_committables(done)),),
            due=(DueReport(operator=self.names.operator, processing_time=NEVER),),
            timing=Timing(elapsed_s=0.01, stepped_s=0.005, barrier_fired=not through, row_cost_s=1e-6),
        )

    def _path(self, folder: str, owner: str) -> str:
        me = AttemptId(self.plan.checkpoint, self.plan.generation, self.mine.subtask, self.attempt)
        return DataFile(folder, owner, me, 0).path

    def _read(self, plan: InputPlan) -> tuple[list[Rows], tuple[SpanReport, ...]]:
        taken: list[Rows] = []
        spans: list[SpanReport] = []
        left = self.rows_max
        for read in plan.reads:
            if left <= 0:
                break
            rows, progress = _advanced(unpacked(self.store.read(read.path)), read, left)
            taken.append(rows)
            spans.append(progress)
            left -= len(rows)
        return taken, tuple(spans)

    def _spilled(self, rows: Rows) -> tuple[Segment, ...]:
        if len(rows) == 0:
            return ()
        path, data = self._path(SEGMENTS, self.names.edge), packed(rows)
        self.store.create(path, data)
        return (
            Segment(
                path=path,
                epoch=self.plan.checkpoint,
                producer=self.mine.subtask,
                sequence=0,
                rows=len(rows),
                bytes=len(data),
                checksum="0" * 16,
                spans=(Span(ranges=(self.mine.groups,), cursor=0, rows_left=len(rows)),),
            ),
        )

    def _state(self, done: Rows) -> tuple[StateFile | None, dict[str, tuple[KeyGroupRange, ...]]]:
        """Numbers what was taken, and writes down the last numbers."""
        if len(done) == 0:
            return None, {}
        files = self.mine.state[self.names.table]
        known: dict[int, int] = {}
        oldest: dict[int, int] = {}
        for file in files:
            entries = _within(unpacked(self.store.read(file.path)), file, self.mine.groups)
            known |= entries
            oldest = oldest or (entries if file is files[0] else oldest)
        changed = {}
        for group, number in done.tolist():
            if known.get(group, 0) + 1 != number:
                raise OutOfOrder(f"key group {group}: record {number} came after {known.get(group, 0)}")
            known[group] = changed[group] = number
        replaced: dict[str, tuple[KeyGroupRange, ...]] = {}
        if len(files) >= STATE_FILES_MAX:
            replaced = {files[0].path: (self.mine.groups,)}
            changed = {group: known[group] for group in oldest} | changed
        path, data = self._path(STATE, self.names.table), packed(np.array(list(changed.items()), np.int32))
        self.store.create(path, data)
        added = StateFile(path=path, rows=len(changed), bytes=len(data), checksum="0" * 16, ranges=(self.mine.groups,))
        return added, replaced


def _within(entries: Rows, file: StateFile, groups: KeyGroupRange) -> dict[int, int]:
    """The entries of a file that are valid for some key groups."""
    parts = [overlap for part in file.ranges if (overlap := part.intersect(groups))]
    return {group: number for group, number in entries.tolist() if any(part.lo <= group < part.hi for part in parts)}


def _advanced(segment: Rows, read: ReadSpan, rows_max: int) -> tuple[Rows, SpanReport]:
    """Up to `rows_max` rows of a span."""
    groups = segment[:, 0]
    mine = np.flatnonzero((groups >= read.lo) & (groups < read.hi))
    mine = mine[mine >= read.cursor]
    taken = mine[:rows_max]
    if len(taken) == len(mine):
        cursor = len(segment)
    else:
        cursor = int(taken[-1]) + 1
    progress = SpanReport(
        path=read.path,
        lo=read.lo,
        hi=read.hi,
        start_cursor=read.cursor,
        cursor=cursor,
        rows_at_open=len(mine),
        consumed=len(taken),
    )
    return segment[taken], progress


def _committables(done: Rows) -> tuple[Committable, ...]:
    return (Committable(packed(done), len(done), done.nbytes),) if len(done) else ()


def by_subtask(rows: Rows, groups: Sequence[KeyGroupRange]) -> list[Rows]:
    """The rows of a micro-batch as a shuffle hands them out; within a key group they keep their order."""
    ordered = rows[np.argsort(rows[:, 0], kind="stable")]
    cuts = np.searchsorted(ordered[:, 0], [part.lo for part in groups[1:]])
    return np.split(ordered, cuts)
