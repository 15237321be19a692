"""The three ways to run the job of a stage.

*Planned with the stream*: the micro-batch is the reports of the job, so collecting them runs it. *Made for the
micro-batch*: the job is put on top of the rows. *Segments alone*: there are no live rows, and no job of Spark SQL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

from pyspark.sql import SparkSession

from penstock.engine.cluster import OfferedBatch, StageJob
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.spark.quirks.emptyplans import proved_empty, without_rows
from penstock.spark.quirks.exchangecounts import executed_plan, executed_stream_plan
from penstock.spark.stage_job.batch import PlannedBatch, RowsBatch
from penstock.spark.stage_job.counts import JobCounts
from penstock.spark.stage_job.job import JobSpec
from penstock.spark.stage_job.plan_property import sent_along
from penstock.spark.stage_job.reports import PlannedReports, collected, decoded
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class JobResult:
    """The reports of a job; `handed_over` is how many live rows Spark counted, None where it cannot tell."""

    reports: list[SubtaskReport]
    handed_over: int | None


@dataclass(frozen=True, slots=True)
class _LiveRun:
    """A job over live rows, in the way that its micro-batch demands."""

    collect: Callable[[], list[bytes]]
    executed_plan: Callable[[], Any]
    """With Spark's counts."""
    counts_go_on: bool
    """Whether the counts go on when the same micro-batch is tried again, because its plan is the same."""
    is_empty: Callable[[], bool]
    """Whether Spark had no reason to run a task; asked only when there is no report."""


class JobRunner:
    """Runs the jobs of one query, one after the other."""

    def __init__(self, spark: SparkSession, group: str, store: Store) -> None:
        self._spark, self._store = spark, store
        self._numbers = itertools.count()
        self._planned = PlannedReports()
        self._counts = JobCounts(spark.sparkContext, group)

    def run(self, spec: JobSpec, job: StageJob) -> JobResult:
        plan = job.plan
        if not plan.live or job.batch is None:
            return JobResult(self._on_segments(spec, plan), None)
        live = self._live(spec, plan, job.batch)
        count = self._counts.begin(plan.stage, job.batch.batch_id, live.executed_plan, goes_on=live.counts_go_on)
        with sent_along(self._spark.sparkContext, plan, self._store, next(self._numbers)):
            found = live.collect()
        if not found and live.is_empty():
            return JobResult(self._on_segments(spec, plan), 0)
        reports = decoded(found)
        return JobResult(reports, count(sum(rows for report in reports for rows in report.delivered.values())))

    def _live(self, spec: JobSpec, plan: StagePlan, batch: OfferedBatch) -> _LiveRun:
        content = batch.content
        assert isinstance(content, PlannedBatch | RowsBatch), "the micro-batch is another cluster's"
        match content:
            case PlannedBatch(reports=reports):
                assert content.planned_for == {plan.stage: plan.parallelism}
                return _LiveRun(
                    collect=partial(self._planned.collect, reports, plan.parallelism),
                    executed_plan=partial(executed_stream_plan, self._spark, batch.query_id),
                    counts_go_on=True,
                    is_empty=partial(proved_empty, reports),
                )
            case RowsBatch(rows=rows):
                reports = spec.on_rows(rows, plan.parallelism, plan.max_parallelism)
                return _LiveRun(
                    collect=partial(collected, reports),
                    executed_plan=partial(executed_plan, reports),
                    counts_go_on=False,
                    is_empty=partial(without_rows, rows),
                )
            case _:
                assert_never(content)

    def _on_segments(self, spec: JobSpec, plan: StagePlan) -> list[SubtaskReport]:
        return decoded(spec.on_segments(self._spark, plan))
