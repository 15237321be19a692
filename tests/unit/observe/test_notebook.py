"""A query and its streams in a notebook and in a terminal: right, live, and harmless whatever names they have (G5)."""

from __future__ import annotations

import io
import re
import sys
import threading
from html.parser import HTMLParser
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.showing import follow
from penstock.errors import StorageFailed
from penstock.observe.folder import Folder
from penstock.observe.notebook import screen
from penstock.observe.notebook.panel import panel
from penstock.observe.notebook.svg import NODES_MAX, Arrow, Box, drawn
from penstock.store import MemoryStore
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, keyed_slow, run_until

HOSTILE = "<script>alert(1)</script>\"' onload=x \x1b[31m\u202e"


class Seen(HTMLParser):
    """The elements, attributes and texts that a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def assert_harmless(html: str) -> Seen:
    seen = Seen(html)
    assert seen.tags <= {"div", "span", "b", "br", "p", "pre", "svg", "g", "title", "rect", "path", "text"}
    assert not any(name.startswith("on") or name in {"href", "src"} for name in seen.attributes)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", html)
    return seen


def stopped_with_backlog(clock: FakeClock, table: str, folder: str) -> pen.Query:
    run = InlineRun(batches_of(500, 4), clock)
    return run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint > 4, checkpoint=folder,
        epoch="100 ms", parallelism=3,
    )  # fmt: skip


def test_a_query_shows_how_it_is_its_figures_and_its_graph(clock: FakeClock, table: str, tmp_path: Any) -> None:
    query = stopped_with_backlog(clock, table, str(tmp_path / "orders"))
    seen = assert_harmless(query._repr_html_())
    shown = " ".join(seen.texts)
    assert "stopped" in shown
    assert "next step" in shown
    assert f"{query.manifest().rows_in_flight:,} rows" in shown
    assert {"source", "slow", "×3"} <= {part.split(",")[0].strip() for part in seen.texts}


def test_a_stream_draws_all_that_it_is_made_of() -> None:
    orders, users = stream_of(SCHEMA), stream_of(pa.schema({"user": pa.int64()}))
    cheap = orders.filter(lambda batch: batch["number"], name="cheap")
    total = cheap.key_by("user").aggregate(name="totals", n=pen.count())
    both = total.union(total.map_batches(lambda batch: batch, name="again"))
    html = both.write(Memory("nowhere"), name="table")._repr_html_()
    seen = assert_harmless(html)
    assert {"cheap", "totals", "again", "table", "by user"} <= set(seen.texts)
    assert sum(part == "totals" for part in seen.texts) == 1, "a part that is reached by two ways is drawn once"
    for stream in (users, users.broadcast(), orders.key_by("user"), both):
        assert "<svg" in stream._repr_html_()


def test_a_window_and_a_side_output_are_drawn() -> None:
    timed = stream_of(pa.schema({"user": pa.int64(), "ts": pa.timestamp("us", "UTC")}), event_time="ts")
    windowed = timed.key_by("user").window(pen.tumbling_window("1 min"))
    assert "WindowedStream" in windowed._repr_html_()
    late = windowed.aggregate(name="per_minute", n=pen.count()).side("late")
    html = late.write(Memory("nowhere"), name="late_rows")._repr_html_()
    assert {"per_minute", "tumbling window", "late", "late_rows"} <= set(assert_harmless(html).texts)


def test_hostile_names_are_text() -> None:
    boxes = [Box("a", HOSTILE, HOSTILE, "source"), Box("b", HOSTILE * 1000, "", "sink")]
    seen = assert_harmless(drawn(boxes, [Arrow("a", "b", HOSTILE, 99), Arrow("b", "a"), Arrow("a", "gone")]))
    assert any("<script>" in part for part in seen.texts)
    assert len(drawn(boxes, [])) < 10_000


def test_a_hostile_folder_makes_a_harmless_panel(clock: FakeClock, table: str, tmp_path: Any) -> None:
    stopped_with_backlog(clock, table, str(tmp_path))
    events = tmp_path / "events.jsonl"
    forged = HOSTILE.encode("unicode_escape").replace(b"\\x", b"\\\\x").replace(b'"', b'\\"').replace(b"\\'", b"'")
    name = b'"name":"' + forged + b'"'
    events.write_bytes(re.sub(rb'"name":"[^"]*"', lambda _: name, events.read_bytes()))
    from penstock.store import open_store

    html = panel(Folder(open_store(str(tmp_path))).look())
    assert any("<script>" in part for part in assert_harmless(html).texts)


def test_nothing_and_too_much_are_said_instead_of_drawn() -> None:
    assert "nothing" in drawn([], [])
    assert "too many" in drawn([Box(str(n), str(n)) for n in range(NODES_MAX + 1)], [])
    assert "empty" in panel(Folder(MemoryStore()).look())


class Drawing:
    """A screen that remembers, and ends the query after some pictures."""

    def __init__(self, ended: threading.Event, after: int) -> None:
        self.ended, self.after, self.drawn = ended, after, 0

    def draw(self, view: Any) -> None:
        self.drawn += 1
        if self.drawn == self.after:
            self.ended.set()


def test_a_view_follows_the_query_to_its_end_and_shows_that() -> None:
    ended = threading.Event()
    drawing = Drawing(ended, 3)
    views = iter([True, StorageFailed("a moment", cause="a test", next_step="none"), True, True, False])

    def look() -> Any:
        view = next(views)
        if isinstance(view, Exception):
            raise view
        return SimpleNamespace(verdict=SimpleNamespace(alive=view))

    follow(look, drawing, 0.001, ended)
    assert drawing.drawn == 4, "one look failed, the last one saw the end"


def test_watch_ends_with_the_query_in_a_terminal(
    clock: FakeClock, table: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = stopped_with_backlog(clock, table, str(tmp_path))
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    query.watch()
    assert "stopped" in out.getvalue()
    assert "\x1b" not in out.getvalue(), "a file is no terminal"


def test_a_kernel_gets_one_panel_that_is_updated(
    clock: FakeClock, table: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = stopped_with_backlog(clock, table, str(tmp_path))
    updates: list[str] = []
    fake, display = ModuleType("IPython"), ModuleType("IPython.display")
    fake.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    display.HTML = lambda html: html  # type: ignore[attr-defined]

    def show(html: str, display_id: bool) -> Any:
        assert display_id
        updates.append(html)
        return SimpleNamespace(update=updates.append)

    display.display = show  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    cell = screen.screen_here()
    view = Folder(query._supervisor.runner.checkpoints.store).look()
    for _ in range(3):
        cell.draw(view)
    assert len(updates) == 3
    assert all("<svg" in html for html in updates)


def test_ipython_in_a_terminal_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = ModuleType("IPython")
    fake.get_ipython = SimpleNamespace  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", fake)
    assert isinstance(screen.screen_here(), screen.Terminal)
