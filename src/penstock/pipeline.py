"""What users write: streams of Spark DataFrames, operators on them, sinks at their ends.

Nothing runs until `start`. Streams are immutable; each method returns a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from penstock.compiler import (
    Input,
    Node,
    OperatorNode,
    SideNode,
    SinkNode,
    SourceNode,
    check_columns,
    check_keys,
    compile_pipeline,
    event_time_of,
    schema_of,
)
from penstock.config import Config, parse_duration
from penstock.errors import PipelineError
from penstock.operators.aggregate import RunningAggregate
from penstock.operators.aggregates import Aggregate
from penstock.operators.base import OperatorSpec
from penstock.operators.connect import Connect, ConnectInput, ConnectProcess
from penstock.operators.passing import Pass
from penstock.operators.process import KeyedProcess, Process
from penstock.operators.stateless import Filter, FlatMap, MapBatches
from penstock.protocol.eventtime import SourceTime
from penstock.sinks.base import Sink

Duration: TypeAlias = "str | float | timedelta"

if TYPE_CHECKING:
    import os
    from datetime import timedelta

    from pyspark.sql import DataFrame

    from penstock.engine.history import Listener
    from penstock.engine.query import Query
    from penstock.spark.schemas import SchemaLike


def read(
    frame: DataFrame,
    *,
    name: str = "source",
    event_time: str | None = None,
    watermark: Duration | None = None,
    idle: Duration | None = None,
) -> Stream:
    """A stream of the rows of a streaming DataFrame. Whatever came before must be deterministic.

    `event_time` names a timestamp column. The watermark follows the largest event time seen, `watermark` behind it (0 s
    unless given); rows older than it are late. A source without rows for `idle` stops to hold other sources back.

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
    delay_us = _micros(0 if watermark is None else watermark, "watermark")
    idle_us = None if idle is None else _micros(idle, "idle")
    return SourceNode(name, schema, frame, event_time, SourceTime(delay_us, idle_us))


def _micros(duration: Duration, option: str) -> int:
    return round(parse_duration(duration, option) * 1e6)


@dataclass(frozen=True, slots=True)
class Stream:
    """Records without a key."""

    node: Node

    @property
    def schema(self) -> pa.Schema:
        return schema_of(self.node)

    @property
    def event_time(self) -> str | None:
        """The column with the stream's event time, if it still has it."""
        return event_time_of(self.node)

    def side(self, output: str) -> Stream:
        """A side output of the operator that made this stream, by its name.

        Raises: `PipelineError`.
        """
        return Stream(_side_node(self.node, output))

    def broadcast(self) -> BroadcastStream:
        """The stream as an input of which every subtask gets every record."""
        return BroadcastStream(self.node)

    def map_batches(
        self, fn: Callable[[pa.RecordBatch], Any], schema: SchemaLike | None = None, *, name: str | None = None
    ) -> Stream:
        """Calls `fn` with Arrow record batches; it returns one, a table, or several. No `schema`: the same columns."""
        return self._then(
            MapBatches(name or "map_batches", fn, self.schema, _schema(schema) if schema else self.schema), name
        )

    def filter(self, predicate: Any, *, name: str | None = None) -> Stream:
        """Keeps the rows for which `predicate` is true: a function of a batch, or a ``pyarrow.compute`` expression."""
        return self._then(Filter(name or "filter", predicate, self.schema), name)

    def flat_map(
        self, fn: Callable[[dict[str, Any]], Any], schema: SchemaLike | None = None, *, name: str | None = None
    ) -> Stream:
        """Calls `fn` with each row as a dict; it returns any number of rows."""
        return self._then(
            FlatMap(name or "flat_map", fn, self.schema, _schema(schema) if schema else self.schema), name
        )

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """This stream's rows and those of others with the same columns."""
        for other in others:
            if other.schema != self.schema:
                raise PipelineError(
                    f"union of different columns:\n    {self.schema}\n    {other.schema}",
                    cause="all inputs of a union need the same columns in the same order",
                    next_step="select the same columns on each side",
                )
        inputs = tuple(Input(stream.node) for stream in (self, *others))
        return Stream(OperatorNode(Pass(name or "union", self.schema), name is not None, inputs))

    def connect(
        self, *others: BroadcastStream, process: ConnectProcess | type[ConnectProcess], name: str | None = None
    ) -> Stream:
        """User code over this stream and broadcast ones.

        Raises: `PipelineError`.
        """
        return _connected((self, *others), process, name, ())

    def key_by(self, *columns: str) -> KeyedStream:
        """Groups records by key: records of one key are processed in order, by one subtask, with the key's state.

        Raises: `PipelineError` for a column that is missing or cannot be a key.
        """
        return KeyedStream(self.node, check_keys(self.schema, columns))

    def write(self, sink: Sink, *, name: str | None = None) -> Output:
        """Ends the stream in a sink."""
        return Output(SinkNode(name, sink, self.node))

    def _then(self, spec: OperatorSpec, name: str | None) -> Stream:
        check_columns(spec.output_schema, f"operator {spec.name}")
        return Stream(OperatorNode(spec, name is not None, (Input(self.node),)))


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """Records of which every subtask gets every one."""

    node: Node


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """Records with a key."""

    node: Node
    keys: tuple[str, ...]

    def aggregate(self, *, name: str | None = None, **aggregates: Aggregate) -> Stream:
        """Running aggregates per key: one updated row per key that was touched, per epoch.

        Raises: `PipelineError`.
        """
        spec = RunningAggregate(name or "aggregate", schema_of(self.node), self.keys, aggregates)
        return self._then(spec, name)

    def process(self, process: KeyedProcess | type[KeyedProcess], *, name: str | None = None) -> Stream:
        """User code per key, with state.

        Raises: `PipelineError`.
        """
        from penstock.spark.schemas import arrow_type

        spec = Process.declare(name or "process", schema_of(self.node), self.keys, process, resolve=arrow_type)
        return self._then(spec, name)

    def connect(
        self,
        *others: KeyedStream | BroadcastStream,
        process: ConnectProcess | type[ConnectProcess],
        name: str | None = None,
        hold_back: Sequence[str] = (),
    ) -> Stream:
        """User code over this stream, others with keys of the same types, and broadcast ones.

        Inputs named in `hold_back` are read only while the others have nothing to read; checkpoints do not wait.

        Raises: `PipelineError`.
        """
        return _connected((self, *others), process, name, hold_back)

    def _then(self, spec: OperatorSpec, name: str | None) -> Stream:
        check_columns(spec.output_schema, f"operator {spec.name}")
        return Stream(OperatorNode(spec, name is not None, (Input(self.node, self.keys),)))


@dataclass(frozen=True, slots=True)
class Output:
    """A stream that ends in a sink."""

    node: SinkNode

    def start(
        self, checkpoint: str | os.PathLike[str], *, listeners: tuple[Listener, ...] = (), **options: object
    ) -> Query:
        """Starts the query; see `Config` for the options.

        Raises: `PenstockError`.
        """
        return start(self, checkpoint=checkpoint, listeners=listeners, **options)


def start(
    *outputs: Output,
    checkpoint: str | os.PathLike[str],
    listeners: tuple[Listener, ...] = (),
    **options: object,
) -> Query:
    """Starts one query with one or several outputs.

    Raises: `PenstockError`.
    """
    from penstock.spark.launch import launch

    config = Config.of(checkpoint, **options)
    return launch(compile_pipeline([output.node for output in outputs]), config, listeners)


def _connected(
    streams: Sequence[Stream | KeyedStream | BroadcastStream],
    process: ConnectProcess | type[ConnectProcess],
    name: str | None,
    hold_back: Sequence[str],
) -> Stream:
    from penstock.spark.schemas import arrow_type

    inputs = tuple(
        Input(stream.node, getattr(stream, "keys", ()), isinstance(stream, BroadcastStream)) for stream in streams
    )
    parts = tuple(ConnectInput(schema_of(part.node), part.keys, part.broadcast) for part in inputs)
    spec = Connect.declare(name or "connect", parts, process, hold_back=hold_back, resolve=arrow_type)
    check_columns(spec.output_schema, f"operator {spec.name}")
    return Stream(OperatorNode(spec, name is not None, inputs))


def _side_node(node: Node, output: str) -> SideNode:
    operator = node.operator if isinstance(node, SideNode) else node
    known = operator.spec.side_outputs if isinstance(operator, OperatorNode) else {}
    if not isinstance(operator, OperatorNode) or output not in known:
        raise PipelineError(
            f"there is no side output {output!r}; there is {', '.join(known) or 'none'}",
            cause="a typing error, or the stream was transformed since the operator that has it",
            next_step="call side() directly on the operator's output",
        )
    return SideNode(operator, output)


def _schema(schema: SchemaLike) -> pa.Schema:
    from penstock.spark.schemas import arrow_schema

    return arrow_schema(schema)


__all__ = ["BroadcastStream", "KeyedStream", "Output", "Stream", "read", "start"]
