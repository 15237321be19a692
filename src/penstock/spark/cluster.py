"""Stage jobs on Spark: one task per subtask, one report per task.

With live input a job is shuffle + ``mapInArrow``; Spark may recompute its map side, which is deterministic. Without,
it is a plain RDD job over the subtasks that have something to do. Records between stages never go through Spark's
shuffle: a stage cut by time is not deterministic.
"""

from __future__ import annotations

import hashlib

import msgspec
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructType

from penstock.engine.cluster import JobFailed, StageJob
from penstock.errors import PenstockError
from penstock.graph import Stage
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.spark.exchange import SourceLayout, to_subtasks
from penstock.spark.failures import jvm_calls
from penstock.spark.worker import Work, decode_report
from penstock.task import Limits

REPORT = StructType().add("report", BinaryType())


class SparkCluster:
    """Runs the stages of one query on a SparkSession."""

    def __init__(self, spark: SparkSession, sources: SourceLayout, store_url: str, limits: Limits, name: str) -> None:
        self._context = spark.sparkContext
        self._sources = sources
        self._store_url, self._limits = store_url, limits
        self._group = f"penstock-{name}-{id(self):x}"
        self._name = name
        self._stages: dict[str, tuple[bytes, str]] = {}

    @property
    def slots(self) -> int:
        with jvm_calls():
            return int(self._context.defaultParallelism)

    def run(self, job: StageJob) -> list[SubtaskReport]:
        plan = job.plan
        work = self._work(job.stage, plan)
        try:
            with jvm_calls():
                self._context.setJobGroup(
                    self._group,
                    f"{self._name}: stage {plan.stage}, checkpoint {plan.checkpoint}",
                    interruptOnCancel=True,
                )
                if plan.live and job.batch is not None:
                    assert isinstance(job.batch.frame, DataFrame)
                    reports = self._run_live(job, work, job.batch.frame)
                else:
                    reports = self._run_recovered(plan, work)
        except PenstockError:
            raise
        except Exception as error:
            raise JobFailed(f"stage {plan.stage}, checkpoint {plan.checkpoint}: {_brief(error)}") from error
        return [decode_report(report) for report in reports]

    def _work(self, stage: Stage, plan: StagePlan) -> Work:
        if stage.name not in self._stages:
            packed: bytes = cloudpickle.dumps(stage)  # type: ignore[no-untyped-call]
            self._stages[stage.name] = (packed, hashlib.sha256(packed).hexdigest())
        packed, digest = self._stages[stage.name]
        return Work(packed, digest, msgspec.json.encode(plan), self._store_url, self._limits)

    def _run_live(self, job: StageJob, work: Work, frame: DataFrame) -> list[bytes]:
        placed = to_subtasks(frame, self._sources, job.stage.source_inputs, job.plan)
        reports = [bytes(row[0]) for row in placed.mapInArrow(work, REPORT).collect()]
        if not reports and frame.isEmpty():
            # Spark runs no task at all where it can prove that there are no rows.
            return self._run_recovered(job.plan, work)
        return reports

    def _run_recovered(self, plan: StagePlan, work: Work) -> list[bytes]:
        # Spark starts partitions in order: the longest first, so that the short ones fill the gaps.
        longest_first = sorted(plan.launched(), key=lambda subtask: -subtask.rows_in_flight)
        subtasks = [subtask.subtask for subtask in longest_first]
        run = work.on_recovered
        return self._context.parallelize(subtasks, len(subtasks)).map(run).collect()


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
