"""What Structured Streaming does between two micro-batches, as its query tells."""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from penstock.protocol.silence import SourceState
from penstock.text import printable, redacted

INITIALIZING = "Initializing sources"


def state_of(query: StreamingQuery, context: SparkContext) -> SourceState | None:
    """What has to get on before there can be a micro-batch, asked while no handler has one; None after the end.

    Spark has no event for a question that gets no answer. A trigger that is active without a handler asks a source for
    its offsets, plans, or writes its log; its message says which. Spark makes a new status for each of these, also in
    the same words, so it is the object that tells one question from the next.
    """
    status = query._jsq.status()  # noqa: SLF001 - what pyspark makes of it is a copy
    if not query.isActive:
        return None
    message = str(status.message())
    if not status.isTriggerActive() and message != INITIALIZING:
        return SourceState(None)
    jvm = context._jvm  # noqa: SLF001
    assert jvm is not None
    object_id = int(jvm.java.lang.System.identityHashCode(status))
    return SourceState(f"Spark says {printable(redacted(message))!r}", object_id)
