"""Which of the two plain jobs runs a stage without live rows, without Spark."""

from __future__ import annotations

from unittest import mock

import pytest

from penstock.protocol.plan import StagePlan
from penstock.spark.quirks.streamrdd import FETCHED_MAX
from penstock.spark.stage_job.job import JobSpec
from tests.unit.protocol.test_parts import plan_of


class World:
    """A session whose kept jobs are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spark, self.made = mock.MagicMock(), []
        self.spec = JobSpec(mock.Mock(), mock.Mock(), mock.Mock())
        monkeypatch.setattr("penstock.spark.stage_job.job.KeptJob", self._kept)
        monkeypatch.setattr("penstock.spark.stage_job.job.replace", mock.Mock())
        monkeypatch.setattr("penstock.spark.stage_job.job.in_workers_of_sql", mock.Mock())

    def _kept(self, _spark: object, _function: object, tasks: int) -> mock.Mock:
        self.made.append(tasks)
        return mock.Mock(run=lambda: [b"report"] * tasks)

    def run(self, plan: StagePlan) -> list[bytes]:
        return self.spec.on_segments(self.spark, plan)


def test_a_job_of_few_tasks_is_made_once_and_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plan = World(monkeypatch), plan_of(3)
    launched = len(plan.launched())
    assert world.run(plan) == world.run(plan) == [b"report"] * launched
    assert world.made == [launched]
    world.spark.sparkContext.parallelize.assert_not_called()


def test_a_job_of_many_tasks_has_a_part_of_the_plan_as_the_row_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    world, plan = World(monkeypatch), plan_of(4 * FETCHED_MAX)
    assert len(plan.launched()) > FETCHED_MAX
    world.run(plan)
    assert world.made == []
    world.spark.sparkContext.parallelize.assert_called_once()
