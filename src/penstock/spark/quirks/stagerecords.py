"""The status tracker of PySpark does not tell how many records a running stage has handled.

A task that gets on slowly looks like one that hangs, then. Spark's status store has the number: read and shuffled
records. Executors update it every few seconds.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext


def records_of(context: SparkContext, stage: int) -> int:
    """Records that one of Spark's stages has read and shuffled so far."""
    seen: Any = context._jsc.sc().statusStore().lastStageAttempt(stage)  # noqa: SLF001
    return int(seen.inputRecords() + seen.shuffleReadRecords() + seen.shuffleWriteRecords())
