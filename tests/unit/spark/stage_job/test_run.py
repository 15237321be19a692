"""Which way a stage job is run, without Spark."""

from __future__ import annotations

from typing import Any
from unittest import mock

import msgspec
import pytest

from penstock.engine.cluster import OfferedBatch, StageJob
from penstock.protocol.ids import BatchId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.plan import InputPlan, StagePlan, SubtaskPlan
from penstock.protocol.report import SubtaskReport
from penstock.spark.stage_job.batch import Batch, PlannedBatch, RowsBatch
from penstock.spark.stage_job.plan_property import PLAN_PROPERTY
from penstock.spark.stage_job.run import JobResult, JobRunner
from penstock.store.memory import MemoryStore
from penstock.testing.batch import TablesBatch


def report(attempt: str, **delivered: int) -> SubtaskReport:
    return SubtaskReport(stage="s", subtask=0, checkpoint=1, attempt=attempt, delivered=delivered)


class World:
    """A session that notes what its jobs have with them, and counts four rows in every exchange."""

    def __init__(self) -> None:
        self.spark = mock.MagicMock()
        self.store = MemoryStore()
        self.plans: list[bool] = []
        plan = mock.Mock()
        plan.metrics().apply().value.return_value = 4
        self.executed = mock.Mock()
        self.executed.executedPlan.return_value = plan
        streaming = self.spark._jsparkSession.streams().get().streamingQuery()
        streaming.lastExecution.return_value = self.executed
        properties: dict[str, str | None] = {}
        self.spark.sparkContext.setLocalProperty = properties.__setitem__
        self._properties = properties
        self.spec = mock.Mock()
        self.spec.on_segments.return_value = [msgspec.json.encode(report("segments"))]
        self.spec.on_rows.return_value = self.frame(report("made", edge=4))
        self.runner = JobRunner(self.spark, "group", self.store)

    def frame(self, *reports: SubtaskReport) -> Any:
        """A DataFrame of reports, one per partition."""

        def collect(rows: list[Any]) -> list[Any]:
            self.plans.append(self._properties.get(PLAN_PROPERTY) is not None)
            return rows

        encoded = [msgspec.json.encode(one) for one in reports]
        frame = mock.MagicMock()
        frame.collect.side_effect = lambda: collect([(data,) for data in encoded])
        execution = frame._jdf.queryExecution()
        execution.logical().rdd().collect.side_effect = lambda: collect(
            [mock.Mock(**{"getBinary.return_value": data}) for data in encoded]
        )
        execution.executedPlan = self.executed.executedPlan
        frame.rdd.getNumPartitions.return_value = len(reports)
        return frame

    def run(self, content: Batch | TablesBatch | None, *, live: bool = True) -> JobResult:
        inputs = (InputPlan("edge", (), live),)
        subtask = SubtaskPlan(0, KeyGroupRange(0, 8), inputs, {}, 0)
        plan = StagePlan(
            stage="s",
            checkpoint=1,
            generation=1,
            parallelism=1,
            max_parallelism=8,
            budget_s=None,
            row_cost_s=None,
            consumer_parallelism={},
            subtasks=(subtask,),
        )
        batch = None if content is None else OfferedBatch(BatchId(7), content, None, "query")
        return self.runner.run(self.spec, StageJob(mock.Mock(), plan, batch))


def test_a_planned_micro_batch_is_its_reports() -> None:
    world = World()
    result = world.run(PlannedBatch(world.frame(report("planned", edge=4)), "s", 1))
    assert result == JobResult([report("planned", edge=4)], 4)
    world.spec.on_rows.assert_not_called()


def test_a_micro_batch_of_rows_gets_a_job_of_its_own() -> None:
    world = World()
    rows = world.frame()
    assert world.run(RowsBatch(rows)) == JobResult([report("made", edge=4)], 4)
    world.spec.on_rows.assert_called_once_with(rows, 1, 8)


def test_without_live_rows_the_micro_batch_is_not_touched() -> None:
    world = World()
    assert world.run(RowsBatch(world.frame()), live=False) == JobResult([report("segments")], None)
    assert world.run(None) == JobResult([report("segments")], None)
    assert world.plans == [], "a job without live rows has its plan with it"


@pytest.mark.parametrize("planned", [True, False])
def test_a_job_over_live_rows_finds_its_plan_in_its_properties(planned: bool) -> None:
    world = World()
    made = world.frame(report("planned", edge=4))
    world.run(PlannedBatch(made, "s", 1) if planned else RowsBatch(made))
    assert world.plans == [True]
    assert world._properties[PLAN_PROPERTY] is None, "other jobs of the thread must not have it"


@pytest.mark.parametrize("planned", [True, False])
def test_subtasks_are_run_without_rows_where_spark_ran_no_task(planned: bool) -> None:
    world = World()
    reports, rows = world.frame(), mock.Mock()
    reports.isEmpty.side_effect = AssertionError("it would run the job once more")
    rows.isEmpty.return_value = True
    world.spec.on_rows.return_value = reports
    content = PlannedBatch(reports, "s", 1) if planned else RowsBatch(rows)
    assert world.run(content) == JobResult([report("segments")], 0)


@pytest.mark.parametrize("planned", [True, False])
def test_lost_reports_are_not_taken_for_a_micro_batch_without_rows(planned: bool) -> None:
    world = World()
    lost = world.frame()
    lost.rdd.getNumPartitions.return_value = 1
    lost.isEmpty.return_value = False
    world.spec.on_rows.return_value = lost
    assert world.run(PlannedBatch(lost, "s", 1) if planned else RowsBatch(lost)).reports == []


def test_a_micro_batch_that_was_planned_for_another_number_of_subtasks_is_refused() -> None:
    world = World()
    with pytest.raises(AssertionError):
        world.run(PlannedBatch(world.frame(report("planned")), "s", 2))


def test_a_micro_batch_of_another_cluster_is_refused() -> None:
    with pytest.raises(AssertionError, match="another cluster"):
        World().run(TablesBatch({}))
