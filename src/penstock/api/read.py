"""Sources: a streaming DataFrame of Spark as the beginning of a stream, with its event time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from penstock.api.checks import check_columns
from penstock.api.combine import micros
from penstock.api.stream import Stream
from penstock.errors import PipelineError
from penstock.graph.nodes import SourceNode
from penstock.protocol.eventtime import SourceTime
from penstock.units import Duration

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def read(
    frame: DataFrame,
    *,
    name: str = "source",
    event_time: str | None = None,
    watermark: Duration | None = None,
    idle: Duration | None = None,
) -> Stream:
    """A stream of the rows of a streaming DataFrame. The DataFrame must be deterministic.

    `event_time` names a timestamp column. The watermark stays `watermark` (default 0 s) behind the largest event time
    seen; rows older than the watermark are late. A source that delivered no rows for `idle` no longer holds the
    watermark back.

    Raises: `PipelineError`, `ConfigError`.
    """
    from penstock.spark.schemas import frame_schema

    if not frame.isStreaming:
        raise PipelineError(
            f"{name} is not a streaming DataFrame",
            cause="it was read with spark.read",
            next_step="read it with spark.readStream (trigger='available_now' ends when everything was read)",
        )
    schema = frame_schema(frame)
    check_columns(schema, f"source {name}")
    return Stream(source_node(name, schema, frame, event_time=event_time, watermark=watermark, idle=idle))


def source_node(
    name: str,
    schema: pa.Schema,
    frame: object,
    *,
    event_time: str | None = None,
    watermark: Duration | None = None,
    idle: Duration | None = None,
) -> SourceNode:
    """Raises: `PipelineError`, `ConfigError`."""
    if event_time is None:
        if watermark is not None or idle is not None:
            raise PipelineError(
                f"source {name} has a watermark or idle time, but no event time",
                cause="both are about a column of event times",
                next_step='add event_time="…"',
            )
        return SourceNode(name, schema, frame)
    if event_time not in schema.names or not pt.is_timestamp(schema.field(event_time).type):
        found = f"is {schema.field(event_time).type}" if event_time in schema.names else "does not exist"
        raise PipelineError(
            f"event time column {event_time!r} of source {name} {found}; columns are {', '.join(schema.names)}",
            cause="event time is a timestamp column of the source",
            next_step="name a timestamp column, or cast one with selectExpr before Penstock",
            column=event_time,
        )
    delay_us = micros(0 if watermark is None else watermark, "watermark")
    idle_us = None if idle is None else micros(idle, "idle")
    return SourceNode(name, schema, frame, event_time, SourceTime(delay_us, idle_us))
