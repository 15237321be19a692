"""Sources: a streaming DataFrame of Spark as the beginning of a stream, with its event time."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.checks import check_columns, names_of
from penstock.api.combine import micros
from penstock.api.stream import Stream
from penstock.errors import PipelineError
from penstock.graph.nodes import SourceNode, SparkPlace
from penstock.operators.columns import require_column
from penstock.plain import plain_errors
from penstock.protocol.eventtime import SourceTime
from penstock.spark.installed import require_classic, require_pyspark
from penstock.text import did_you_mean
from penstock.units import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@plain_errors
def read(
    frame: DataFrame,
    *,
    name: str = "source",
    event_time: str | None = None,
    watermark: Duration | None = None,
    idle: Duration | None = None,
    watermark_by: str | Sequence[str] | None = None,
    from_checkpoint: str | os.PathLike[str] | None = None,
    without_state: bool = False,
) -> Stream:
    """A stream of the rows of a streaming DataFrame. The DataFrame must be deterministic.

    `event_time` names a timestamp column. The watermark stays `watermark` (default 0 s) behind the largest event time
    seen; rows older than the watermark are late. A source that delivered no rows for `idle` no longer holds the
    watermark back.

    `watermark_by` names columns that tell parts of the source apart, such as ``"partition"``. Each part then has a
    watermark of its own, and the source is as far as the slowest part. A part that delivered no rows for `idle` (one
    minute unless given) does not count. A frame of Spark's Kafka source that keeps the columns ``partition`` and
    ``topic`` has it by default; ``watermark_by=()`` switches that off.

    `from_checkpoint` is the checkpoint of a query of Structured Streaming that has read the same source so far: the
    stream begins where that query ended. ``"folder@1"`` or ``"folder@orders"`` names one of several sources of it. It
    counts only when the source is read for the first time. State of that query is not taken; if it has some,
    `without_state` says that you know.

    Raises: `PipelineError`, `ConfigError`.
    """
    require_classic(frame)
    require_pyspark()
    from penstock.spark.schemas import frame_schema

    if not hasattr(frame, "isStreaming"):
        raise PipelineError(
            f"read() got {type(frame).__name__} {frame!r:.100}",
            cause="a stream begins with a streaming DataFrame of Spark",
            next_step='write for example pen.read(spark.readStream.schema("id bigint").parquet("in/"))',
        )
    if not frame.isStreaming:
        raise PipelineError(
            f"{name} is not a streaming DataFrame",
            cause="it was read with spark.read",
            next_step="read it with spark.readStream (trigger='available_now' ends when everything was read)",
        )
    schema = frame_schema(frame)
    check_columns(schema, f"source {name}")
    node = source_node(name, schema, frame, event_time=event_time, watermark=watermark, idle=idle)
    if from_checkpoint is not None:
        node = dataclasses.replace(node, begin=SparkPlace(os.fspath(from_checkpoint), without_state))
    if watermark_by is None:
        return Stream(_by_partition(node, frame))
    return Stream(with_parts(node, names_of(watermark_by)))


def _by_partition(node: SourceNode, frame: DataFrame) -> SourceNode:
    """Kafka's partitions run apart, and Spark reads a topic that has grown from all ends at once."""
    from penstock.spark.quirks.kafkaframes import partition_columns

    columns = partition_columns(frame) if node.time is not None else ()
    return dataclasses.replace(with_parts(node, columns), by_default=True) if columns else node


def with_parts(node: SourceNode, columns: Sequence[str]) -> SourceNode:
    """The source with a watermark for each of its parts.

    Raises: `PipelineError`.
    """
    if not columns:
        return node
    if node.time is None:
        raise PipelineError(
            f"source {node.name} has watermark_by={list(columns)}, but no event time",
            cause="a watermark is made of a column of event times",
            next_step='add event_time="…"',
        )
    for column in columns:
        require_column(f"source {node.name}", node.schema, column, "watermark_by")
        kind = node.schema.field(column).type
        if not (pt.is_integer(kind) or pt.is_string(kind) or pt.is_large_string(kind)):
            raise PipelineError(
                f"watermark_by={column!r} of source {node.name} is {kind}",
                cause="parts of a source are told apart by numbers or text",
                next_step="name the column of its partitions, or cast one with selectExpr before Penstock",
                column=column,
            )
    time = dataclasses.replace(node.time, by_part=True)
    return dataclasses.replace(node, time=time, watermark_by=tuple(columns))


def source_node(
    name: str,
    schema: pa.Schema,
    frame: object,
    *,
    event_time: str | None = None,
    watermark: Duration | None = None,
    idle: Duration | None = None,
    watermark_by: str | Sequence[str] = (),
) -> SourceNode:
    """Raises: `PipelineError`, `ConfigError`."""
    if watermark_by:
        node = source_node(name, schema, frame, event_time=event_time, watermark=watermark, idle=idle)
        return with_parts(node, names_of(watermark_by))
    if event_time is None:
        if watermark is not None or idle is not None:
            raise PipelineError(
                f"source {name} has a watermark or idle time, but no event time",
                cause="both are about a column of event times",
                next_step='add event_time="…"',
            )
        return SourceNode(name, schema, frame)
    if event_time not in schema.names or not pt.is_timestamp(schema.field(event_time).type):
        found = f"does not exist{did_you_mean(event_time, schema.names)}"
        if event_time in schema.names:
            found = f"is {schema.field(event_time).type}"
        raise PipelineError(
            f"event time column {event_time!r} of source {name} {found}; columns are {', '.join(schema.names)}",
            cause="event time is a timestamp column of the source",
            next_step="name a timestamp column, or cast one with selectExpr before Penstock",
            column=event_time,
        )
    delay_us = micros(0 if watermark is None else watermark, "watermark")
    idle_us = None if idle is None else micros(idle, "idle")
    return SourceNode(name, schema, frame, event_time, SourceTime(delay_us, idle_us))
