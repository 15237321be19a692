"""PySpark has no question for whether a session was stopped.

`spark.stop()` in Python leaves a context without its JVM part; a stop inside the JVM, which Spark does on its own after
some failures, leaves it in place. So both are looked at.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark import SparkContext


def is_stopped(context: SparkContext) -> bool:
    """Whether the user or Spark itself stopped the session."""
    inner = context._jsc  # noqa: SLF001
    if inner is None:
        return True
    try:
        return bool(inner.sc().isStopped())
    except Exception:
        return context._jsc is None  # noqa: SLF001
