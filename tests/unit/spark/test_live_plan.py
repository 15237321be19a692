"""Which plan a micro-batch has that may have been planned before or after a change, without Spark."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from penstock.spark import liveplan
from penstock.spark.liveplan import LivePlan
from penstock.spark.stage_job.stream import NotPlanned, PlannedAhead, StreamPlan

JOB: Any = mock.sentinel.job


def planned(parallelism: int) -> PlannedAhead:
    return PlannedAhead(JOB, parallelism, 128)


class World:
    """A streaming query that plans with the last number that it was told; `partitions` are those of a micro-batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wanted: StreamPlan = planned(2)
        self.changes: list[tuple[int, int]] = []
        self.can_change = True
        monkeypatch.setattr(liveplan, "change_partitions", self._change)
        monkeypatch.setattr(liveplan, "partitions_of", lambda frame: frame)
        self.live = LivePlan(mock.Mock(), planned(2), lambda: self.wanted)
        self.live.query = mock.Mock()

    def _change(self, _query: object, _session: object, *, old: int, new: int) -> bool:
        if self.can_change:
            self.changes.append((old, new))
        return self.can_change

    def handed_over(self, partitions: int) -> StreamPlan | None:
        frame: Any = partitions
        plan = self.live.of(frame)
        self.live.handed_back()
        return plan


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_change_between_micro_batches_holds_for_the_next_one(world: World) -> None:
    assert world.handed_over(2) == planned(2)
    world.wanted = planned(8)
    assert world.live.follow()
    assert world.handed_over(8) == planned(8)
    assert world.changes == [(2, 8)]


def test_a_micro_batch_that_was_planned_before_the_change_is_taken_as_it_was_planned(world: World) -> None:
    world.handed_over(2)
    world.wanted = planned(8)
    assert world.handed_over(2) == planned(2)
    assert world.changes == [(2, 8)], "the handler has it changed, if nobody has done so before"
    assert world.handed_over(8) == planned(8)


def test_changes_that_follow_each_other_are_told_apart(world: World) -> None:
    world.handed_over(2)
    for number in (8, 3, 5):
        world.wanted = planned(number)
        assert world.live.follow()
    assert world.changes == [(2, 8), (8, 3), (3, 5)]
    assert world.handed_over(3) == planned(3)
    assert world.handed_over(5) == planned(5)


def test_a_micro_batch_of_an_older_plan_than_it_can_have_starts_the_query_anew(world: World) -> None:
    world.handed_over(2)
    world.wanted = planned(8)
    world.handed_over(2)
    assert world.handed_over(2) is None, "Spark did not take the new plan"


def test_a_plan_that_spark_is_known_to_use_is_not_asked_for_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.handed_over(2)
    world.wanted = planned(8)
    world.live.follow()
    world.handed_over(8)
    monkeypatch.setattr(liveplan, "partitions_of", mock.Mock(side_effect=AssertionError))
    assert world.handed_over(8) == planned(8)


def test_a_micro_batch_without_partitions_is_taken_with_the_newest_plan(world: World) -> None:
    world.handed_over(2)
    world.wanted = planned(8)
    assert world.handed_over(0) == planned(8)
    assert world.handed_over(8) == planned(8)


def test_a_plan_that_cannot_be_changed_starts_the_query_anew(world: World) -> None:
    world.handed_over(2)
    world.wanted, world.can_change = planned(8), False
    assert not world.live.follow()
    assert world.handed_over(2) is None


def test_a_query_that_has_not_handed_over_anything_is_started_anew(world: World) -> None:
    world.wanted = planned(8)
    assert not world.live.follow()
    assert world.handed_over(2) is None
    assert world.changes == []


def test_a_change_that_is_taken_back_leaves_the_plan_as_it_was(world: World) -> None:
    world.handed_over(2)
    world.wanted = planned(8)
    world.wanted = planned(2)
    assert world.live.follow()
    assert world.handed_over(2) == planned(2)
    assert world.changes == []


def test_rows_that_are_not_planned_ahead_have_nothing_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.wanted = NotPlanned()
    world.live = LivePlan(mock.Mock(), NotPlanned(), lambda: world.wanted)
    assert world.handed_over(5) == world.handed_over(7) == NotPlanned()
    assert world.changes == []
