"""What users write: streams of Spark DataFrames, operators on them, sinks at their ends.

Nothing runs until `start`. Streams are immutable; each method returns a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.checks import check_keys, check_outputs, names_of
from penstock.api.columns import renamed, selected, with_one, without
from penstock.api.combine import connected, joined, micros, require_event_time, require_streams, side_node
from penstock.api.deprecated import renamed_argument
from penstock.api.outputs import Output, start
from penstock.api.shown import stream_line
from penstock.api.sql import pushed_down, require_no_operator, where_sql, with_expressions
from penstock.api.windowed import WindowedStream
from penstock.errors import PipelineError
from penstock.graph.nodes import (
    Input,
    Node,
    OperatorNode,
    SinkNode,
    event_time_is_end,
    event_time_of,
    is_timed,
    schema_of,
)
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.parts import by_name
from penstock.operators.aggregate.running import RunningAggregate
from penstock.operators.base import OperatorSpec
from penstock.operators.calls.event_loop import AsyncRowFunction
from penstock.operators.calls.map_async import MapAsync
from penstock.operators.deduplicate.deduplicate import Deduplicate
from penstock.operators.failures.careful import OnError
from penstock.operators.join.join import How
from penstock.operators.process.batch_process import BatchProcess, SliceProcess
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.process.process import KeyedProcess, Process
from penstock.operators.rowwise.passing import Pass
from penstock.operators.rowwise.stateless import Filter, FlatMap, MapBatches, Predicate
from penstock.operators.top_n.top_n import RunningTop
from penstock.operators.window.window_aggregate import Emit
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window
from penstock.sinks.base import Sink
from penstock.sinks.listeners import CommitListener
from penstock.units import Duration, parse_duration

if TYPE_CHECKING:
    from penstock.spark.schemas import SchemaLike


@dataclass(frozen=True, slots=True)
class Stream:
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
        *columns: str | Mapping[str, pc.Expression],
        name: str | None = None,
        on_error: OnError = "stop",
        **expressions: pc.Expression,
    ) -> Stream:
        """Columns: by Spark SQL before the first operator (``"user", "amount * 2 AS twice"``), by Arrow anywhere.

        For Arrow, give names of columns, and expressions by keyword (``"user", twice=pc.field("amount") * 2``) or in a
        mapping, which may also have a column called ``name``. Arrow tells the types.

        Raises: `PipelineError`.
        """
        return Stream(selected(self.node, columns, expressions, name, on_error))

    def with_column(
        self, column: str, expression: str | pc.Expression, *, name: str | None = None, on_error: OnError = "stop"
    ) -> Stream:
        """Adds or replaces a column.

        `expression` is Spark SQL before the first operator (``"amount * 2"``), or a ``pyarrow.compute`` expression
        anywhere (``pc.field("amount") * 2``).

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
        """Calls `fn` with Arrow record batches; it returns one, a table, or several. No `schema`: the same columns."""
        spec = MapBatches(name or "map_batches", fn, self.schema, self._schema_after(schema), **self._careful(on_error))
        return self._then(spec, name)

    @renamed_argument("predicate", "condition")
    def filter(self, condition: str | Predicate, *, name: str | None = None, on_error: OnError = "stop") -> Stream:
        """Keeps the rows for which `condition` is true; `where` is the same.

        It is Spark SQL, only before the first operator (``"amount > 5"``), a ``pyarrow.compute`` expression
        (``pc.field("amount") > 5``), or a function from a record batch to a column of booleans. SQL is computed in the
        source: it makes no operator, so it takes neither `name` nor `on_error`.

        Raises: `PipelineError`.
        """
        if isinstance(condition, str):
            require_no_operator(f"filter({condition!r:.100})", name=name, on_error=on_error)
            return Stream(pushed_down(self.node, "filter() with SQL", lambda frame: where_sql(frame, condition)))
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
        require_streams("connect", others, BroadcastStream)
        inputs = (Input(self.node), *(other.input() for other in others))
        return Stream(connected(inputs, process, name))

    def key_by(self, *columns: str | Sequence[str]) -> KeyedStream:
        """Groups records by key: records of one key are processed in order, by one subtask, with the key's state.

        Raises: `PipelineError` for a column that is missing or cannot be a key.
        """
        return KeyedStream(self.node, check_keys(self.schema, names_of(*columns)))

    @renamed_argument("listeners", "commit_listeners")
    def write(self, sink: Sink, *, name: str | None = None, commit_listeners: Sequence[CommitListener] = ()) -> Output:
        """Ends the stream in a sink; `commit_listeners` learn of its commits."""
        return Output(SinkNode(name, sink, self.node, tuple(commit_listeners)))

    def _then(self, spec: OperatorSpec, name: str | None) -> Stream:
        check_outputs(spec)
        return Stream(OperatorNode(spec, name is not None, (Input(self.node),)))


@dataclass(frozen=True, slots=True)
class BroadcastStream:
    """Records that every subtask gets, each of them."""

    node: Node

    def __repr__(self) -> str:
        return stream_line("BroadcastStream", self.node)

    def input(self) -> Input:
        return Input(self.node, broadcast=True)


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """Records with a key."""

    node: Node
    keys: tuple[str, ...]

    def __repr__(self) -> str:
        return stream_line("KeyedStream", self.node, self.keys)

    def input(self) -> Input:
        return Input(self.node, self.keys)

    def aggregate(
        self, columns: Mapping[str, Aggregate] | None = None, /, *, name: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Running aggregates per key. Each epoch emits one updated row for each key that got rows.

        Name output columns by keywords, or by a mapping, which may also have a column called ``name``.

        Raises: `PipelineError`.
        """
        every = by_name(name or "aggregate", columns, aggregates)
        keyed = self.computing(every.values())
        return keyed.then(RunningAggregate(name or "aggregate", schema_of(keyed.node), self.keys, every), name)

    def computing(self, aggregates: Iterable[object]) -> KeyedStream:
        """The stream with a column for each aggregate over an expression in Spark SQL."""
        return KeyedStream(with_expressions(self.node, aggregates), self.keys)

    def window(
        self, window: Window, *, on: str | None = None, allowed_lateness: Duration = 0, emit: Emit = "on_close"
    ) -> WindowedStream:
        """Cuts the rows of each key into windows of event time.

        `window` is made by `pen.tumbling_window`, `pen.sliding_window` or `pen.session_window`.

        A window closes when the watermark reaches its end; ``emit="on_close"`` then emits one row per key and window.
        For rows that come within `allowed_lateness` after that, the epoch emits an updated row. ``emit="on_update"``
        emits a row per epoch for each key and window that got rows, and none at the end. `on` names the column with the
        event time if it was renamed since the source.

        Raises: `PipelineError`, `ConfigError`.
        """
        column = on or event_time_of(self.node)
        if not isinstance(window, RegularWindow | SessionWindow):
            raise PipelineError(
                f"window({window!r:.100})",
                cause="a window is made by one of three functions",
                next_step='write for example window(pen.tumbling_window("1 min"))',
            )
        if column is None or not is_timed(self.node):
            raise PipelineError(
                "a window over a stream without event time",
                cause="no source has an event time, or the column was dropped or renamed on the way",
                next_step='name it where the source is read, pen.read(…, event_time="ts"), or here: window(…, on="ts")',
            )
        # If an operator renamed the column, `on` has the new name.
        shift = 1 if event_time_of(self.node) in (column, None) and event_time_is_end(self.node) else 0
        return WindowedStream(self, window, column, micros(allowed_lateness, "allowed_lateness"), emit, shift)

    def top_n(
        self, n: int, *, by: str, ascending: bool = False, window: Window | None = None, name: str | None = None
    ) -> Stream:
        """The `n` rows of each key with the largest, or smallest, value of `by`, with their ``rank``, from 1 on.

        Each epoch emits the ranks that changed; a table keyed by key and rank holds the current list. With a `window`
        each window's list is emitted when it closes, with ``window_start`` and ``window_end``.

        Rows whose value is null do not take part. Of rows with equal values the one that came first ranks higher.

        Raises: `PipelineError`.
        """
        if window is not None:
            return self.window(window).top_n(n, by=by, ascending=ascending, name=name)
        spec = RunningTop(name or "top_n", schema_of(self.node), self.keys, by, n, ascending)
        return self.then(spec, name)

    def process(
        self,
        process: KeyedProcess | BatchProcess | type[KeyedProcess | BatchProcess],
        *,
        name: str | None = None,
        on_error: OnError = "stop",
    ) -> Stream:
        """User code per key, or over whole slices, with state.

        With ``on_error="dead_letter"`` a row that fails changes no state and emits nothing.

        Raises: `PipelineError`.
        """
        from penstock.spark.schemas import arrow_type

        kind: Any = SliceProcess if _is_batch(process) else Process
        spec = kind.declare(name or "process", schema_of(self.node), self.keys, process, resolve=arrow_type)
        node = self.node
        spec = replace(spec, on_error=on_error, event_time=event_time_of(node), watermarks=is_timed(node))
        return self.then(spec, name)

    def deduplicate(
        self, *, within: Duration | None = None, columns: str | Sequence[str] = (), name: str | None = None
    ) -> Stream:
        """Emits the first row of each key at once and drops later ones.

        With `within`, a row is a duplicate only up to that span of event time after the row that was kept. Late rows go
        to the side output ``late``, and the state of a key is dropped once the watermark has passed. With `columns`,
        rows of one key are duplicates only if these columns are equal, too.

        Raises: `PipelineError`, `ConfigError`.
        """
        within_us = None if within is None else micros(within, "within")
        label, schema = name or "deduplicate", schema_of(self.node)
        event_time = None if within is None else require_event_time(self.node, f"{label}: within")
        told_apart = check_keys(schema, dict.fromkeys((*self.keys, *names_of(columns))))
        return self.then(Deduplicate(label, schema, self.keys, told_apart, event_time, within_us), name)

    def join(
        self,
        other: KeyedStream,
        *,
        within: Duration | Sequence[Duration],
        how: How = "inner",
        suffixes: Sequence[str] = ("", "_right"),
        event_time: str | None = None,
        name: str | None = None,
    ) -> Stream:
        """Pairs the rows of both streams that have equal keys and event times close to each other.

        `within` says how much later the other row may be, such as ``("-5 min", "1 h")``; one duration stands for both
        directions. An outer join emits a row without a match once the watermark says that none will come, with nulls
        for the other side. Late rows go to the side outputs ``late_left`` and ``late_right``.

        A key of the same name on both sides becomes one column. Other columns of the same name get the suffix of their
        side. `event_time` names a column to add: the later of both event times, or the last at which a row could have
        matched. Without it the result has no event time.

        Raises: `PipelineError`, `ConfigError`.
        """
        require_streams("join", [other], KeyedStream)
        options: dict[str, Any] = {"how": how, "suffixes": suffixes, "event_time": event_time, "name": name}
        return Stream(joined(self.input(), other.input(), within=within, **options))

    def connect(
        self,
        *others: KeyedStream | BroadcastStream,
        process: ConnectProcess | type[ConnectProcess],
        name: str | None = None,
        hold_back: Sequence[str] = (),
    ) -> Stream:
        """User code over this stream, others with keys of the same types, and broadcast ones.

        Inputs named in `hold_back` are read only while the others have no rows. Checkpoints do not wait for them.

        Raises: `PipelineError`.
        """
        require_streams("connect", others, KeyedStream, BroadcastStream)
        inputs = (self.input(), *(other.input() for other in others))
        return Stream(connected(inputs, process, name, hold_back))

    def then(self, spec: OperatorSpec, name: str | None) -> Stream:
        """The output of an operator on this stream; `name` is what the user gave."""
        check_outputs(spec)
        return Stream(OperatorNode(spec, name is not None, (Input(self.node, self.keys),)))


def _is_batch(process: object) -> bool:
    return issubclass(process if isinstance(process, type) else type(process), BatchProcess)


def _schema(schema: SchemaLike) -> pa.Schema:
    from penstock.spark.schemas import arrow_schema

    return arrow_schema(schema)


__all__ = ["BroadcastStream", "KeyedStream", "Output", "Stream", "WindowedStream", "start"]
