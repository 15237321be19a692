"""A Spark session as the engine's cluster: runs stage jobs as one group of Spark jobs, which can be cancelled."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from pyspark.sql import SparkSession

from penstock.engine.cluster import JobCancelled, JobFailed, StageJob
from penstock.errors import PenstockError
from penstock.protocol.report import SubtaskReport
from penstock.spark.activity import activity_of
from penstock.spark.failures import brief, diagnosed, is_cancellation, jvm_calls
from penstock.spark.pools import POOL, pool_of
from penstock.spark.stage_job.jobs import StageJobs
from penstock.spark.stage_job.run import JobRunner
from penstock.store.base import Store

SLOTS_HOLD_S = 1.0
"""Executors come and go, but a question to the JVM for each stage of each epoch is too many."""


class SparkCluster:
    """Runs the stages of one query on a SparkSession."""

    def __init__(self, spark: SparkSession, jobs: StageJobs, store: Store, name: str) -> None:
        self._context = spark.sparkContext
        self._jobs, self._name = jobs, name
        self._group = f"penstock-{name}-{id(self):x}"
        self._pool = pool_of(self._context, store)
        self._runner = JobRunner(spark, self._group, store)
        self._handed_over: int | None = None
        self._pooled_thread: int | None = None
        self._slots, self._slots_until_s = 0, 0.0

    @property
    def slots(self) -> int:
        if time.monotonic() >= self._slots_until_s:
            with jvm_calls(self._context):
                self._slots = int(self._context.defaultParallelism)
            self._slots_until_s = time.monotonic() + SLOTS_HOLD_S
        return self._slots

    def handed_over(self) -> int | None:
        return self._handed_over

    def run(self, job: StageJob) -> list[SubtaskReport]:
        spec, self._handed_over = self._jobs.of(job.stage), None
        what = f"stage {job.plan.stage}, checkpoint {job.plan.checkpoint}"
        try:
            with jvm_calls(self._context):
                self._context.setJobGroup(self._group, f"{self._name}: {what}", interruptOnCancel=True)
                self._enter_pool()
                result = self._runner.run(spec, job)
        except PenstockError:
            raise
        except Exception as error:
            if (for_good := diagnosed(error)) is not None:
                raise for_good from error
            kind = JobCancelled if is_cancellation(error) else JobFailed
            raise kind(f"{what}: {brief(error)}") from error
        self._handed_over = result.handed_over
        return result.reports

    def _enter_pool(self) -> None:
        """Once: the thread of a query's jobs does nothing else."""
        if self._pooled_thread != threading.get_ident():
            self._context.setLocalProperty(POOL, self._pool)
            self._pooled_thread = threading.get_ident()

    def cancel(self) -> None:
        with suppress(Exception):  # the thread that waits for the job hears from Spark itself what is wrong with it
            self._context.cancelJobGroup(self._group)

    def activity(self) -> str:
        with jvm_calls():
            return activity_of(self._context, self._group)
