"""Spark refuses to start a streaming query that has the name of an active one in the same session.

Two Penstock queries may have one name: it is for logs, and the folder's name unless the user gives one. So the later
query gets a number in Spark: ``totals``, ``totals-2``.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def start_named(writer: DataStreamWriter, name: str, session: SparkSession) -> StreamingQuery:
    """Starts the streaming query under the first name that is free. Raises: what Spark raises."""
    while True:
        free = free_name(name, _active_names(session))
        try:
            return writer.queryName(free).start()
        except IllegalArgumentException:
            if free not in _active_names(session):  # else another thread has taken it just now
                raise


def free_name(name: str, taken: Collection[str]) -> str:
    """
    >>> free_name("totals", []), free_name("totals", ["totals", "totals-2"])
    ('totals', 'totals-3')
    """
    numbered = (f"{name}-{number}" for number in itertools.count(2))
    return next(free for free in itertools.chain([name], numbered) if free not in taken)


def _active_names(session: SparkSession) -> set[str]:
    return {query.name for query in session.streams.active}
