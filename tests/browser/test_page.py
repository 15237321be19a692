"""The page in a real browser: of a query that runs, one that was killed, a long one, and one with hostile names (G2).

``PENSTOCK_SCREENSHOTS=docs/img pytest tests/browser`` writes the pictures of the documentation.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.observe.events import encode_event
from penstock.observe.folder import Folder
from penstock.observe.page.document import document
from penstock.observe.page.html import page
from penstock.observe.page.server import make_server
from penstock.store import open_store
from tests.support.chromium import WHY_NOT, Browser, find
from tests.support.page_folders import epoch_of, write_folder

pytestmark = pytest.mark.skipif(find() is None, reason=WHY_NOT)

SCREENS = ("overview", "timeline", "checkpoint", "tables", "errors")
PICTURES = os.environ.get("PENSTOCK_SCREENSHOTS")
HACK = "document.documentElement.dataset.hacked=1"
EVIL = f"<img src=x onerror='{HACK}'><script>{HACK}</script>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture(autouse=True)
def _no_complaints(browser: Browser) -> Iterator[None]:
    browser.complaints.clear()
    browser.size(1280, 900)
    yield
    browser.run("1")
    assert browser.complaints == []


def report(tmp_path: Path, *folders: str) -> str:
    documents = [document(Folder(open_store(folder)).look()) for folder in folders]
    file = tmp_path / "run.html"
    file.write_text(page({"queries": documents}))
    return file.as_uri()


def picture(browser: Browser, name: str, width: int, height: int, *, dark: bool = False) -> None:
    browser.size(width, height, dark=dark)
    browser.wait("document.getElementById('app').dataset.drawn")
    if PICTURES:
        browser.screenshot(Path(PICTURES) / f"page-{name}.png")


def test_every_screen_of_a_query_is_drawn(browser: Browser, tmp_path: Path) -> None:
    url = report(tmp_path, write_folder(tmp_path / "orders"))
    says = {"overview": "Where the time goes", "timeline": "Rows in flight", "checkpoint": "Subtasks"}
    says |= {"tables": "shop.minutes", "errors": "Runs"}
    for screen in SCREENS:
        browser.open(f"{url}#/0/{screen}")
        assert says[screen] in browser.text()
        if screen == "overview":
            assert all(part in browser.text() for part in ("read up to", "4,120", "10k/s"))
        picture(browser, screen, 1200, {"overview": 1050, "timeline": 830, "checkpoint": 1010}.get(screen, 620))
    browser.open(f"{url}#/0/overview")
    picture(browser, "dark", 1200, 1050, dark=True)
    assert browser.run("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def test_a_phone_shows_it_without_moving_sideways(browser: Browser, tmp_path: Path) -> None:
    url = report(tmp_path, write_folder(tmp_path / "orders"))
    browser.size(390, 844)
    for screen in SCREENS:
        browser.open(f"{url}#/0/{screen}")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth"), screen
    browser.open(f"{url}#/0/overview")
    picture(browser, "phone", 390, 844)


def test_a_killed_query_says_so_and_what_to_do(browser: Browser, tmp_path: Path) -> None:
    url = report(tmp_path, write_folder(tmp_path / "payments", name="payments", end="killed", epochs=200))
    browser.open(url)
    text = browser.text()
    assert "killed" in text
    assert "start it again: it goes on from its last checkpoint" in text
    picture(browser, "killed", 1200, 360)


def test_a_failed_query_names_the_cause_and_the_next_step(browser: Browser, tmp_path: Path) -> None:
    url = report(tmp_path, write_folder(tmp_path / "fraud", name="fraud-scores", end="failed", epochs=200))
    browser.open(f"{url}#/0/errors")
    text = browser.text()
    for part in ("PEN-030", "KeyError: 'country'", "likely cause", "next step", "ended the run"):
        assert part in text
    picture(browser, "errors", 1200, 640)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """The page of 10,000 epochs, and its size."""
    folder = tmp_path_factory.mktemp("long")
    url = report(folder, write_folder(folder / "orders", epochs=10_000))
    return url, (folder / "run.html").stat().st_size


@pytest.mark.parametrize("screen", SCREENS)
def test_ten_thousand_epochs_are_drawn_within_a_second(browser: Browser, long: tuple[str, int], screen: str) -> None:
    url, size = long
    assert size < 2_000_000
    browser.open(f"{url}#/0/{screen}")
    drawn_ms = float(browser.run("document.getElementById('app').dataset.drawn"))
    assert drawn_ms < 1000


def test_dragging_and_keys_zoom_the_timeline(browser: Browser, long: tuple[str, int]) -> None:
    url, _ = long
    browser.open(f"{url}#/0/timeline")
    assert "A bar stands for 32 of them" in browser.text()
    box = browser.run(
        "(({x, y, width, height}) => ({x, y, width, height}))(document.querySelector('.chart').getBoundingClientRect())"
    )
    y = box["y"] + box["height"] / 2
    browser.mouse("mousePressed", box["x"] + 300, y)
    browser.mouse("mouseMoved", box["x"] + 310, y)
    browser.mouse("mouseReleased", box["x"] + 314, y)
    browser.wait("!document.body.innerText.includes('A bar stands for')")
    browser.key("0")
    browser.wait("document.body.innerText.includes('A bar stands for 32 of them')")
    browser.key("+")
    browser.wait("document.body.innerText.includes('A bar stands for 16 of them')")
    browser.mouse("mousePressed", box["x"] + 300, y)
    browser.mouse("mouseReleased", box["x"] + 300, y)
    browser.wait("location.hash.startsWith('#/0/checkpoint/')")
    before = browser.run("location.hash")
    browser.key("[")
    browser.wait(f"location.hash !== {before!r}")
    for number, screen in enumerate(SCREENS, 1):
        browser.key(str(number))
        browser.wait(f"location.hash === '#/0/{screen}'")
    browser.key("t")
    assert browser.run("document.documentElement.dataset.theme") == "dark"
    browser.key("t")


def hostile(tmp_path: Path) -> str:
    names = {name: f"{EVIL}\x1b[2J\u202e{name}" for name in ("orders", "enrich", "per_minute", "matched")}
    folder = write_folder(tmp_path / "evil", name="</script>" + EVIL + "x" * 10_000_000, names=names, epochs=60)
    with (tmp_path / "evil" / "events.jsonl").open("ab") as history:
        message = (EVIL + "\\u001b[31m").encode() * 30_000
        history.write(b'{"event":"EpochFailed","at":"<b>","checkpoint":1,"attempt":1,"code":"<i>","message":"')
        history.write(message.replace(b"'", b"\\u0027") + b'"}\n')
        history.write(b'{"event":"EpochFailed","at":"2026","checkpoint":9223372036854775807,"attempt":1,"code":"')
        history.write(EVIL.encode() + b'","message":"</script><svg onload=alert(1)>"}\n')
    return folder


def test_hostile_names_are_shown_and_nothing_of_them_runs(browser: Browser, tmp_path: Path) -> None:
    url = report(tmp_path, hostile(tmp_path))
    assert (tmp_path / "run.html").stat().st_size < 2_000_000
    for screen in SCREENS:
        browser.open(f"{url}#/0/{screen}")
        assert browser.run("document.documentElement.dataset.hacked") is None
        assert browser.run("document.querySelectorAll('img, iframe, object, embed, #app script').length") == 0
        assert float(browser.run("document.getElementById('app').dataset.drawn")) < 1000
    assert "onerror" in browser.text()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    servers = []

    def serve(*folders: str) -> str:
        server = make_server(list(folders), 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_address[1]}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_served_page_follows_the_query(browser: Browser, tmp_path: Path, served: Any) -> None:
    folder = write_folder(tmp_path / "orders", epochs=50)
    browser.open(served(folder))
    browser.wait("document.body.innerText.includes('epoch 50 took')")
    epoch = epoch_of(51, datetime.now(UTC), Random(1), 0.7, {})
    open_store(folder).append("events.jsonl", encode_event(epoch))
    browser.wait("document.body.innerText.includes('epoch 51 took')")


def test_several_queries_stand_side_by_side(browser: Browser, tmp_path: Path, served: Any) -> None:
    folders = [
        write_folder(tmp_path / "orders", epochs=90),
        write_folder(tmp_path / "payments", name="payments", end="killed", epochs=90),
        write_folder(tmp_path / "fraud", name="fraud-scores", end="failed", epochs=90),
        str(tmp_path / "nothing"),
    ]
    browser.open(served(*folders), "document.querySelectorAll('a.card').length === 4")
    text = browser.text()
    for part in ("orders", "running", "payments", "killed", "fraud-scores", "failed", "empty"):
        assert part in text
    picture(browser, "several", 1200, 420)
    browser.run("document.querySelectorAll('a.card')[1].click()")
    browser.wait("document.body.innerText.includes('nothing published was lost')")


def test_the_line_of_commits_never_goes_back_in_time(browser: Browser, tmp_path: Path) -> None:
    """Commits come in bursts: after a pause several stand closer together than usual."""
    browser.open(report(tmp_path, write_folder(tmp_path / "orders", epochs=20)))
    commits = "[0, 60, 61, 62, 200, 201, 900].map(at => ({ at: 1e12 + at * 1000, ms: 5 }))"
    path = browser.run(
        f"commitChart({{ doc: {{ commits: {commits} }}, width: () => 800 }}).querySelector('.line').getAttribute('d')"
    )
    places = [float(place) for place in re.findall(r"[ML]([\d.]+) ", path)]
    assert len(places) == 14
    assert places == sorted(places)
