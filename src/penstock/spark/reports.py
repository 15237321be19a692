"""Reports of a micro-batch whose job was planned with the stream: the job is run as it stands.

The handler's DataFrame is nothing but the RDD of the stream's own plan. `DataFrame.collect` would analyse, plan and
describe that once more and send the rows through a socket: some 10 ms of every epoch. What Spark SQL does around a job
is then up to us: tasks find the session's settings in the properties of their job.
"""

from __future__ import annotations

import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

FETCHED_MAX = 16
"""Reports are fetched one by one, two calls into the JVM each, while `collect` takes some 10 ms for any number.
Where the two meet was not measured; a call takes a fraction of a millisecond."""


class PlannedReports:
    """Collects reports of jobs with `subtasks` tasks."""

    def __init__(self) -> None:
        self._session: Any = None
        self._thread = 0
        self._sent: frozenset[str] = frozenset()

    def collect(self, frame: DataFrame, subtasks: int) -> list[bytes]:
        if subtasks > FETCHED_MAX:
            return all_reports(frame)
        self._send_settings(frame.sparkSession)
        # A task makes one row, so it does not matter that Spark uses the memory of a row again for the next one.
        rows = frame._jdf.queryExecution().logical().rdd().collect()  # noqa: SLF001 - no public way to the stream's RDD
        return [bytes(row.getBinary(0)) for row in rows]

    def _send_settings(self, session: SparkSession) -> None:
        """As properties of all further jobs of this thread; each streaming query has a session of its own."""
        own = session._jsparkSession  # noqa: SLF001
        thread = threading.get_ident()
        if thread == self._thread and self._session is not None and self._session.equals(own):
            return
        settings = {name: value for name, value in session.conf.getAll.items() if name.startswith("spark")}
        for name, value in {**dict.fromkeys(self._sent), **settings}.items():
            session.sparkContext.setLocalProperty(name, value)  # type: ignore[arg-type]  # None takes it back
        self._session, self._thread, self._sent = own, thread, frozenset(settings)


def all_reports(frame: DataFrame) -> list[bytes]:
    """The reports that the job of a DataFrame makes."""
    return [bytes(row[0]) for row in frame.collect()]
