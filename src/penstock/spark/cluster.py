"""Stage jobs on Spark: one task per subtask, one report per task.

With live input a job is shuffle + ``mapInArrow``, planned with the stream or, where several stages take live rows, for
each micro-batch; Spark may recompute its map side, which is deterministic. Without live input it is a plain RDD job
over the subtasks that have something to do. Records between stages never go through Spark's shuffle: a stage cut by
time is not deterministic.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession

from penstock.engine.cluster import JobCancelled, JobFailed, OfferedBatch, StageJob
from penstock.errors import PenstockError
from penstock.graph.stages import Stage
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.spark.activity import activity_of
from penstock.spark.counts import JobCounts
from penstock.spark.exchange import SourceLayout, to_subtasks
from penstock.spark.failures import is_cancellation, jvm_calls
from penstock.spark.live import call_of, mapped
from penstock.spark.quirks.workerpool import in_workers_of_sql
from penstock.spark.reports import PlannedReports, all_reports
from penstock.spark.worker import PLAN_PROPERTY, Work, as_property, decode_report, work_of
from penstock.subtask.attempt import Limits


class SparkCluster:
    """Runs the stages of one query on a SparkSession."""

    def __init__(self, spark: SparkSession, sources: SourceLayout, store_url: str, limits: Limits, name: str) -> None:
        self._spark, self._context = spark, spark.sparkContext
        self._sources = sources
        self._store_url, self._limits = store_url, limits
        self._group = f"penstock-{name}-{id(self):x}"
        self._name = name
        self._works: dict[str, Work] = {}
        self._functions: dict[str, Column] = {}
        self._planned = PlannedReports()
        self._counts = JobCounts(spark, self._group)
        self._handed_over: int | None = None

    @property
    def slots(self) -> int:
        with jvm_calls(self._context):
            return int(self._context.defaultParallelism)

    def handed_over(self) -> int | None:
        return self._handed_over

    def run(self, job: StageJob) -> list[SubtaskReport]:
        plan = job.plan
        self._handed_over = None
        work, packed = self._work(job.stage), msgspec.json.encode(plan)
        try:
            with jvm_calls(self._context):
                self._context.setJobGroup(
                    self._group,
                    f"{self._name}: stage {plan.stage}, checkpoint {plan.checkpoint}",
                    interruptOnCancel=True,
                )
                if plan.live and job.batch is not None:
                    return self._run_live(job, work, packed, job.batch)
                return self._run_recovered(plan, replace(work, plan=packed))
        except PenstockError:
            raise
        except Exception as error:
            kind = JobCancelled if is_cancellation(error) else JobFailed
            raise kind(f"stage {plan.stage}, checkpoint {plan.checkpoint}: {_brief(error)}") from error

    def cancel(self) -> None:
        with suppress(Exception):  # whoever waits for the job hears from Spark itself what is wrong with it
            self._context.cancelJobGroup(self._group)

    def activity(self) -> str:
        with jvm_calls():
            return activity_of(self._context, self._group)

    def _work(self, stage: Stage) -> Work:
        if stage.name not in self._works:
            self._works[stage.name] = work_of(stage, self._store_url, self._limits)
        return self._works[stage.name]

    def _run_live(self, job: StageJob, work: Work, plan: bytes, batch: OfferedBatch) -> list[SubtaskReport]:
        frame = batch.frame
        assert isinstance(frame, DataFrame)
        planned = job.stage.name in batch.planned_for
        reports = frame if planned else self._reports(frame, job, work)
        count = self._counts.begin(job.stage.name, batch, reports)
        self._context.setLocalProperty(PLAN_PROPERTY, as_property(plan))
        try:
            collected = self._planned.collect(frame, job.plan.parallelism) if planned else all_reports(reports)
        finally:
            # Jobs without live input have their plan with them.
            self._context.setLocalProperty(PLAN_PROPERTY, None)  # type: ignore[arg-type]
        if not collected and (reports.rdd.getNumPartitions() == 0 if planned else frame.isEmpty()):
            # Spark runs no task at all where it can prove that there are no rows.
            self._handed_over = 0
            return self._run_recovered(job.plan, replace(work, plan=plan))
        decoded = [decode_report(report) for report in collected]
        self._handed_over = count(sum(rows for report in decoded for rows in report.delivered.values()))
        return decoded

    def _reports(self, rows: DataFrame, job: StageJob, work: Work) -> DataFrame:
        plan = job.plan
        edges = job.stage.source_inputs
        placed = to_subtasks(rows, self._sources, edges, plan.parallelism, plan.max_parallelism)
        return self._mapped(placed, work, plan.stage)

    def _mapped(self, placed: DataFrame, work: Work, stage: str) -> DataFrame:
        """``placed.mapInArrow(work, REPORT)``, with a function that is made once and not for each micro-batch."""
        if stage not in self._functions:
            self._functions[stage] = call_of(work, placed)
        return mapped(placed, self._functions[stage])

    def _run_recovered(self, plan: StagePlan, work: Work) -> list[SubtaskReport]:
        # Spark starts partitions in order: the longest first, so that the short ones fill the gaps.
        longest_first = sorted(plan.launched(), key=lambda subtask: -subtask.rows_in_flight)
        subtasks = [subtask.subtask for subtask in longest_first]
        job = self._context.parallelize(subtasks, len(subtasks)).map(work.on_recovered)
        return [decode_report(report) for report in in_workers_of_sql(job, self._spark).collect()]


def _brief(error: BaseException) -> str:
    """The line that matters of a Spark error: the Python exception if there is one, else why the last task failed.

    >>> _brief(Exception("An error occurred while calling o1.x.\\n: Job aborted, most recent failure: Lost task 0.3"))
    'Lost task 0.3'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    python = [
        line for line in lines if line.split(":")[0].endswith(("Error", "Exception")) and "org.apache" not in line
    ]
    spark = [line.removeprefix(": ") for line in lines if not line.startswith("An error occurred while calling")]
    line = python[-1] if python else spark[0] if spark else type(error).__name__
    return line.rpartition("most recent failure: ")[2][:500]
