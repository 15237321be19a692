"""Penstock: exactly-once stateful streaming on PySpark that keeps checkpointing under backpressure and while it
recovers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock import events, sinks
from penstock.api.deprecated import RENAMED, warn_renamed
from penstock.api.keyed import KeyedStream
from penstock.api.outputs import Output, start
from penstock.api.read import read
from penstock.api.rehearse import rehearse
from penstock.api.savepoint import savepoint
from penstock.api.stream import BroadcastStream, Stream
from penstock.api.windowed import WindowedStream
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
from penstock.sinks.foreach import ForeachEpoch
from penstock.sinks.listeners import CommitInfo, CommitListener
from penstock.sinks.partition_done import PartitionDone
from penstock.sinks.upkeep import Upkeep
from penstock.spark.installed import require_pyspark
from penstock.version import VERSION

if TYPE_CHECKING:
    from penstock.engine.dryrun import Plan
    from penstock.engine.query import Query
    from penstock.engine.rehearsal import Rehearsal
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
    "ForeachEpoch",
    "Iceberg",
    "KeyedProcess",
    "KeyedStream",
    "Output",
    "Paimon",
    "PartitionDone",
    "PenstockError",
    "Plan",
    "Query",
    "Rehearsal",
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
    "rehearse",
    "session",
    "session_window",
    "sinks",
    "sliding_window",
    "spark_conf",
    "savepoint",
    "start",
    "stddev",
    "stddev_pop",
    "sum",
    "tumbling_window",
    "value_state",
    "var_pop",
    "variance",
]


_LATER = {
    "Delta": "penstock.sinks.delta.sink",
    "Iceberg": "penstock.sinks.iceberg.sink",
    "Paimon": "penstock.sinks.paimon.sink",
    "Plan": "penstock.engine.dryrun",
    "Query": "penstock.engine.query",
    "Rehearsal": "penstock.engine.rehearsal",
    "register": "penstock.spark.data_source",
    "session": "penstock.spark.session",
    "spark_conf": "penstock.spark.session",
}
"""Names that import Spark and table libraries: subtasks and tools that only read checkpoints never need them."""


def _resolved(name: str) -> Any:
    if name in _LATER:
        if _LATER[name].startswith("penstock.spark."):
            require_pyspark()
        return getattr(import_module(_LATER[name]), name)
    if name in RENAMED:
        warn_renamed(f"penstock.{name}", f"penstock.{RENAMED[name]}")
        return globals()[RENAMED[name]]
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


if not TYPE_CHECKING:  # a type checker would otherwise accept any name, a misspelt one too
    __getattr__ = _resolved
