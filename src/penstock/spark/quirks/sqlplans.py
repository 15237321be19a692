"""PySpark does not show what Spark has understood of SQL text: the analysed plan is in the JVM alone.

Whether an expression makes one row of several, or gives another result each time, is told by nodes of that plan.

Seen in Spark 4.3.0.
"""

from __future__ import annotations

from pyspark.sql import DataFrame


def root_of(frame: DataFrame) -> str:
    """The plan's first node below its projections."""
    node = frame._jdf.queryExecution().analyzed()  # noqa: SLF001
    while node.nodeName() == "Project":
        node = node.children().apply(0)
    return str(node.nodeName())


def is_deterministic(frame: DataFrame) -> bool:
    """Whether Spark gets the same rows when it computes them again."""
    return bool(frame._jdf.queryExecution().analyzed().deterministic())  # noqa: SLF001
