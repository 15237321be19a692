"""Spark logs sixty lines of stack traces for a streaming query that ends with an error.

The same error is raised in Python, where the feed waits for the end of its query and tells it. If Python is gone,
because the driver was killed, nobody can do anything about the error. So the JVM does not log it for the queries of
Penstock. Other streaming queries of the application are logged as before. ``PENSTOCK_DEBUG=1`` lets
all be logged.

It also logs an error for a task that was killed while it read a shuffle, as by a second Ctrl-C. Spark's own comment
there calls that expected. Its text ends with ``null``. A shuffle that cannot be read is logged in other words, and
still is.

Seen in Spark 4.3.0, with log4j 2. Where the log is made differently, it stays as it is.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

DEBUG = "PENSTOCK_DEBUG"
KILLED = "Error occurred while fetching local blocks, null"
"""For a thread that was interrupted, which only the kill of its task does."""


class QuietEnd:
    """Keeps one streaming query's last words out of the log, until `restore`."""

    def __init__(self, context: SparkContext, query: StreamingQuery) -> None:
        self._settings: Any = None
        self._filters: list[Any] = []
        if not os.environ.get(DEBUG):
            with suppress(Py4JError, AttributeError, TypeError):
                self._add(context, f"[id = {query.id}, runId = {query.runId}] terminated with error")
                self._add(context, KILLED)

    def restore(self) -> None:
        """The JVM may be gone."""
        filters, self._filters = self._filters, []
        for added in filters:
            with suppress(Exception):
                self._settings.removeFilter(added)

    def _add(self, context: SparkContext, text: str) -> None:
        jvm = context._jvm  # noqa: SLF001 - the log belongs to the JVM
        assert jvm is not None
        log4j = jvm.org.apache.logging.log4j
        results = getattr(log4j.core, "Filter$Result")
        builder = log4j.core.filter.StringMatchFilter.newBuilder()
        builder.setMatchString(text)
        builder.setOnMatch(results.valueOf("DENY"))
        builder.setOnMismatch(results.valueOf("NEUTRAL"))
        self._settings = log4j.LogManager.getContext(False).getConfiguration()
        added = builder.build()
        self._settings.addFilter(added)
        self._filters.append(added)
