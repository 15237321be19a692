"""What users write behind `window`: aggregates and the best rows of each window."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.api.everything import ALL
from penstock.api.shown import stream_html, stream_line, window_text
from penstock.graph.nodes import schema_of
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.parts import by_name
from penstock.operators.top_n.top_n import WINDOW_ROWS, WindowTop
from penstock.operators.top_n.top_rows import top_rows
from penstock.operators.window.window_aggregate import WINDOW_END, WINDOW_START, Emit, WindowAggregate
from penstock.operators.window.windows import Window
from penstock.plain import plain_methods

if TYPE_CHECKING:
    from penstock.api.keyed import KeyedStream
from penstock.api.stream import Stream


@plain_methods
@dataclass(frozen=True, slots=True)
class WindowedStream:
    """Records with a key, cut into windows."""

    stream: KeyedStream
    kind: Window
    column: str
    allowed_lateness: int
    emit: Emit
    time_shift: int

    def __repr__(self) -> str:
        stream = self.stream
        return stream_line("WindowedStream", stream.node, stream.keys, window_text(self.kind, self.column))

    def _repr_html_(self) -> str:
        return stream_html(repr(self), self.stream.node)

    def aggregate(
        self, columns: Mapping[str, Aggregate] | None = None, /, *, name: str | None = None, **aggregates: Aggregate
    ) -> Stream:
        """Aggregates per key and window: the key's columns, ``window_start``, ``window_end``, and the aggregates.

        Late rows, and rows without an event time, are in ``.side("late")``. The event time of a result is its
        ``window_end``. A second window over the results counts each one just before that time, so a result falls into
        the window that ends with its own.

        Raises: `PipelineError`.
        """
        every = by_name(name or "window", columns, aggregates)
        stream = self.stream.computing(every.values())
        return stream.then(self._spec(stream, name or "window", every), name)

    def top_n(self, n: int, *, by: str, ascending: bool = False, name: str | None = None) -> Stream:
        """The `n` rows of each key and window with the largest, or smallest, value of `by`; see `KeyedStream.top_n`.

        ``window_start`` and ``window_end`` are this window's, also where the rows are results of windows.

        Raises: `PipelineError`.
        """
        title = name or "top_n"
        own = (*self.stream.keys, WINDOW_START, WINDOW_END)
        top = top_rows(title, schema_of(self.stream.node), own, by, n, ascending=ascending)
        return self.stream.then(WindowTop(title, self._spec(self.stream, title, {WINDOW_ROWS: top}), top), name)

    def _spec(self, stream: KeyedStream, name: str, aggregates: Mapping[str, Aggregate]) -> WindowAggregate:
        return WindowAggregate(
            name,
            schema_of(stream.node),
            stream.keys,
            self.column,
            self.kind,
            aggregates,
            self.allowed_lateness,
            self.emit,
            self.time_shift,
            tuple(column for column in schema_of(self.stream.node).names if column != ALL),
        )
