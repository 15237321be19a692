"""Spark logs errors for a streaming query that is stopped while it plans a micro-batch.

A query that is planning will have the micro-batch in its handler soon, and one that has nothing to read is not
planning. So the stop waits a moment for one of the two.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import threading
import time

from pyspark.sql.streaming.query import StreamingQuery

PLANNING_S_MAX = 2.0
"""A source that takes longer to say what it has is interrupted."""
STATUS_EVERY_S = 0.02


def stop_quietly(query: StreamingQuery, parked: threading.Event) -> None:
    """Stops the query; `parked` is set once its handler does nothing but wait for the end."""
    deadline = time.monotonic() + PLANNING_S_MAX
    while not parked.is_set() and time.monotonic() < deadline and query.status["isTriggerActive"]:
        parked.wait(STATUS_EVERY_S)
    query.stop()
