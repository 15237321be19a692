"""What of a stage job is planned with the stream: all of it, where all live rows go to one stage.

A job that is made for each micro-batch has its plan analysed each time, and Spark copies every row on its way from the
stream into that plan. Both are avoided when the job is in the stream's own plan; a micro-batch then is its reports, not
its rows. The number of subtasks is part of the plan, so another number needs another plan (`spark.liveplan`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyspark.sql import DataFrame

from penstock.spark.stage_job.batch import PlannedBatch, RowsBatch
from penstock.spark.stage_job.job import JobSpec


@dataclass(frozen=True, slots=True)
class PlannedAhead:
    """The stream is that of the reports of one job."""

    job: JobSpec
    parallelism: int
    max_parallelism: int

    def applied_to(self, rows: DataFrame) -> DataFrame:
        """The stream to start."""
        return self.job.on_rows(rows, self.parallelism, self.max_parallelism)

    def offered(self, frame: DataFrame) -> PlannedBatch:
        """A micro-batch of that stream."""
        return PlannedBatch(frame, self.job.stage.name, self.parallelism)


@dataclass(frozen=True, slots=True)
class NotPlanned:
    """The stream is that of the rows, because several stages take some of them."""

    def applied_to(self, rows: DataFrame) -> DataFrame:
        """The stream to start."""
        return rows

    def offered(self, frame: DataFrame) -> RowsBatch:
        """A micro-batch of that stream."""
        return RowsBatch(frame)


StreamPlan: TypeAlias = PlannedAhead | NotPlanned
