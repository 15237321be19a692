"""Migrations as Spark jobs: one task for each part of a table of state."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.engine.migrating import MigrationWork
from penstock.errors import PenstockError, StageFailed
from penstock.protocol.report import ErrorReport
from penstock.records import MigratedPart, Migration, MigrationTask
from penstock.store import open_store
from penstock.subtask.migrate import migrate_part


def on_spark(spark: SparkSession, work: MigrationWork) -> list[MigratedPart]:
    """Raises: `MigrationFailed`, `StageFailed`, and what storage raises."""
    if not work.tasks:
        return []
    context = spark.sparkContext
    run = _part(work.function, work.origin.url, work.target.url)
    context.setJobDescription(f"migrate {work.tasks[0].table}")
    try:
        found = context.parallelize(list(work.tasks), len(work.tasks)).map(run).collect()
    except Exception as error:
        raise StageFailed(
            f"migrating {work.tasks[0].table}: {type(error).__name__}: {str(error).strip().splitlines()[0][:500]}",
            cause="executors or Python workers were lost, or the function needs more memory than a worker has",
            next_step="look at the Spark log; nothing was changed, start again to try again",
        ) from error
    finally:
        context.setJobDescription(None)  # type: ignore[arg-type]
    parts = []
    for one in found:
        if isinstance(one, ErrorReport):
            raise PenstockError.from_report(one)
        parts.append(one)
    return parts


def _part(function: Migration, origin: str, target: str) -> Callable[[MigrationTask], MigratedPart | ErrorReport]:
    def run(task: MigrationTask) -> MigratedPart | ErrorReport:
        try:
            return migrate_part(task, function, open_store(origin), open_store(target))
        except PenstockError as error:  # a failing function fails again: no retry by Spark
            return error.to_report()

    return run
