"""How many live rows Spark itself counted: what the map side wrote to the shuffle, and what the other side read.

Spark keeps both with the exchange, whether anybody asks or not, and adds them up in the driver before a job ends. None
of our Python takes part in it. What result tasks read counts once for each partition. What map tasks wrote counts once
more when Spark runs a map task again: then it tells nothing, and the other count stands alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from penstock.engine.cluster import OfferedBatch

_WRITTEN, _READ = "shuffleRecordsWritten", "recordsRead"
_DEPTH_MAX = 20
"""Our exchange is a few nodes below the root; the user's own are below it."""

log = logging.getLogger("penstock.spark")


class ExchangeCounts:
    """The counts of the topmost exchange of a plan; finds its place once, plans of a stage are alike."""

    def __init__(self) -> None:
        self._path: tuple[str, ...] = ()

    def of(self, plan: Any) -> tuple[int, int] | None:
        """Rows written and rows read so far; None where there is no exchange, or Spark keeps it differently."""
        try:
            with suppress(Py4JError):  # another place, or none known yet
                return _values(_metrics_at(plan, self._path))
            found = _find(plan)
            if found is None:
                return None
            self._path = found
            return _values(_metrics_at(plan, found))
        except Py4JError as error:
            log.warning("Spark's own count of rows cannot be read, so only Penstock's is checked: %s", error)
            return None


class JobCounts:
    """Spark's count of the live rows of one job after another."""

    def __init__(self, spark: SparkSession, group: str) -> None:
        self._spark, self._group = spark, group
        self._exchanges: dict[str, ExchangeCounts] = {}
        self._last: tuple[str, int] | None = None

    def begin(self, stage: str, batch: OfferedBatch, reports: DataFrame) -> Callable[[int], int | None]:
        """Before the job that makes `reports`. Afterwards the result tells from the number of rows that were delivered
        how many have to be, or None where Spark does not tell."""
        exchange = self._exchanges.setdefault(stage, ExchangeCounts())
        planned, job = stage in batch.planned_for, (stage, int(batch.batch_id))
        again, self._last = planned and job == self._last, job
        # The stream's own plan is the same when an epoch is tried again, so its counts go on.
        before = exchange.of(self._plan(batch, reports, planned=planned)) if again else None

        def count(delivered: int) -> int | None:
            found = exchange.of(self._plan(batch, reports, planned=planned))
            if found is None:
                return None
            written, read = found[0], found[1] - (0 if before is None else before[1])
            return handed_over(written, read, delivered, lambda: again or self._tasks_run_again())

        return count

    def _plan(self, batch: OfferedBatch, reports: DataFrame, *, planned: bool) -> Any:
        if not planned:
            return reports._jdf.queryExecution().executedPlan()  # noqa: SLF001 - no public way to a plan's metrics
        streams = self._spark._jsparkSession.streams()  # noqa: SLF001
        return streams.get(batch.query_id).streamingQuery().lastExecution().executedPlan()

    def _tasks_run_again(self) -> bool:
        return tasks_run_again(self._spark.sparkContext, self._group)


_STEPS: dict[str, Callable[[Any], Any]] = {
    "child": lambda node: node.child(),
    "plan": lambda node: node.plan(),
    "executedPlan": lambda node: node.executedPlan(),
}


def _metrics_at(plan: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        plan = _STEPS[step](plan)
    return plan.metrics()


def _values(metrics: Any) -> tuple[int, int]:
    return int(metrics.apply(_WRITTEN).value()), int(metrics.apply(_READ).value())


def _find(plan: Any) -> tuple[str, ...] | None:
    path: list[str] = []
    for _ in range(_DEPTH_MAX):
        if plan.metrics().contains(_WRITTEN):
            return tuple(path)
        name = str(plan.nodeName())
        step = "executedPlan" if name == "AdaptiveSparkPlan" else "plan" if "QueryStage" in name else "child"
        if step == "child" and plan.children().size() != 1:
            break
        path.append(step)
        plan = _STEPS[step](plan)
    return None


def handed_over(written: int, read: int, delivered: int, run_again: Callable[[], bool]) -> int:
    """The count that the rows that were delivered have to match.

    >>> handed_over(10, 10, 10, lambda: False), handed_over(10, 9, 10, lambda: False)
    (10, 9)
    >>> handed_over(14, 10, 10, lambda: True), handed_over(14, 10, 10, lambda: False)
    (10, 14)
    >>> handed_over(9, 10, 10, lambda: True)
    9
    """
    if read != delivered or (written > delivered and run_again()):
        return read
    return written


def tasks_run_again(context: SparkContext, group: str) -> bool:
    """Whether Spark ran tasks of the group's last job more than once, or stages of it."""
    with suppress(Py4JError):  # what it knows may lag behind what has happened
        context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - no public way
    tracker = context.statusTracker()
    job = tracker.getJobInfo(max(tracker.getJobIdsForGroup(group), default=-1))
    stages = [] if job is None else [tracker.getStageInfo(stage) for stage in job.stageIds]
    return any(
        stage.currentAttemptId > 0 or stage.numFailedTasks > 0 or stage.numCompletedTasks > stage.numTasks
        for stage in stages
        if stage is not None
    )
