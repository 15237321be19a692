"""Spark ends a streaming query that has read all available rows in the same way as one that somebody stopped.

Both end without an error, and a stop between two micro-batches leaves none that was begun. But a query that has run out
has planned once more and found nothing, and Spark keeps that answer for its own tests. Where sources do not support
``availableNow``, Spark reads one micro-batch and does not look for more: then nothing can be told.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from contextlib import suppress

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery

READS_ALL = "MultiBatchExecutor"


def stopped_early(query: StreamingQuery) -> bool:
    """Whether a query with ``availableNow`` ended before it had found that no rows are left; False if nobody knows."""
    with suppress(Py4JError, AttributeError, TypeError):
        execution = query._jsq.streamingQuery()  # noqa: SLF001 - PySpark has no question for it
        executor = str(execution.triggerExecutor().getClass().getName())
        return executor.endswith(READS_ALL) and not bool(execution.noNewData())
    return False
