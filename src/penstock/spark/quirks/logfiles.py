"""Spark runs shell commands for each file that it writes to the log of a streaming query on a local disk.

That takes 25 ms more per file than it needs to, and each micro-batch has three files. Another of Spark's own classes
writes them mostly with system calls; two `chmod` per file are left. Both classes look whether the file exists and then
rename a temporary one.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
QUICK = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


class QuickLogFiles:
    """Sets the class in the user's session from the start of a streaming query until its sources exist.

    The sources read the setting from that session. A class that the user chose stays.
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
