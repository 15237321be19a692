"""From reports to the next draft: cursors per range, state files, conservation."""

import itertools
import random

import msgspec
import pytest

from penstock.protocol.advance import Draft, absorb, advance_segment, advance_state, missing_reports, unbalanced
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.manifest import EdgeState, Segment, Span, StateFile
from penstock.protocol.plan import InputFacts, StagePlan, plan_subtasks, reads_of
from penstock.protocol.reads import SpanReport
from penstock.protocol.report import InputReport, OutputReport, StateReport, SubtaskReport

GROUPS = 8


def segment_of(rows: list[int], path: str = "a", epoch: int = 1) -> Segment:
    """A segment whose row i has key group rows[i]."""
    spans = (Span(ranges=(KeyGroupRange(0, GROUPS),), cursor=0, rows_left=len(rows)),)
    return Segment(path=path, epoch=epoch, producer=0, sequence=0, rows=len(rows), bytes=100, checksum="", spans=spans)


def read_of(rows: list[int], lo: int, hi: int, start: int, take: int) -> SpanReport:
    """What a correct reader of [lo, hi) reports after taking at most `take` rows."""
    mine = [number for number in range(start, len(rows)) if lo <= rows[number] < hi]
    taken = mine[:take]
    cursor = len(rows) if len(taken) == len(mine) else (taken[-1] + 1 if taken else start)
    return SpanReport(
        path="a", lo=lo, hi=hi, start_cursor=start, cursor=cursor, rows_at_open=len(mine), consumed=len(taken)
    )


@pytest.mark.parametrize("seed", range(60))
def test_random_rescaling_consumes_every_row_exactly_once_in_order(seed: int) -> None:
    """B3, A8: readers at ever changing parallelism, some of which do not get to this segment at all."""
    rng = random.Random(seed)
    rows = [rng.randrange(GROUPS) for _ in range(40)]
    edge = EdgeState(accepted=len(rows), segments=(segment_of(rows),))
    delivered: list[int] = []
    while edge.segments:
        parallelism = rng.randint(1, GROUPS)
        reports = []
        for subtask in range(parallelism):
            if rng.random() < 0.3:
                continue
            budget = rng.randint(0, 6)
            for read in reads_of(edge, range_of(subtask, parallelism, GROUPS)):
                report = read_of(rows, read.lo, read.hi, read.cursor, budget)
                budget -= report.consumed
                delivered += [n for n in range(read.cursor, report.cursor) if read.lo <= rows[n] < read.hi]
                reports.append(report)
                if budget == 0:
                    break
        before = edge.segments[0].rows_left
        advanced, problems = advance_segment(edge.segments[0], reports)
        assert problems == []
        assert advanced.rows_left == before - sum(report.consumed for report in reports)
        edge = EdgeState(accepted=len(rows), segments=(advanced,) if advanced.rows_left else ())
    assert sorted(delivered) == list(range(len(rows)))
    for group in range(GROUPS):
        mine = [n for n in delivered if rows[n] == group]
        assert mine == sorted(mine)


def test_untouched_parts_on_both_sides_of_a_reader_keep_their_rows() -> None:
    rows = [0, 3, 7, 3, 0, 7]
    advanced, problems = advance_segment(segment_of(rows), [read_of(rows, 3, 5, 0, 1)])
    assert problems == []
    assert advanced.rows_left == 5
    assert {span.cursor for span in advanced.spans} == {0, 2}


def test_neighbouring_spans_with_one_cursor_become_one_again() -> None:
    rows = [0, 7] * 3
    split, _ = advance_segment(segment_of(rows), [read_of(rows, 0, 4, 0, 0), read_of(rows, 4, 8, 0, 0)])
    assert len(split.spans) == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("start_cursor", 1), ("cursor", 99), ("consumed", 9), ("rows_at_open", 5), ("rows_at_open", 7), ("lo", 9)],
)
def test_a_reader_that_does_not_add_up_is_noticed(field: str, value: int) -> None:
    """A7."""
    rows = [0, 1, 2, 3, 4, 5]
    honest = read_of(rows, 0, GROUPS, 0, 3)
    _, problems = advance_segment(segment_of(rows), [msgspec.structs.replace(honest, **{field: value})])
    assert problems


def test_two_readers_of_the_same_key_group_are_noticed() -> None:
    """B3."""
    rows = [0, 1, 2, 3]
    _, problems = advance_segment(segment_of(rows), [read_of(rows, 0, 4, 0, 1), read_of(rows, 2, 8, 0, 1)])
    assert any("two subtasks" in problem for problem in problems)


def plan_of(edge: EdgeState, parallelism: int) -> StagePlan:
    subtasks = plan_subtasks(inputs={"e": InputFacts(edge)}, state={}, parallelism=parallelism, max_parallelism=GROUPS)
    return StagePlan(
        stage="s",
        checkpoint=5,
        generation=1,
        parallelism=parallelism,
        max_parallelism=GROUPS,
        budget_s=None,
        row_cost_s=None,
        consumer_parallelism={},
        subtasks=subtasks,
    )


def report_of(subtask: int, *spans: SpanReport, **fields: object) -> SubtaskReport:
    inputs = (InputReport(edge="e", spans=spans),)
    return SubtaskReport(
        **{"stage": "s", "subtask": subtask, "checkpoint": 5, "attempt": "1", "inputs": inputs, **fields}
    )


def test_consumed_and_in_flight_make_up_what_was_accepted() -> None:
    rows = [0, 7, 0, 7]
    edge = EdgeState(accepted=4, segments=(segment_of(rows),))
    plan = plan_of(edge, 2)
    reports = [report_of(0, read_of(rows, 0, 4, 0, 1)), report_of(1, read_of(rows, 4, 8, 0, 2))]
    draft = absorb(Draft(edges={"e": edge}, state={}), plan, reports)
    assert draft.violations == ()
    assert unbalanced(draft.edges) == ()
    assert (draft.edges["e"].consumed, draft.edges["e"].rows_in_flight) == (3, 1)


def test_rows_that_vanish_between_producer_and_segment_are_noticed() -> None:
    """A7: the operator counted three rows, the segment holds two."""
    edge = EdgeState(accepted=1, segments=(segment_of([0]),))
    written = segment_of([1, 2], path="b", epoch=5)
    report = report_of(0, read_of([0], 0, 8, 0, 1), outputs=(OutputReport(edge="out", rows=3, segments=(written,)),))
    draft = absorb(Draft(edges={"e": edge, "out": EdgeState()}, state={}), plan_of(edge, 1), [report])
    assert [violation.where for violation in unbalanced(draft.edges)] == ["out"]


@pytest.mark.parametrize("field", [{"checkpoint": 4}, {"stage": "other"}])
def test_a_stale_report_is_noticed(field: dict[str, object]) -> None:
    """C5."""
    edge = EdgeState(accepted=1, segments=(segment_of([0]),))
    draft = absorb(Draft(edges={"e": edge}, state={}), plan_of(edge, 1), [report_of(0, **field)])
    assert draft.violations


def test_missing_and_doubled_reports_are_named() -> None:
    plan = plan_of(EdgeState(accepted=2, segments=(segment_of([0, 7]),)), 2)
    assert missing_reports(plan, [report_of(0)]) == (1,)
    assert missing_reports(plan, [report_of(0), report_of(0), report_of(1)]) == (0,)
    assert missing_reports(plan, [report_of(0), report_of(1), report_of(2)]) == (2,)
    assert missing_reports(plan, [report_of(1), report_of(0)]) == ()


def file_of(path: str, *ranges: tuple[int, int]) -> StateFile:
    return StateFile(path=path, rows=1, bytes=1, checksum="", ranges=tuple(KeyGroupRange(*r) for r in ranges))


def test_a_replaced_state_file_stays_valid_for_the_other_subtasks() -> None:
    """B13, D6."""
    old = file_of("old", (0, 8))
    change = StateReport(table="o", added=file_of("new", (0, 4)), replaced={"old": (KeyGroupRange(0, 4),)})
    files = advance_state((old,), [change])
    assert [(file.path, file.ranges) for file in files] == [
        ("old", (KeyGroupRange(4, 8),)),
        ("new", (KeyGroupRange(0, 4),)),
    ]
    change = StateReport(table="o", added=file_of("new2", (4, 8)), replaced={"old": (KeyGroupRange(4, 8),)})
    assert [file.path for file in advance_state(files, [change])] == ["new", "new2"]


def test_every_reader_sees_segments_oldest_first() -> None:
    """A8."""
    for order in itertools.permutations([1, 2, 3]):
        edge = EdgeState(segments=tuple(segment_of([0], path=str(epoch), epoch=epoch) for epoch in order))
        assert [read.path for read in reads_of(edge, KeyGroupRange(0, 8))] == ["1", "2", "3"]
