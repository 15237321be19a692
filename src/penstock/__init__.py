"""Penstock: exactly-once stateful streaming on PySpark that keeps checkpointing under backpressure and while it
recovers."""

from typing import TYPE_CHECKING, Any

from penstock import events, sinks
from penstock.api.deprecated import RENAMED, warn_renamed
from penstock.api.read import read
from penstock.api.stream import BroadcastStream, KeyedStream, Output, Stream, WindowedStream, start
from penstock.errors import PenstockError
from penstock.observe.tables.opened import open_folder as open  # noqa: A004
from penstock.operators.aggregate.functions import (
    approx_count_distinct,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004
    mean,
    min,  # noqa: A004
    quantiles,
    stddev,
    stddev_pop,
    sum,  # noqa: A004
    var_pop,
    variance,
)
from penstock.operators.aggregate.user_aggregate import UserAggregate
from penstock.operators.calls.event_loop import AsyncFunction
from penstock.operators.process.batch_process import BatchProcess
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.process.declare import broadcast_map, list_state, map_state, value_state
from penstock.operators.process.process import KeyedProcess
from penstock.operators.window.windows import session_window, sliding_window, tumbling_window
from penstock.sinks.discard import Discard
from penstock.sinks.listeners import CommitInfo, CommitListener
from penstock.sinks.partition_done import PartitionDone
from penstock.sinks.upkeep import Upkeep
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.engine.dryrun import Plan
    from penstock.engine.query import Query
    from penstock.sinks.delta.sink import Delta
    from penstock.sinks.iceberg.sink import Iceberg
    from penstock.sinks.paimon.sink import Paimon
    from penstock.spark.data_source import register
    from penstock.spark.session import session, spark_conf

__version__ = VERSION

__all__ = [
    "AsyncFunction",
    "BatchProcess",
    "BroadcastStream",
    "CommitInfo",
    "CommitListener",
    "ConnectProcess",
    "Delta",
    "Discard",
    "Iceberg",
    "KeyedProcess",
    "KeyedStream",
    "Output",
    "Paimon",
    "PartitionDone",
    "PenstockError",
    "Plan",
    "Query",
    "Stream",
    "Upkeep",
    "UserAggregate",
    "WindowedStream",
    "approx_count_distinct",
    "broadcast_map",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "events",
    "first",
    "last",
    "list_state",
    "map_state",
    "max",
    "mean",
    "min",
    "open",
    "quantiles",
    "read",
    "register",
    "session",
    "session_window",
    "sinks",
    "sliding_window",
    "spark_conf",
    "start",
    "stddev",
    "stddev_pop",
    "sum",
    "tumbling_window",
    "value_state",
    "var_pop",
    "variance",
]


def _resolved(name: str) -> Any:
    """Imports Spark and table libraries when a name needs them: subtasks and tools that only read checkpoints never
    do."""
    if name in ("session", "spark_conf"):
        from penstock.spark import session as module

        return getattr(module, name)
    if name == "register":
        from penstock.spark.data_source import register

        return register
    if name == "Delta":
        from penstock.sinks.delta.sink import Delta

        return Delta
    if name == "Iceberg":
        from penstock.sinks.iceberg.sink import Iceberg

        return Iceberg
    if name == "Paimon":
        from penstock.sinks.paimon.sink import Paimon

        return Paimon
    if name == "Query":
        from penstock.engine.query import Query

        return Query
    if name == "Plan":
        from penstock.engine.dryrun import Plan

        return Plan
    if name in RENAMED:
        warn_renamed(f"penstock.{name}", f"penstock.{RENAMED[name]}")
        return globals()[RENAMED[name]]
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


if not TYPE_CHECKING:  # a type checker would otherwise accept any name, a misspelt one too
    __getattr__ = _resolved
