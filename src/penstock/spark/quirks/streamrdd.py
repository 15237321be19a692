"""`DataFrame.collect` plans a micro-batch once more, though the stream's plan has all that is needed.

The DataFrame that a handler gets is nothing but the RDD of the stream's own plan. `collect` analyses, plans and
describes that again and sends the rows through a socket: some 10 ms of every epoch. So the RDD is taken out of the
DataFrame and run as it stands.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

FETCHED_MAX = 16
"""Rows are fetched one by one, two calls into the JVM each, while `collect` takes some 10 ms for any number.
Where the two meet was not measured; a call takes a fraction of a millisecond."""


def fetched(frame: DataFrame) -> list[bytes]:
    """The first column of the handler's DataFrame, which is binary. Each partition must have one row at most: Spark
    uses the memory of a row again for the next one."""
    rows = frame._jdf.queryExecution().logical().rdd().collect()  # noqa: SLF001 - no public way to the stream's RDD
    return [bytes(row.getBinary(0)) for row in rows]


def partitions_of(frame: DataFrame) -> int:
    """How many partitions the stream's own plan gave to the handler's DataFrame."""
    return int(frame._jdf.queryExecution().logical().rdd().getNumPartitions())  # noqa: SLF001
