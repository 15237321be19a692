"""Penstock: exactly-once stateful streaming on PySpark that keeps checkpointing under backpressure and while it
recovers."""

from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.operators.aggregates import count, first, last, max, mean, min, sum  # noqa: A004
from penstock.operators.connect import ConnectProcess
from penstock.operators.declare import broadcast_map, value
from penstock.operators.process import KeyedProcess
from penstock.pipeline import BroadcastStream, KeyedStream, Output, Stream, read, start
from penstock.sinks.discard import Discard
from penstock.sinks.paimon import Paimon

if TYPE_CHECKING:
    from penstock.engine.query import Query
    from penstock.spark.session import session, spark_conf

__version__ = "0.1.0"

__all__ = [
    "BroadcastStream",
    "ConnectProcess",
    "Discard",
    "KeyedProcess",
    "KeyedStream",
    "Output",
    "Paimon",
    "PenstockError",
    "Query",
    "Stream",
    "broadcast_map",
    "count",
    "first",
    "last",
    "max",
    "mean",
    "min",
    "read",
    "session",
    "spark_conf",
    "start",
    "sum",
    "value",
]


def __getattr__(name: str) -> Any:
    """Spark is imported only by those who use it: subtasks and tools that read checkpoints do not."""
    if name in ("session", "spark_conf"):
        from penstock.spark import session as module

        return getattr(module, name)
    if name == "Query":
        from penstock.engine.query import Query

        return Query
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
