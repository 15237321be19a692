"""One set of Python workers for all jobs of a query.

Spark keeps workers apart by their environment variables, and gives those of SQL one that those of plain jobs do not
have. A worker of its own for each kind would double the memory, and the first job of the other kind, which may come
after hours, would wait a second or more until its workers have imported what they need.
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
