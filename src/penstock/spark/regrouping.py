"""Savepoints for another number of key groups as a Spark job: one task for each segment, and for parts of state."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.engine.regrouping import RegroupWork
from penstock.errors import PenstockError
from penstock.protocol.report import ErrorReport
from penstock.records import Regrouped, RegroupTask
from penstock.store import open_store
from penstock.subtask.regroup import regroup


def regroup_on_spark(spark: SparkSession, work: RegroupWork) -> list[Regrouped]:
    """Raises: as `regroup`."""
    if not work.tasks:
        return []
    run = _one(work.origin.url, work.target.url)
    made = []
    for one in spark.sparkContext.parallelize(list(work.tasks), len(work.tasks)).map(run).collect():
        if isinstance(one, ErrorReport):
            raise PenstockError.from_report(one)
        made.append(one)
    return made


def _one(origin: str, target: str) -> Callable[[RegroupTask], Regrouped | ErrorReport]:
    def run(task: RegroupTask) -> Regrouped | ErrorReport:
        try:
            return regroup(task, open_store(origin), open_store(target))
        except PenstockError as error:
            return error.to_report()

    return run
