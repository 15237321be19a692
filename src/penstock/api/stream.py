"""What users write: streams of Spark DataFrames, operators on them, sinks at their ends.

Nothing runs until `start`. Streams are immutable; each method returns a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.checks import check_keys, check_outputs, names_of, require_sink
from penstock.api.columns import renamed, selected, with_one, without
from penstock.api.combine import connected, require_streams, side_node
from penstock.api.deprecated import renamed_argument
from penstock.api.everything import ALL, with_one_key
from penstock.api.outputs import Output
from penstock.api.shown import Drawn, stream_line
from penstock.api.sql import by_arrow, in_source, pushed_down, require_no_operator, where_sql
from penstock.errors import PipelineError
from penstock.graph.nodes import (
    Input,
    Node,
    OperatorNode,
    SinkNode,
    SourceNode,
    event_time_of,
    schema_of,
)
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.base import OperatorSpec
from penstock.operators.calls.event_loop import AsyncRowFunction
from penstock.operators.calls.map_async import MapAsync
from penstock.operators.columns import describe
from penstock.operators.failures.careful import OnError
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.rowwise.inferred import inferred_schema
from penstock.operators.rowwise.passing import Pass
from penstock.operators.rowwise.stateless import Filter, FlatMap, MapBatches, Predicate, require_callable
from penstock.operators.window.window_aggregate import Emit
from penstock.operators.window.windows import Window
from penstock.plain import plain_methods
from penstock.sinks.base import Sink
from penstock.sinks.listeners import CommitListener
from penstock.units import Duration, parse_duration

if TYPE_CHECKING:
    from penstock.api.keyed import KeyedStream
    from penstock.api.windowed import WindowedStream
    from penstock.spark.schemas import SchemaLike


@plain_methods
@dataclass(frozen=True, slots=True)
class Stream(Drawn):
    """Records without a key."""

    node: Node

    def __repr__(self) -> str:
        return stream_line("Stream", self.node)

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
        return Stream(side_node(self.node, output))

    def broadcast(self) -> BroadcastStream:
        """Makes every subtask get every record of this stream."""
        return BroadcastStream(self.node)

    def select(
        self,
        *columns: str | Mapping[str, str | pc.Expression],
        name: str | None = None,
        on_error: OnError = "stop",
        **expressions: str | pc.Expression,
    ) -> Stream:
        """Columns, by their names and by expressions.

        An expression is SQL (``"user", "amount * 2 AS twice"``), or it has its name as a keyword or in a mapping, which
        may also have a column called ``name``: ``select("user", twice=pc.field("amount") * 2)``. Before the first
        operator Spark computes SQL; behind it Arrow does, and knows a part of Spark SQL. Arrow tells the types.

        Raises: `PipelineError`.
        """
        return Stream(selected(self.node, columns, expressions, name, on_error))

    def with_column(
        self, column: str, expression: str | pc.Expression, *, name: str | None = None, on_error: OnError = "stop"
    ) -> Stream:
        """Adds or replaces a column.

        `expression` is SQL (``"amount * 2"``) or a ``pyarrow.compute`` expression (``pc.field("amount") * 2``). Before
        the first operator Spark computes SQL; behind it Arrow does, and knows a part of Spark SQL.

        Raises: `PipelineError`.
        """
        return Stream(with_one(self.node, column, expression, name, on_error))

    def drop(self, *columns: str) -> Stream:
        """All columns but these.

        Raises: `PipelineError` for one that is not there.
        """
        return Stream(without(self.node, columns))

    def rename(self, names: Mapping[str, str]) -> Stream:
        """All columns, some under new names: ``rename({"old": "new"})``.

        Raises: `PipelineError` for a column that is not there, and for a name that is taken.
        """
        return Stream(renamed(self.node, names))

    def map_batches(
        self,
        fn: Callable[[pa.RecordBatch], Any],
        schema: SchemaLike | None = None,
        *,
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Stream:
        """Calls `fn` with Arrow record batches; it returns one, a table, or several.

        Without a `schema`, this method calls `fn` once, in this process, with a batch that has the input's columns and
        no rows. The columns of the first batch that comes back are those of the stream. With a `schema`, `fn` is not
        called here.

        Raises: `PipelineError` if `fn` fails without rows, or does not tell the type of every column.
        """
        label = name or "map_batches"
        require_callable(label, fn, "map_batches")
        made = inferred_schema(label, fn, self.schema) if schema is None else _schema(schema)
        return self._then(MapBatches(label, fn, self.schema, made, **self._careful(on_error)), name)

    @renamed_argument("predicate", "condition")
    def filter(self, condition: str | Predicate, *, name: str | None = None, on_error: OnError = "stop") -> Stream:
        """Keeps the rows for which `condition` is true; `where` is the same.

        It is SQL (``"amount > 5"``), a ``pyarrow.compute`` expression (``pc.field("amount") > 5``), or a function from
        a record batch to a column of booleans. Before the first operator Spark computes SQL in the source: that makes
        no operator, so it takes neither `name` nor `on_error`. Behind it Arrow does, and knows a part of Spark SQL.

        Raises: `PipelineError`.
        """
        if isinstance(condition, str):
            call, text = f"filter({condition!r:.100})", condition
            if in_source(self.node):
                require_no_operator(call, name=name, on_error=on_error)
                return Stream(pushed_down(self.node, "filter() with SQL", lambda frame: where_sql(frame, text)))
            condition = by_arrow(self.node, call, text)
        return self._then(Filter(name or "filter", condition, self.schema, **self._careful(on_error)), name)

    where = filter  # noqa: A003 - the method above is meant

    def flat_map(
        self,
        fn: Callable[[dict[str, Any]], Any],
        schema: SchemaLike | None = None,
        *,
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Stream:
        """Calls `fn` with each row as a dict; it returns any number of rows."""
        spec = FlatMap(name or "flat_map", fn, self.schema, self._schema_after(schema), **self._careful(on_error))
        return self._then(spec, name)

    def map_async(
        self,
        fn: AsyncRowFunction,
        schema: SchemaLike | None = None,
        *,
        concurrency: int = 100,
        timeout: Duration = "30 s",
        retries: int = 3,
        ordered: bool = True,
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Stream:
        """Awaits `fn` with each row as a dict, for many rows at once; it returns the row that comes out.

        Up to `concurrency` calls run at once in each subtask, each for `timeout` at most. A call that fails is repeated
        up to `retries` times. A call that runs at the barrier, or when a process dies, is repeated later: `fn` must
        tolerate being called again for the same row. `ordered=False` lets rows pass slower ones.

        Raises: `PipelineError`, `ConfigError`.
        """
        spec = MapAsync(
            name or "map_async",
            fn,
            self.schema,
            self._schema_after(schema),
            concurrency=concurrency,
            timeout_s=parse_duration(timeout, "timeout"),
            retries=retries,
            ordered=ordered,
            **self._careful(on_error),
        )
        return self._then(spec, name)

    def _careful(self, on_error: OnError) -> dict[str, Any]:
        return {"on_error": on_error, "event_time": self.event_time}

    def _schema_after(self, schema: SchemaLike | None) -> pa.Schema:
        return self.schema if schema is None else _schema(schema)

    def union(self, *others: Stream, name: str | None = None) -> Stream:
        """This stream's rows and those of others with the same columns."""
        require_streams("union", others, Stream)
        for other in others:
            if other.schema != self.schema:
                raise PipelineError(
                    f"union of different columns:\n    {describe(self.schema)}\n    {describe(other.schema)}",
                    cause="all inputs of a union need the same columns in the same order",
                    next_step="select the same columns on each side",
                )
        inputs = tuple(Input(stream.node) for stream in (self, *others))
        return Stream(OperatorNode(Pass(name or "union", self.schema), name is not None, inputs))

    def connect(
        self,
        *others: BroadcastStream,
        process: ConnectProcess | type[ConnectProcess],
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Stream:
        """User code over this stream and broadcast ones.

        Raises: `PipelineError`.
        """
        require_streams("connect", others, BroadcastStream)
        inputs = (Input(self.node), *(other.input() for other in others))
        return Stream(connected(inputs, process, name, on_error=on_error))

    def rebalance(self) -> Stream:
        """Spreads the rows evenly over all subtasks of the next operator, and gives up their order.

        Without a key, no more subtasks are busy than the source has partitions. Use it where a source has few and what
        follows is slow.
        """
        if isinstance(self.node, SourceNode) and in_source(self.node):
            return Stream(replace(self.node, rebalanced=True, derived=True))
        return Stream(OperatorNode(Pass("rebalance", self.schema), False, (Input(self.node, rebalanced=True),)))

    def aggregate(
        self, columns: Mapping[str, Aggregate] | None = None, /, *, name: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Running aggregates over all rows: each epoch with rows emits one updated row; see `KeyedStream.aggregate`.

        One subtask does the work.

        Raises: `PipelineError`.
        """
        return self._as_one().aggregate(columns, name=name, **aggregates)

    def window(
        self, window: Window, *, on: str | None = None, allowed_lateness: Duration = 0, emit: Emit = "on_close"
    ) -> WindowedStream:
        """Cuts all rows into windows of event time, without a key; see `KeyedStream.window`. One subtask does the work.

        Raises: `PipelineError`, `ConfigError`.
        """
        return self._as_one().window(window, on=on, allowed_lateness=allowed_lateness, emit=emit)

    def top_n(
        self, n: int, *, by: str, ascending: bool = False, window: Window | None = None, name: str | None = None
    ) -> Stream:
        """The `n` best of all rows; see `KeyedStream.top_n`. One subtask does the work.

        Raises: `PipelineError`.
        """
        return self._as_one().top_n(n, by=by, ascending=ascending, window=window, name=name)

    def _as_one(self) -> KeyedStream:
        from penstock.api.keyed import KeyedStream

        return KeyedStream(with_one_key(self.node), (ALL,))

    def key_by(self, *columns: str | Sequence[str]) -> KeyedStream:
        """Groups records by key: records of one key are processed in order, by one subtask, with the key's state.

        Raises: `PipelineError` for a column that is missing or cannot be a key.
        """
        from penstock.api.keyed import KeyedStream

        return KeyedStream(self.node, check_keys(self.schema, names_of(*columns)))

    @renamed_argument("listeners", "commit_listeners")
    def write(self, sink: Sink, *, name: str | None = None, commit_listeners: Sequence[CommitListener] = ()) -> Output:
        """Ends the stream in a sink; `commit_listeners` learn of its commits.

        Raises: `PipelineError` for something that is no sink.
        """
        require_sink(sink)
        return Output(SinkNode(name, sink, self.node, tuple(commit_listeners)))

    def _then(self, spec: OperatorSpec, name: str | None) -> Stream:
        check_outputs(spec)
        return Stream(OperatorNode(spec, name is not None, (Input(self.node),)))


@dataclass(frozen=True, slots=True)
class BroadcastStream(Drawn):
    """Records that every subtask gets, each of them."""

    node: Node

    def __repr__(self) -> str:
        return stream_line("BroadcastStream", self.node)

    def input(self) -> Input:
        return Input(self.node, broadcast=True)


def _schema(schema: SchemaLike) -> pa.Schema:
    from penstock.spark.schemas import arrow_schema

    return arrow_schema(schema)
