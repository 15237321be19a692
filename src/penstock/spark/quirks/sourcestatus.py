"""Spark has no event for a source that was asked for new rows and does not answer.

A trigger that is active while no handler has a micro-batch asks a source for its offsets, plans, or writes its log. The
status of the streaming query says which. Spark makes a new status object for each of these, also in the same words, so
the object tells one question from the next. PySpark hands out a copy, so the object is looked at in the JVM.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from penstock.protocol.silence import SourceState
from penstock.text import printable, redacted

INITIALIZING, OFFSETS = "Initializing sources", "Getting offsets"


def state_of(query: StreamingQuery, context: SparkContext) -> SourceState | None:
    """What has to get on before there can be a micro-batch, asked while no handler has one; None after the end."""
    status = query._jsq.status()  # noqa: SLF001
    if not query.isActive:
        return None
    message = str(status.message())
    if not status.isTriggerActive() and message != INITIALIZING:
        return SourceState(None)
    jvm = context._jvm  # noqa: SLF001
    assert jvm is not None
    object_id = int(jvm.java.lang.System.identityHashCode(status))
    to_source = message.startswith((INITIALIZING, OFFSETS))
    return SourceState(f"Spark says {printable(redacted(message))!r}", object_id, to_source)
