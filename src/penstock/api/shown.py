"""Streams and outputs as one line of text, for a terminal, a notebook or a debugger."""

from __future__ import annotations

from penstock.graph.nodes import Node, OperatorNode, SideNode, SinkNode, SourceNode, event_time_of, schema_of
from penstock.operators.columns import describe
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window

_COLUMNS_CHARS_MAX = 300
"""Columns to show: a stream of hundreds must not fill the screen."""


def stream_line(kind: str, node: Node, keys: tuple[str, ...] = (), window: str = "") -> str:
    """What a stream is, where it comes from, its columns and its event time."""
    by = f" by {', '.join(keys)}" if keys else ""
    columns = describe(schema_of(node))
    if len(columns) > _COLUMNS_CHARS_MAX:
        columns = f"{columns[:_COLUMNS_CHARS_MAX]}… ({len(schema_of(node).names)} columns)"
    time = event_time_of(node)
    event_time = "" if time is None else f"; event time {time}"
    return f"<{kind}{by}{window} of {_origin(node)}: {columns}{event_time}>"


def output_line(node: SinkNode) -> str:
    """Where an output gets its rows and where they go."""
    name = "" if node.name is None else f" {node.name!r}"
    return f"<Output{name} of {_origin(node.input)} into {getattr(node.sink, 'description', node.sink)}>"


def window_text(window: Window, column: str) -> str:
    return f" in {window} windows of {_lengths(window)} over {column}"


def _lengths(window: Window) -> str:
    match window:
        case SessionWindow():
            return f"gap {_seconds(window.gap)}"
        case RegularWindow() if window.size == window.every:
            return _seconds(window.size)
        case RegularWindow():
            return f"{_seconds(window.size)} every {_seconds(window.every)}"


def _origin(node: Node) -> str:
    match node:
        case SourceNode():
            return f"source {node.name!r}"
        case OperatorNode():
            return f"operator {node.spec.name!r}"
        case SideNode():
            return f"side output {node.output!r} of operator {node.operator.spec.name!r}"


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:.10g} s"
