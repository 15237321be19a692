"""A graph as SVG, in layers from left to right. Colours are those of the text around it, so dark pages work, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, TypeAlias

from penstock.display import shortened
from penstock.text import printable

Kind: TypeAlias = Literal["source", "operator", "sink"]

WIDTH, HEIGHT, GAP_X, GAP_Y, EDGE = 150, 40, 86, 14, 6
TITLE_MAX, LABEL_MAX = 20, 14
NODES_MAX = 200
"""More cannot be drawn so that people see anything."""
_FILL = {"source": "#3b82f6", "operator": "#8b8b8b", "sink": "#22a06b"}
_PRESSURE = ("#8b8b8b", "#c58a00", "#d9600a", "#d3322d")


@dataclass(frozen=True, slots=True)
class Box:
    """A node: what it is called, and a line of what it is."""

    key: str
    title: str
    detail: str = ""
    kind: Kind = "operator"


@dataclass(frozen=True, slots=True)
class Arrow:
    """An edge between two boxes; `pressure` is 0 to 3."""

    start: str
    end: str
    label: str = ""
    pressure: int = 0
    dashed: bool = False


def drawn(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """The graph; a sentence if there is nothing to draw, or too much."""
    if not 0 < len(boxes) <= NODES_MAX:
        return f"<p>{len(boxes)} parts: {'nothing' if not boxes else 'too many'} to draw</p>"
    places = _places(boxes, arrows)
    width = EDGE * 2 + max(x for x, _ in places.values()) + WIDTH
    height = EDGE * 2 + max(y for _, y in places.values()) + HEIGHT
    lines = [_arrow(arrow, places) for arrow in arrows if arrow.start in places and arrow.end in places]
    nodes = [_box(box, *places[box.key]) for box in boxes]
    return (
        f'<div style="overflow-x:auto"><svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="{-EDGE} {-EDGE} {width} {height}" role="img" aria-label="the pipeline" '
        f'style="font:12px system-ui,sans-serif;fill:currentColor">{"".join(lines)}{"".join(nodes)}</svg></div>'
    )


def _places(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[str, tuple[int, int]]:
    """A box stands right of all that it gets rows from; a source right before whoever reads it first."""
    layers = {box.key: 0 for box in boxes}
    known = [arrow for arrow in arrows if arrow.start in layers and arrow.end in layers]
    for _ in boxes:  # a forged graph may have cycles: no more rounds than boxes
        for arrow in known:
            layers[arrow.end] = max(layers[arrow.end], min(layers[arrow.start] + 1, len(boxes)))
    for box in boxes:
        behind = [layers[arrow.end] for arrow in known if arrow.start == box.key]
        if box.kind == "source" and behind:
            layers[box.key] = max(0, min(behind) - 1)
    columns = sorted(set(layers.values()))
    rows: dict[int, int] = {}
    places = {}
    for box in boxes:
        column = columns.index(layers[box.key])
        row = rows.get(column, 0)
        rows[column] = row + 1
        places[box.key] = (column, row)
    tallest = max(rows.values())
    return {
        key: (column * (WIDTH + GAP_X), (2 * row + tallest - rows[column]) * (HEIGHT + GAP_Y) // 2)
        for key, (column, row) in places.items()
    }


def _box(box: Box, x: int, y: int) -> str:
    colour, middle = _FILL[box.kind], HEIGHT // 2
    lines = [(box.title, "font-weight:600", middle - 3 if box.detail else middle + 4)]
    if box.detail:
        lines.append((box.detail, "opacity:.65", middle + 13))
    texts = "".join(
        f'<text x="{x + 10}" y="{y + dy}" style="{style}">{text(shown, TITLE_MAX)}</text>' for shown, style, dy in lines
    )
    return (
        f"<g><title>{text(f'{box.title} {box.detail}', 200)}</title>"
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="7" fill="{colour}" fill-opacity=".12" '
        f'stroke="{colour}" stroke-opacity=".6"/>{texts}</g>'
    )


def _arrow(arrow: Arrow, places: dict[str, tuple[int, int]]) -> str:
    (x0, y0), (x1, y1) = places[arrow.start], places[arrow.end]
    x0, y0, x1, y1 = x0 + WIDTH, y0 + HEIGHT // 2, x1 - 6, y1 + HEIGHT // 2
    bend = max(20, (x1 - x0) // 2)
    colour = _PRESSURE[min(3, max(0, arrow.pressure))]
    dash = ' stroke-dasharray="5 4"' if arrow.dashed else ""
    line = (
        f'<path d="M{x0} {y0}C{x0 + bend} {y0} {x1 - bend} {y1} {x1} {y1}" fill="none" stroke="{colour}" '
        f'stroke-width="{1.5 + arrow.pressure / 2}"{dash}/><path d="M{x1 + 6} {y1}l-8 -4v8z" fill="{colour}"/>'
    )
    if not arrow.label:
        return line
    label = (
        f'<text x="{(x0 + x1) // 2}" y="{(y0 + y1) // 2 - 6}" text-anchor="middle" style="font-size:11px;opacity:.8">'
    )
    return f"{line}{label}{text(arrow.label, LABEL_MAX)}</text>"


def text(value: str, chars_max: int) -> str:
    """Text from anywhere as HTML: cut, without controls, escaped.

    >>> text("<script>", 99)
    '&lt;script&gt;'
    """
    return escape(shortened(printable(value[: 4 * chars_max]), chars_max))
