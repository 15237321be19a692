"""What runs in Spark's Python workers: unpack the job, run the subtask, answer with one report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext, cloudpickle

from penstock.graph.stages import Stage
from penstock.inflight.delivery import CountedStream
from penstock.inflight.live import LiveInputs
from penstock.memory import memory_bytes
from penstock.protocol.parts import joined
from penstock.protocol.plan import StagePlan
from penstock.protocol.report import SubtaskReport
from penstock.spark.quirks.gcfreeze import freeze_once
from penstock.spark.quirks.memory import keep_memory
from penstock.spark.stage_job.plan_property import received
from penstock.store import open_store
from penstock.store.base import Store
from penstock.subtask.attempt import Limits, run_subtask
from penstock.subtask.meter import ThreadMeter
from penstock.subtask.watchdog import watch_over
from pyspark_penstock import keep_quiet

REPORT_SCHEMA = pa.schema([pa.field("report", pa.binary())])
_stages: dict[str, Stage] = {}


@dataclass(frozen=True, slots=True)
class Work:
    """A stage job as it travels to the workers; `stage` is unpacked once per worker and version.

    Without a head of a plan it finds its plan by the job's properties.
    """

    stage: bytes
    stage_digest: str
    store_url: str
    limits: Limits
    head: bytes | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """With live input, under ``mapInArrow``: the partition is the subtask."""
        context = TaskContext.get()
        assert context is not None
        store = open_store(self.store_url)
        plan = received(context, store, context.partitionId())
        report = self._run(plan, store, batches)
        yield pa.RecordBatch.from_arrays([pa.array([report], pa.binary())], schema=REPORT_SCHEMA)

    def on_segments(self, part: bytes) -> bytes:
        """Without live input, under a plain RDD job: the part of the plan is the task's only row."""
        assert self.head is not None
        return self._run(joined(self.head, part), open_store(self.store_url), None)

    def by_number(self, task: int) -> bytes:
        """Without live input, under a plain job that is the same in all epochs: the task has nothing but its number."""
        context = TaskContext.get()
        assert context is not None
        store = open_store(self.store_url)
        return self._run(received(context, store, task), store, None)

    def _run(self, plan: StagePlan, store: Store, batches: Iterator[pa.RecordBatch] | None) -> bytes:
        context = TaskContext.get()
        assert context is not None
        keep_memory()
        keep_quiet()
        stage, (mine,) = self._stage(), plan.subtasks
        subtask = mine.subtask
        attempt = str(context.taskAttemptId())
        with (
            watch_over(stage, plan, subtask, store=store, attempt=attempt, limit_s=self.limits.stuck_s) as watchdog,
            ThreadMeter(watchdog.clock) as meter,
        ):
            # Where Spark proved that there are no rows, there is no stream: an empty one, which is counted, too.
            weighed = _Weighed()
            delivered = iter(()) if batches is None else watchdog.delivered(weighed.counted(batches))
            stream = CountedStream(delivered, [edge.name for edge in stage.source_inputs])
            report = run_subtask(
                stage,
                plan,
                subtask,
                store=store,
                limits=self.limits,
                attempt=attempt,
                live=self._live(stage, stream),
                clock=watchdog.clock,
                meter=meter,
            )
            report = _measured(report, watchdog.waited_s, weighed.bytes)
        freeze_once()
        return msgspec.json.encode(stream.stamped(report) if stage.source_inputs else report)

    def _live(self, stage: Stage, batches: Iterator[pa.RecordBatch]) -> LiveInputs | None:
        edges = stage.source_inputs
        match edges:
            case ():
                return None
            case (edge,):
                return LiveInputs.single(batches, edge.name, edge.keys if edge.hashed_on_arrival else ())
        return LiveInputs.mixed(batches, [edge.name for edge in edges], self.limits.prefetch_bytes)

    def _stage(self) -> Stage:
        stage = _stages.get(self.stage_digest)
        if stage is None:
            stage = _stages[self.stage_digest] = cloudpickle.loads(self.stage)
        return stage


@dataclass(slots=True)
class _Weighed:
    """How many bytes Spark delivered."""

    bytes: int = 0

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self.bytes += batch.nbytes
            yield batch


def _measured(report: SubtaskReport, waited_s: float, bytes_in: int) -> SubtaskReport:
    """The report with what only the worker knows."""
    if report.timing is None:
        return report
    timing = msgspec.structs.replace(report.timing, waited_s=waited_s, bytes_in=bytes_in, memory_bytes=memory_bytes())
    return msgspec.structs.replace(report, timing=timing)


def work_of(stage: Stage, store_url: str, limits: Limits) -> Work:
    """The work of a stage, the same in all epochs."""
    packed: bytes = cloudpickle.dumps(stage)  # type: ignore[no-untyped-call]
    return Work(packed, hashlib.sha256(packed).hexdigest(), store_url, limits)
