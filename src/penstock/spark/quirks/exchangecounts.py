"""Spark counts the rows of every exchange, but has no Python interface to the counts of a running query.

It keeps both counts with the exchange in the executed plan, whether they are read or not: rows that the map side wrote
to the shuffle, and rows that the other side read. They are added up in the driver before a job ends. So they are read
from the plan inside the JVM. Where a plan looks different, counts are not read and a warning says so.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

WRITTEN, READ = "shuffleRecordsWritten", "recordsRead"
_DEPTH_MAX = 20
"""Our exchange is a few nodes below the root; the user's own are below it."""

log = logging.getLogger("penstock.spark")


def executed_plan(frame: DataFrame) -> Any:
    """The plan by which Spark runs a DataFrame."""
    return frame._jdf.queryExecution().executedPlan()  # noqa: SLF001


def executed_stream_plan(spark: SparkSession, query_id: str | None) -> Any:
    """The plan by which Spark runs the current micro-batch of a streaming query; None when there is no such query."""
    query = spark._jsparkSession.streams().get(query_id)  # noqa: SLF001
    return None if query is None else query.streamingQuery().lastExecution().executedPlan()


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
