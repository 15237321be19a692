"""Sweeps over ranges give what every subtask would find by looking at everything (H1)."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.pace import Pace
from penstock.protocol.advance import Draft, _joined, absorb, missing_reports
from penstock.protocol.eventtime import due_subtasks
from penstock.protocol.keygroups import KeyGroupRange, range_of, subtract_all, union
from penstock.protocol.manifest import EdgeState, Segment, Span, StageClock, StateFile, Timer
from penstock.protocol.plan import InputFacts, StagePlan, SubtaskPlan, TableFacts, plan_subtasks
from penstock.protocol.reads import ReadSpan, SpanReport
from penstock.protocol.report import DueReport, InputReport, OutputReport, StateReport, SubtaskReport
from tests.support import naive_planning as naive

SEEDS = range(150)


class Drawn:
    """A draft in which ranges were cut by rescaling back and forth, from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.groups = rng.choice((1, 5, 16, 128))
        self.parallelism = rng.randint(1, min(self.groups, 24))
        self.rows: dict[str, list[int]] = {}
        self.inputs = {
            name: InputFacts(
                self.edge(name),
                live=name == "a" and rng.random() < 0.5,
                broadcast=name == "b" and rng.random() < 0.5,
                timed=rng.random() < 0.5,
                after=rng.choice((None, None, 4)),
                before=rng.choice((None, None, 2)),
            )
            for name in ("a", "b")[: rng.randint(1, 2)]
        }
        self.tables = {
            "t": TableFacts(tuple(self.file(f"t{number}") for number in range(rng.randint(0, 6)))),
            "all": TableFacts((self.file("all"),), broadcast=True),
        }
        self.timers = tuple(
            Timer(groups=part, event_time=rng.choice((None, 5)), processing_time=rng.choice((None, 7)))
            for part in self.cuts(4)
        )
        self.now = rng.choice((0, 10))

    def cuts(self, parts: int) -> list[KeyGroupRange]:
        """Ranges that do not overlap, ascending, some key groups left out."""
        bounds = sorted({self.rng.randint(0, self.groups) for _ in range(2 * parts)})
        ranges = [KeyGroupRange(lo, hi) for lo, hi in itertools.pairwise(bounds)]
        return [part for part in ranges if self.rng.random() < 0.8]

    def edge(self, name: str) -> EdgeState:
        segments = tuple(self.segment(f"{name}{number}") for number in range(self.rng.randint(0, 6)))
        segments = tuple(segment for segment in segments if segment.rows_left)
        return EdgeState(accepted=100, segments=segments, watermark=self.rng.choice((None, 3, 9)))

    def segment(self, path: str) -> Segment:
        rng = self.rng
        rows = self.rows[path] = [rng.randrange(self.groups) for _ in range(rng.randint(1, 40))]
        parts, spans = self.cuts(4), []
        while parts:
            ranges = [parts.pop(0)]
            if parts and rng.random() < 0.3:
                ranges.append(parts.pop(0))
            cursor = rng.randint(0, len(rows))
            left = sum(1 for row in rows[cursor:] if any(part.lo <= row < part.hi for part in ranges))
            if left:
                spans.append(Span(ranges=tuple(ranges), cursor=cursor, rows_left=left))
        return Segment(
            path=path,
            epoch=rng.randint(1, 5),
            producer=rng.randint(0, 3),
            sequence=0,
            rows=len(rows),
            bytes=10,
            checksum="",
            watermark=rng.choice((None, 2, 6)),
            spans=_joined(spans),
        )

    def file(self, path: str) -> StateFile:
        ranges = tuple(self.cuts(3)) or (KeyGroupRange(0, self.groups),)
        return StateFile(path=path, rows=1, bytes=1, checksum="", ranges=ranges)

    def arguments(self) -> dict[str, object]:
        return {
            "inputs": self.inputs,
            "state": self.tables,
            "parallelism": self.parallelism,
            "max_parallelism": self.groups,
            "timers": self.timers,
            "now": self.now,
        }

    def plan(self) -> StagePlan:
        return StagePlan(
            stage="s",
            checkpoint=9,
            generation=1,
            parallelism=self.parallelism,
            max_parallelism=self.groups,
            budget_s=None,
            row_cost_s=None,
            consumer_parallelism={"out": 3},
            subtasks=plan_subtasks(**self.arguments()),
            broadcast_inputs=tuple(name for name, part in self.inputs.items() if part.broadcast),
        )

    def draft(self) -> Draft:
        return Draft(
            edges={**{name: part.state for name, part in self.inputs.items()}, "out": EdgeState()},
            state={name: table.files for name, table in self.tables.items()},
            stages={"s": StageClock(timers={"op": self.timers})},
        )

    # -- what subtasks answer --------------------------------------------------------------------------------------

    def reports(self, plan: StagePlan) -> list[SubtaskReport]:
        reports = [self.report(plan, subtask) for subtask in plan.launched()]
        self.rng.shuffle(reports)
        return reports

    def report(self, plan: StagePlan, mine: SubtaskPlan) -> SubtaskReport:
        rng, number = self.rng, mine.subtask
        files = mine.state["t"]
        replaced = {file.path: (mine.groups,) for file in files if rng.random() < 0.4}
        written = self.segment(f"out{number}")
        inputs = tuple(
            InputReport(
                edge=part.edge,
                live_accepted=3 if part.live else 0,
                live_consumed=1 if part.live else 0,
                max_event_time=(newest := rng.choice((None, number))),
                event_times={} if newest is None else {rng.choice("pqr"): newest, "s": newest // 2},
                spilled=(self.spilled(f"{part.edge}/spilled{number}", mine.groups),) if part.live else (),
                spans=()
                if part.edge in plan.broadcast_inputs
                else tuple(self.read(read) for read in part.reads if rng.random() < 0.7),
            )
            for part in mine.inputs
        )
        return SubtaskReport(
            stage="s",
            subtask=number,
            checkpoint=9,
            attempt=str(number),
            inputs=inputs,
            delivered={part.edge: 3 for part in mine.inputs if part.live},
            outputs=(OutputReport(edge="out", rows=written.rows_left, segments=(written,)),),
            state=(
                StateReport(
                    table="t", added=self.file(f"new{number}") if rng.random() < 0.7 else None, replaced=replaced
                ),
            ),
            watermark=rng.choice((None, 4, 8)),
            due=(DueReport(operator="op", event_time=rng.choice((None, number))),) if rng.random() < 0.6 else (),
            counters={"op.n": number},
        )

    def spilled(self, path: str, groups: KeyGroupRange) -> Segment:
        spans = (Span(ranges=(groups,), cursor=0, rows_left=2),)
        return Segment(path=path, epoch=9, producer=0, sequence=0, rows=2, bytes=1, checksum="", spans=spans)

    def read(self, read: ReadSpan) -> SpanReport:
        rows = self.rows[read.path]
        mine = [number for number in range(read.cursor, len(rows)) if read.lo <= rows[number] < read.hi]
        taken = mine[: self.rng.randint(0, len(mine))]
        cursor = len(rows) if len(taken) == len(mine) else (taken[-1] + 1 if taken else read.cursor)
        return SpanReport(
            path=read.path,
            lo=read.lo,
            hi=read.hi,
            start_cursor=read.cursor,
            cursor=cursor,
            rows_at_open=len(mine),
            consumed=len(taken),
        )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_plan_is_what_each_subtask_would_find_by_itself(seed: int) -> None:
    drawn = Drawn(seed)
    swept = plan_subtasks(**drawn.arguments())
    wanted = naive.plan_subtasks(**drawn.arguments())
    assert [without_estimate(one) for one in swept] == [without_estimate(one) for one in wanted]
    for one, other in zip(swept, wanted, strict=True):
        assert abs(one.rows_in_flight - other.rows_in_flight) <= 1, "sums of fractions, in another order"


def without_estimate(one: SubtaskPlan) -> SubtaskPlan:
    return msgspec.structs.replace(one, rows_in_flight=0)


@pytest.mark.parametrize("seed", SEEDS)
def test_reports_folded_at_once_give_what_one_after_the_other_gives(seed: int) -> None:
    drawn = Drawn(seed)
    plan = drawn.plan()
    reports = drawn.reports(plan)
    folded, wanted = absorb(drawn.draft(), plan, reports), naive.absorb(drawn.draft(), plan, reports)
    assert wanted.violations == ()
    assert folded == wanted


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_does_not_fit_its_plan_is_noticed_as_before(seed: int) -> None:
    """A7, B3."""
    drawn = Drawn(seed)
    plan = drawn.plan()
    reports = [mangled(drawn.rng, report) for report in drawn.reports(plan)]
    folded, wanted = absorb(drawn.draft(), plan, reports), naive.absorb(drawn.draft(), plan, reports)
    assert bool(folded.violations) == bool(wanted.violations)


def mangled(rng: random.Random, report: SubtaskReport) -> SubtaskReport:
    """Some span with one number changed, or read twice."""
    inputs = []
    for part in report.inputs:
        spans = list(part.spans)
        if spans and rng.random() < 0.3:
            index = rng.randrange(len(spans))
            if rng.random() < 0.3:
                spans.append(spans[index])
            else:
                name = rng.choice(("lo", "hi", "start_cursor", "cursor", "rows_at_open", "consumed"))
                value = max(0, getattr(spans[index], name) + rng.choice((-2, -1, 1, 2)))
                spans[index] = msgspec.structs.replace(spans[index], **{name: value})
        inputs.append(msgspec.structs.replace(part, spans=tuple(spans)))
    return msgspec.structs.replace(report, inputs=tuple(inputs))


@given(st.lists(st.integers(0, 6), max_size=8), st.integers(0, 5))
def test_missing_and_doubled_reports_are_the_same(given_by: list[int], count: int) -> None:
    drawn = Drawn(3)
    subtasks = drawn.plan().subtasks[:count]
    plan = msgspec.structs.replace(drawn.plan(), subtasks=subtasks)
    reports = [SubtaskReport(stage="s", subtask=number, checkpoint=9, attempt="") for number in given_by]
    assert missing_reports(plan, reports) == naive.missing_reports(plan, reports)


ranges = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)).map(lambda r: KeyGroupRange(r[0], r[0] + r[1])))


@given(ranges, ranges)
def test_what_is_left_of_ranges_are_the_key_groups_that_nobody_took(
    parts: list[KeyGroupRange], taken: list[KeyGroupRange]
) -> None:
    told = union(taken)
    assert groups(told) == groups(taken)
    assert all(one.hi < other.lo for one, other in itertools.pairwise(told)), "as few as possible"
    for part in parts:
        left = list(subtract_all(part, told))
        assert groups(left) == groups([part]) - groups(taken)
        assert all(len(cut) > 0 for cut in left)


def groups(parts: Iterable[KeyGroupRange]) -> set[int]:
    return {group for part in parts for group in range(part.lo, part.hi)}


@pytest.mark.parametrize("seed", range(40))
def test_due_subtasks_are_those_in_whose_key_groups_somebody_waits(seed: int) -> None:
    drawn = Drawn(seed)
    marks = [drawn.rng.choice((None, 4, 5)) for _ in range(drawn.parallelism)]
    due = due_subtasks(drawn.timers, marks, 7, max_parallelism=drawn.groups)
    assert due == {
        subtask
        for subtask, mark in enumerate(marks)
        if naive.is_due(drawn.timers, range_of(subtask, drawn.parallelism, drawn.groups), mark, 7)
    }


def test_files_of_a_subtask_share_their_key_groups() -> None:
    """However they came into being: a manifest of thousands of subtasks should fit into caches."""
    made = StateFile(path="a", rows=1, bytes=1, checksum="", ranges=(KeyGroupRange(300, 600),))
    read = msgspec.json.decode(msgspec.json.encode(made), type=StateFile)
    span = Span(ranges=(KeyGroupRange(300, 600),), cursor=0, rows_left=1)
    assert made == read
    assert made.ranges is read.ranges is span.ranges


def test_a_drain_epoch_looks_at_the_live_rows_of_all_subtasks_once() -> None:
    drawn = Drawn(5)
    plan = drawn.plan()
    pace = Pace(row_wall_s={"s": 2.0}, live_rows={("s", plan.parallelism): [7] * plan.parallelism})
    working = [subtask for subtask in plan.subtasks if subtask.has_work]
    drained, ingested = (pace._needs_s("s", plan.subtasks, live=live) for live in (False, True))
    assert drained == [2.0 * subtask.rows_in_flight for subtask in working]
    assert ingested == [2.0 * (subtask.rows_in_flight + 7) for subtask in working]
