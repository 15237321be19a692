"""A streaming query that waits for input may outlive its session.

`awaitTermination` then does not return. So the wait is cut into pieces, and the session is looked at between them.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.quirks.stopped import is_stopped

SESSION_CHECK_S = 5


def await_end(query: StreamingQuery, context: SparkContext) -> None:
    """Returns at the end of the streaming query, or of its session.

    Raises: what ended the streaming query, if it was not stopped.
    """
    while not query.awaitTermination(SESSION_CHECK_S) and not is_stopped(context):
        pass
