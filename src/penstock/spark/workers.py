"""One set of Python workers for all jobs of a query.

Spark keeps workers apart by their environment variables, and gives those of SQL one that those of plain jobs do not
have. A worker of its own for each kind would double the memory, and the first job of the other kind, which may come
after hours, would wait a second or more until its workers have imported what they need.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

SETTING = "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled"
VARIABLE = "SPARK_SIMPLIFIED_TRACEBACK"


@contextmanager
def same_workers(spark: SparkSession) -> Iterator[None]:
    """Plain jobs that are made within run in the workers of SQL."""
    variables = spark.sparkContext.environment
    if VARIABLE in variables or spark.conf.get(SETTING, "true") != "true":
        yield
        return
    variables[VARIABLE] = "1"
    try:
        yield
    finally:
        variables.pop(VARIABLE, None)
