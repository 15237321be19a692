"""The job of one stage, the same in all epochs: rows to subtasks, the work on them, one report per subtask.

With live rows it is a shuffle and ``mapInArrow``; the partition is the subtask. Spark may recompute the map side, which
is deterministic. Without live rows it is a plain RDD job over the subtasks that have something to do. Records between
stages never go through Spark's shuffle: a stage that is cut by time is not deterministic.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from penstock.graph.stages import Stage
from penstock.protocol.parts import head_of, parts_of
from penstock.protocol.plan import StagePlan
from penstock.spark.quirks.dottednames import call_of, mapped
from penstock.spark.quirks.keptjobs import KeptJob
from penstock.spark.quirks.streamrdd import FETCHED_MAX
from penstock.spark.quirks.workerpool import in_workers_of_sql
from penstock.spark.stage_job.exchange import SourceLayout, quoted, to_subtasks
from penstock.spark.stage_job.plan_property import sent_in_order
from penstock.spark.stage_job.worker import Work

REPORT = StructType().add("report", BinaryType())


class JobSpec:
    """The job of a stage: makes the DataFrame of its reports over live rows, and runs it without live rows."""

    def __init__(self, stage: Stage, layout: SourceLayout, work: Work) -> None:
        self.stage = stage
        self._layout, self._work = layout, work
        self._call: Column | None = None
        self._jobs: dict[int, KeptJob] = {}
        """Without live rows, by number of tasks."""

    def on_rows(self, rows: DataFrame, parallelism: int, max_parallelism: int) -> DataFrame:
        """The reports of the stage over live rows, of a stream or of one micro-batch.

        Tasks find their plan by the properties of the job.
        """
        placed = to_subtasks(rows, self._layout, self.stage.source_inputs, parallelism, max_parallelism)
        if self._call is None:  # the function is made once and not for each micro-batch
            columns = [F.col(quoted(name)) for name in placed.columns]
            self._call = call_of(self._work, REPORT, columns)
        return mapped(placed, self._call)

    def on_segments(self, spark: SparkSession, plan: StagePlan) -> list[bytes]:
        """Runs the stage without live rows; one report for each subtask that has something to do."""
        # Spark starts partitions in order: the longest first, so that the short ones fill the gaps.
        longest_first = sorted(plan.launched(), key=lambda subtask: -subtask.rows_in_flight)
        if len(longest_first) <= FETCHED_MAX:
            with sent_in_order(spark.sparkContext, plan, longest_first) as sent:
                if sent:
                    return self._kept(spark, len(longest_first)).run()
        parts = parts_of(longest_first)
        work = replace(self._work, head=head_of(plan))
        job = spark.sparkContext.parallelize(parts, len(parts)).map(work.on_segments)
        return in_workers_of_sql(job, spark).collect()

    def _kept(self, spark: SparkSession, tasks: int) -> KeptJob:
        if tasks not in self._jobs:
            self._jobs[tasks] = KeptJob(spark, self._work.by_number, tasks)
        return self._jobs[tasks]
