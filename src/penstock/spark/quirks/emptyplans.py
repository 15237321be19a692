"""Spark runs no task at all where it can prove that there are no rows.

A stage job then gives no report, as if all reports had been lost. The driver has to tell the two apart, and to run the
subtasks in another way.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark.sql import DataFrame


def proved_empty(reports: DataFrame) -> bool:
    """Whether Spark had no task to run for reports that were planned with the stream."""
    return reports.rdd.getNumPartitions() == 0


def without_rows(rows: DataFrame) -> bool:
    """Whether a micro-batch has no rows, so that Spark may have proved it."""
    return rows.isEmpty()
