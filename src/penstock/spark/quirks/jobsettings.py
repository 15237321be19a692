"""Tasks find the session's settings in the properties of their job, and only Spark SQL puts them there.

A plain job over the stream's RDD (`streamrdd`) has none, but parsers in its tasks look for them. So the settings are
sent along, as Spark SQL does around its own jobs.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql import SparkSession


class JobSettings:
    """Sends a session's settings as properties of all further jobs of the calling thread, once per session."""

    def __init__(self) -> None:
        self._session: Any = None
        self._thread = 0
        self._sent: frozenset[str] = frozenset()

    def send(self, session: SparkSession) -> None:
        """Each streaming query has a session of its own, whose settings stay as they are once it runs."""
        own = session._jsparkSession  # noqa: SLF001 - sessions are compared in the JVM: Python wraps one many times
        thread = threading.get_ident()
        if thread == self._thread and self._session is not None and self._session.equals(own):
            return
        settings = {name: value for name, value in session.conf.getAll.items() if name.startswith("spark")}
        for name, value in {**dict.fromkeys(self._sent), **settings}.items():
            session.sparkContext.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it back
        self._session, self._thread, self._sent = own, thread, frozenset(settings)
