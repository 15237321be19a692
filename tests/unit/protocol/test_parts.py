"""A task gets its own part of the plan, and no more (H2)."""

from __future__ import annotations

import msgspec
import pytest

from penstock.protocol.garbage import left_plans
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import range_of
from penstock.protocol.layout import PlanFile, read_plan_file
from penstock.protocol.manifest import EdgeState, Segment, Span
from penstock.protocol.parts import head_of, joined, packed, part_at, parts_of
from penstock.protocol.plan import InputFacts, StagePlan, plan_subtasks

GROUPS = 128


def segment(number: int, parallelism: int) -> Segment:
    spans = (Span(ranges=(range_of(number, parallelism, GROUPS),), cursor=0, rows_left=3),)
    return Segment(
        path=f"segments/e/{number:05d}", epoch=1, producer=number, sequence=0, rows=3, bytes=9, checksum="", spans=spans
    )


def plan_of(parallelism: int) -> StagePlan:
    edge = EdgeState(segments=tuple(segment(number, parallelism) for number in range(parallelism) if number != 1))
    return StagePlan(
        stage="s",
        checkpoint=CheckpointId(7),
        generation=Generation(2),
        parallelism=parallelism,
        max_parallelism=GROUPS,
        budget_s=1.0,
        row_cost_s=None,
        consumer_parallelism={"out": parallelism},
        subtasks=plan_subtasks(
            inputs={"e": InputFacts(edge)}, state={}, parallelism=parallelism, max_parallelism=GROUPS
        ),
    )


@pytest.mark.parametrize("parallelism", [2, 3, 64])
def test_head_and_part_make_the_plan_of_one_subtask(parallelism: int) -> None:
    plan = plan_of(parallelism)
    for mine in plan.subtasks:
        got = joined(head_of(plan), *parts_of([mine]))
        assert got == msgspec.structs.replace(plan, subtasks=(mine,))
        assert got.of(mine.subtask) == plan.of(mine.subtask) == mine


def test_what_a_task_gets_does_not_grow_with_the_number_of_subtasks() -> None:
    few, many = plan_of(4), plan_of(128)
    sizes = [len(head_of(plan)) + max(map(len, parts_of(plan.subtasks))) for plan in (few, many)]
    assert sizes[1] <= sizes[0] + 10, "numbers have more digits"


def test_one_of_many_parts_is_found_without_the_others() -> None:
    plan = plan_of(64)
    data = packed(plan.launched(), plan.parallelism)
    read_bytes = 0

    def read(begin: int, size: int) -> bytes:
        nonlocal read_bytes
        read_bytes += size
        return data[begin : begin + size]

    for mine in plan.launched():
        assert part_at(read, mine.subtask) == parts_of([mine])[0]
    assert read_bytes < len(data) + 1
    with pytest.raises(AssertionError, match="subtask 1 is not launched"):
        part_at(read, 1)


def test_plans_of_jobs_that_are_over_are_left() -> None:
    def path(checkpoint: int, generation: int) -> str:
        return PlanFile(CheckpointId(checkpoint), Generation(generation), 3).path

    paths = [path(9, 1), path(4, 2), path(5, 2), path(6, 2), path(1, 3), "plans/somebody-elses"]
    assert left_plans(paths, generation=Generation(2), published=CheckpointId(5)) == tuple(paths[:3])
    assert read_plan_file(paths[0]) == PlanFile(CheckpointId(9), Generation(1), 3)
    assert read_plan_file("plans/x.bin") is None
