"""What of a stage job is planned with the stream, without Spark."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pyarrow as pa

import penstock as pen
from penstock.engine.feed import Demand
from penstock.graph.compiler import compile_pipeline
from penstock.graph.pipeline import Pipeline
from penstock.spark.stage_job.batch import PlannedBatch, RowsBatch
from penstock.spark.stage_job.jobs import StageJobs
from penstock.spark.stage_job.stream import NotPlanned, PlannedAhead
from penstock.subtask.attempt import Limits
from penstock.testing import stream_of
from penstock.testing.tables import Memory

SCHEMA = pa.schema([("k", pa.int64())])
FRAME: Any = mock.sentinel.frame


def pipeline(sources: int) -> Pipeline:
    """Each source has a stage of its own."""
    streams = [stream_of(SCHEMA, f"source{number}") for number in range(sources)]
    outputs = [
        stream.key_by("k").aggregate(n=pen.count(), name=f"stage{number}").write(Memory(f"table{number}"))
        for number, stream in enumerate(streams)
    ]
    return compile_pipeline([output.node for output in outputs])


def jobs_and_demand(sources: int, wanted: dict[str, int]) -> tuple[StageJobs, Demand]:
    made = pipeline(sources)
    return StageJobs(made, "memory://jobs", Limits(1 << 20, 1 << 20)), Demand(made.stages, 8, lambda: wanted)


def test_a_job_that_takes_all_live_rows_is_planned_with_the_stream() -> None:
    jobs, demand = jobs_and_demand(1, {"stage0": 3})
    plan = jobs.planned(demand)
    assert plan == PlannedAhead(jobs.of(demand.stages[0]), 3, 8)
    offered = plan.offered(FRAME)
    assert offered == PlannedBatch(FRAME, "stage0", 3)
    assert offered.planned_for == {"stage0": 3}


def test_jobs_that_share_the_live_rows_are_made_for_each_micro_batch() -> None:
    jobs, demand = jobs_and_demand(2, {"stage0": 3, "stage1": 3})
    plan = jobs.planned(demand)
    assert plan == NotPlanned()
    assert plan.applied_to(FRAME) is FRAME
    assert plan.offered(FRAME) == RowsBatch(FRAME)
    assert plan.offered(FRAME).planned_for == {}


def test_a_plan_is_another_one_once_another_number_of_subtasks_is_wanted() -> None:
    wanted = {"stage0": 3}
    jobs, demand = jobs_and_demand(1, wanted)
    plan = jobs.planned(demand)
    assert plan == jobs.planned(demand)
    wanted["stage0"] = 2
    assert plan != jobs.planned(demand)


def test_the_job_of_a_stage_is_made_once() -> None:
    jobs, demand = jobs_and_demand(1, {})
    assert jobs.of(demand.stages[0]) is jobs.of(demand.stages[0])
