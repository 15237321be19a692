"""How Spark writes the logs of a streaming query: mostly with system calls, where it would run shell commands."""

from __future__ import annotations

from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
QUICK = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
"""Spark's own choice starts several processes for each file that it writes to a local disk, which takes 25 ms more;
each micro-batch has three such files. Two `chmod` per file are left. Both look whether the file exists and then rename
a temporary one."""


class QuickLogFiles:
    """In force from the start of a streaming query until its sources exist, which take it from the user's session.

    A choice of the user's own stays.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._chosen = False

    def choose(self) -> None:
        if self._session.conf.get(SETTING, None) is None:
            self._session.conf.set(SETTING, QUICK)
            self._chosen = True

    def restore(self) -> None:
        if self._chosen and self._session.conf.get(SETTING, None) == QUICK:
            self._session.conf.unset(SETTING)
        self._chosen = False
