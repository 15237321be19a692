"""PySpark logs every SQL text that Spark refuses, with a hundred lines of Java, before it raises the same as an error.

Where the error becomes a message of ours, the log says the same once more, and at greater length.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

LOGGER = "SQLQueryContextLogger"


@contextmanager
def without_query_logs() -> Iterator[None]:
    logger = logging.getLogger(LOGGER)
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
