"""Streams and outputs as one line of text, for a terminal or a debugger, and as a graph, for a notebook."""

from __future__ import annotations

from html import escape

from penstock.graph.nodes import Node, OperatorNode, SideNode, SinkNode, SourceNode, event_time_of, schema_of
from penstock.observe.notebook.svg import Arrow, Box, drawn
from penstock.operators.columns import describe
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window
from penstock.text import printable

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


class Drawn:
    """A stream that a notebook draws as the graph of all that it is made of."""

    __slots__ = ()
    node: Node

    def _repr_html_(self) -> str:
        return stream_html(repr(self), self.node)


def stream_html(caption: str, node: Node) -> str:
    return _captioned(caption, *_graph(node))


def output_html(node: SinkNode) -> str:
    """An output with the graph of all that it is made of."""
    boxes, arrows = _graph(node.input)
    sink = Box("sink", node.name or "sink", getattr(node.sink, "description", str(node.sink)), "sink")
    return _captioned(
        output_line(node), [*boxes, sink], [*arrows, Arrow(_key(node.input), sink.key, _side(node.input))]
    )


def _captioned(caption: str, boxes: list[Box], arrows: list[Arrow]) -> str:
    return f'{drawn(boxes, arrows)}<div style="opacity:.65;font-size:12px">{escape(printable(caption))}</div>'


def _graph(end: Node) -> tuple[list[Box], list[Arrow]]:
    """Everything upstream, sources first; a node that is reached by several ways is there once."""
    boxes: dict[str, Box] = {}
    arrows: list[Arrow] = []
    waiting = [_maker(end)]
    while waiting:
        node = waiting.pop()
        if _key(node) in boxes:
            continue
        if isinstance(node, SourceNode):
            boxes[_key(node)] = Box(_key(node), node.name, "source", "source")
            continue
        boxes[_key(node)] = Box(_key(node), node.spec.name, node.spec.kind.partition("/")[0].replace("_", " "))
        for part in node.inputs:
            label = _side(part.node) or (f"by {', '.join(part.keys)}" if part.keys else "")
            arrows.append(Arrow(_key(part.node), _key(node), label, dashed=part.broadcast))
            waiting.append(_maker(part.node))
    return list(reversed(boxes.values())), list(reversed(arrows))


def _maker(node: Node) -> SourceNode | OperatorNode:
    return node.operator if isinstance(node, SideNode) else node


def _key(node: Node) -> str:
    return str(id(_maker(node)))


def _side(node: Node) -> str:
    return node.output if isinstance(node, SideNode) else ""


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
