"""Spark keeps one set of Python workers for SQL jobs and another one for plain jobs.

It tells workers apart by their environment variables, and those of SQL get one that those of plain jobs do not have.
Two sets would double the memory. The first job of the other kind may come after hours, and would wait a second or more
until its workers have imported what they need. So plain jobs get the same variable, and share the workers of SQL.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pyspark import RDD, SparkContext
from pyspark.sql import SparkSession

SETTING = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
VARIABLE = "SPARK_SIMPLIFIED_TRACEBACK"

T = TypeVar("T")


def in_workers_of_sql(job: RDD[T], spark: SparkSession) -> RDD[T]:
    """The same plain job in the workers of SQL; it must not have been started yet."""
    if spark.conf.get(SETTING, "true") == "true":
        job.ctx = cast("SparkContext", _WithVariables(spark.sparkContext, {VARIABLE: "1"}))
    return job


class _WithVariables:
    """A SparkContext whose jobs have further environment variables.

    The variables of the context itself are left alone: other threads start jobs with them meanwhile.
    """

    def __init__(self, context: SparkContext, variables: dict[str, str]) -> None:
        self._context = context
        self.environment = {**context.environment, **variables}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
