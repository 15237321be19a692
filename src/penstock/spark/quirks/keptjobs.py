"""PySpark makes a plain job anew each time: it pickles the function, writes the rows to a file, opens two sockets.

That is some thirty calls into the JVM, and more time than a short job itself takes. A job that is the same each time is
kept here instead, and run as it stands. What differs from run to run travels in the properties of the job.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from penstock.spark.quirks.workerpool import in_workers_of_sql


class KeptJob:
    """A plain job of some tasks; task k answers with `function(k)`."""

    def __init__(self, spark: SparkSession, function: Callable[[int], bytes], tasks: int) -> None:
        self._tasks = tasks
        job = in_workers_of_sql(spark.sparkContext.parallelize(range(tasks), tasks).map(function), spark)
        job._bypass_serializer = True  # type: ignore[attr-defined]  # noqa: SLF001 - answers are bytes, and stay so
        self._rows = job._jrdd  # noqa: SLF001 - no public way to run an RDD without a socket

    def run(self) -> list[bytes]:
        """The answers of all tasks, each fetched by a call into the JVM.

        By number: a loop over a Java list ends with a Java exception, and PySpark asks the JVM some seventy times what
        kind of exception that is.
        """
        answers = self._rows.collect()
        return [bytes(answers.get(task)) for task in range(self._tasks)]
