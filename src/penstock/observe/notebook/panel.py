"""A query as a panel of HTML: how it is, its figures, its last epochs and its pipeline. A still picture, no script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.observe.events import EpochPublished
from penstock.observe.lines import checkpoint_age_s
from penstock.observe.model import EdgeView, QueryView
from penstock.observe.notebook.svg import Arrow, Box, drawn, text
from penstock.observe.progress import human_bytes, human_seconds
from penstock.observe.verdict import Health

_COLOURS = {
    Health.WELL: "#22a06b",
    Health.ENDED: "#8b8b8b",
    Health.HELD_UP: "#c58a00",
    Health.DEAD: "#d3322d",
    Health.EMPTY: "#8b8b8b",
}
_BARS = 60
_BAR_HEIGHT = 28
_TEXT_MAX = 2_000
_FIGURE = "display:inline-block;margin:6px 22px 0 0"
_BOX = "border:1px solid rgba(128,128,128,.35);border-radius:8px;padding:10px 14px;max-width:960px"


def panel(view: QueryView) -> str:
    """The panel of a query; what comes from its folder is escaped."""
    verdict, colour = view.verdict, _COLOURS[view.verdict.health]
    code = "" if verdict.code is None else f" {text(verdict.code, 20)}"
    head = (
        f'<div><span style="color:{colour}">●</span> <b>{text(view.name, 120)}</b> {verdict.kind.value}{code}'
        f' <span style="opacity:.65">{text(view.folder, 300)}</span></div>'
    )
    said = ""
    if verdict.health not in (Health.WELL, Health.EMPTY):
        step = f"<br><b>next step</b> {_lines(verdict.next_step)}" if verdict.next_step else ""
        said = f'<div style="margin-top:4px"><b>why</b> {_lines(verdict.why)}{step}</div>'
    figures = "".join(
        f'<span style="{_FIGURE}"><span style="opacity:.65">{name}</span><br>{value}</span>'
        for name, value in _figures(view)
    )
    bars = _bars(view.epochs[-_BARS:])
    return f'<div style="{_BOX}">{head}{said}<div>{figures}{bars}</div>{_graph(view)}</div>'


def _lines(value: str) -> str:
    return "<br>".join(text(line, _TEXT_MAX) for line in value.splitlines()[:20])


def _figures(view: QueryView) -> Iterator[tuple[str, str]]:
    if view.checkpoint_ids:
        age_s = checkpoint_age_s(view)
        old = "" if age_s is None else f", {human_seconds(age_s)} old"
        yield "checkpoint", f"{view.checkpoint_ids[-1]}{old}"
    rates = view.rates
    if rates.rows_in_per_s is not None:
        yield "rows/s in", f"{rates.rows_in_per_s:,.0f}"
    if rates.rows_processed_per_s is not None:
        yield "processed", f"{rates.rows_processed_per_s:,.0f}"
    takes = "" if not view.backlog_s else f", {human_seconds(view.backlog_s)} of work"
    yield "in flight", f"{view.rows_in_flight:,} rows{takes}"
    state = sum(table.bytes for part in view.operators for table in part.state)
    if state:
        yield "state", human_bytes(state)
    lags = [stage.watermark_lag_s for stage in view.stages if stage.watermark_lag_s is not None]
    if lags:
        yield "watermark", f"{human_seconds(max(lags))} behind"
    if view.uncommitted:
        yield "uncommitted", f"{view.uncommitted:,}"
    if view.late_rows:
        yield "late rows", f"{view.late_rows:,}"


def _bars(epochs: Sequence[EpochPublished]) -> str:
    """How long the last epochs took."""
    if not epochs:
        return ""
    longest = max(epoch.duration_s for epoch in epochs)
    if longest <= 0:
        return ""
    bars = "".join(
        f'<rect x="{place * 4}" y="{_BAR_HEIGHT - height}" width="3" height="{height}" fill="#3b82f6"/>'
        for place, epoch in enumerate(epochs)
        if (height := max(1, round(_BAR_HEIGHT * max(0.0, epoch.duration_s) / longest)))
    )
    return (
        f'<span style="display:inline-block;margin:6px 0 0"><span style="opacity:.65">last {len(epochs)} epochs, '
        f'longest {human_seconds(longest)}</span><br><svg xmlns="http://www.w3.org/2000/svg" '
        f'width="{len(epochs) * 4}" height="{_BAR_HEIGHT}">{bars}</svg></span>'
    )


def _graph(view: QueryView) -> str:
    if not view.stages:
        return ""
    stage_of = {operator.name: operator.stage for operator in view.operators}
    boxes = [Box(f"s:{part.name}", part.name, "source", "source") for part in view.sources]
    for stage in view.stages:
        rate = "" if stage.rows_per_s is None else f", {stage.rows_per_s:,.0f} rows/s"
        boxes.append(Box(f"g:{stage.name}", stage.name, f"×{stage.parallelism}{rate}"))
    boxes += [Box(f"k:{part.name}", part.name, part.table or "sink", "sink") for part in view.sinks]
    arrows = [
        Arrow(
            f"s:{edge.producer}" if edge.from_source else f"g:{edge.producer}",
            f"g:{edge.consumer}",
            _waiting(edge),
            pressure(edge.rows_in_flight, edge.backlog_s),
            edge.broadcast,
        )
        for edge in view.edges
    ]
    sinks = {part.name for part in view.sinks}
    arrows += [Arrow(f"g:{stage_of[a]}", f"k:{b}") for a, b in view.links if a in stage_of and b in sinks]
    return f'<div style="margin-top:8px">{drawn(boxes, list(dict.fromkeys(arrows)))}</div>'


def _waiting(edge: EdgeView) -> str:
    return f"{edge.rows_in_flight:,}" if edge.rows_in_flight else ""


def pressure(rows: int, backlog_s: float | None) -> int:
    """0 to 3, by how long what waits will take.

    >>> pressure(0, None), pressure(5, None), pressure(5, 12.0), pressure(5, 90.0)
    (0, 1, 2, 3)
    """
    if not rows:
        return 0
    if backlog_s is None:
        return 1
    return sum(backlog_s >= limit for limit in (2, 10, 60))
