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

WRITTEN, READ = "shuffleRecordsWritten", "recordsRead"
_DEPTH_MAX = 20
"""Our exchange is a few nodes below the root; the user's own are below it."""

log = logging.getLogger("penstock.spark")


class ExchangeCounts:
    """The counts of the topmost exchange of a plan; finds its place once, plans of a stage are alike."""

    def __init__(self) -> None:
        self._path: tuple[str, ...] = ()

    def of(self, plan: Any, name: str) -> int | None:
        """Rows written or read so far; None, with a warning, where Spark keeps it differently."""
        try:
            with suppress(Py4JError):  # another place, or none known yet
                return _value_at(plan, self._path, name)
            self._path = _find(plan)
            return _value_at(plan, self._path, name)
        except (Py4JError, AttributeError) as error:  # AttributeError: the plan is null
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
        planned, job = stage in batch.planned_for, (stage, batch.batch_id)
        again, self._last = planned and job == self._last, job

        def rows(name: str) -> int | None:
            return exchange.of(self._plan(batch, reports, planned=planned), name)

        # The stream's own plan is the same when an epoch is tried again, so its counts go on.
        before = rows(READ) if again else 0

        def read() -> int | None:
            now = rows(READ)
            return None if now is None or before is None else now - before

        def count(delivered: int) -> int | None:
            written = rows(WRITTEN)
            if written is None:
                return None
            return handed_over(written, delivered, lambda: again or self._tasks_run_again(), read)

        return count

    def _plan(self, batch: OfferedBatch, reports: DataFrame, *, planned: bool) -> Any:
        if not planned:
            return reports._jdf.queryExecution().executedPlan()  # noqa: SLF001 - no public way to a plan's metrics
        streams = self._spark._jsparkSession.streams()  # noqa: SLF001
        query = streams.get(batch.query_id)
        return None if query is None else query.streamingQuery().lastExecution().executedPlan()

    def _tasks_run_again(self) -> bool:
        return tasks_run_again(self._spark.sparkContext, self._group)


_STEPS: dict[str, Callable[[Any], Any]] = {
    "child": lambda node: node.child(),
    "plan": lambda node: node.plan(),
    "executedPlan": lambda node: node.executedPlan(),
}


def _value_at(plan: Any, path: tuple[str, ...], name: str) -> int:
    for step in path:
        plan = _STEPS[step](plan)
    return int(plan.metrics().apply(name).value())


def _find(plan: Any) -> tuple[str, ...]:
    """The way down to the topmost exchange, or to where none was found."""
    path: list[str] = []
    for _ in range(_DEPTH_MAX):
        if plan.metrics().contains(WRITTEN):
            return tuple(path)
        name = str(plan.nodeName())
        step = "executedPlan" if name == "AdaptiveSparkPlan" else "plan" if "QueryStage" in name else "child"
        if step == "child" and plan.children().size() != 1:
            break
        path.append(step)
        plan = _STEPS[step](plan)
    return tuple(path)


def handed_over(
    written: int, delivered: int, run_again: Callable[[], bool], read: Callable[[], int | None]
) -> int | None:
    """The count that the rows that were delivered have to match. Only a doubt costs more calls into the JVM.

    >>> handed_over(10, 10, lambda: False, lambda: 99), handed_over(14, 10, lambda: False, lambda: 10)
    (10, 14)
    >>> handed_over(14, 10, lambda: True, lambda: 10), handed_over(9, 10, lambda: True, lambda: 10)
    (10, 9)
    """
    return read() if written > delivered and run_again() else written


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
