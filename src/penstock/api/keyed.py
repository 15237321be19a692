"""What users write behind `key_by`: everything with state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.api.checks import check_keys, check_outputs, names_of
from penstock.api.columns import with_aggregated
from penstock.api.combine import connected, joined, micros, require_event_time, require_streams
from penstock.api.everything import ALL, without_key
from penstock.api.shown import Drawn, stream_line
from penstock.api.stream import BroadcastStream, Stream
from penstock.api.windowed import WindowedStream
from penstock.errors import PipelineError
from penstock.graph.nodes import Input, Node, OperatorNode, event_time_is_end, event_time_of, is_timed, schema_of
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.parts import by_name
from penstock.operators.aggregate.running import RunningAggregate
from penstock.operators.base import OperatorSpec
from penstock.operators.deduplicate.deduplicate import Deduplicate
from penstock.operators.failures.careful import OnError
from penstock.operators.join.join import How
from penstock.operators.process.batch_process import BatchProcess, SliceProcess
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.process.process import KeyedProcess, Process
from penstock.operators.top_n.top_n import RunningTop
from penstock.operators.window.window_aggregate import Emit
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window
from penstock.plain import plain_methods
from penstock.units import Duration


@plain_methods
@dataclass(frozen=True, slots=True)
class KeyedStream(Drawn):
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
        return KeyedStream(with_aggregated(self.node, aggregates), self.keys)

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
        on_error: OnError = "stop",
    ) -> Stream:
        """User code over this stream, others with keys of the same types, and broadcast ones.

        Inputs named in `hold_back` are read only while the others have no rows. Checkpoints do not wait for them. With
        ``on_error="dead_letter"`` a row that fails changes no state and emits nothing.

        Raises: `PipelineError`.
        """
        require_streams("connect", others, KeyedStream, BroadcastStream)
        inputs = (self.input(), *(other.input() for other in others))
        return Stream(connected(inputs, process, name, hold_back, on_error))

    def then(self, spec: OperatorSpec, name: str | None) -> Stream:
        """The output of an operator on this stream; `name` is what the user gave."""
        check_outputs(spec)
        node = OperatorNode(spec, name is not None, (Input(self.node, self.keys),))
        return Stream(without_key(node) if self.keys == (ALL,) else node)


def _is_batch(process: object) -> bool:
    return issubclass(process if isinstance(process, type) else type(process), BatchProcess)
