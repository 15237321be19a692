"""The page without a browser: its JSON is bounded, its server answers this machine only, its commands work (G2, G6)."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.observe.folder import Folder
from penstock.observe.page.document import document
from penstock.observe.page.html import page, policy
from penstock.observe.page.sample import sample
from penstock.observe.page.server import make_server
from penstock.store import open_store
from penstock.testing import Harness
from tests.support.page_folders import write_folder
from tests.support.table_cases import CASES, rows


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return write_folder(tmp_path / "orders", epochs=30)


@pytest.fixture
def ask(folder: str) -> Iterator[Any]:
    server = make_server([folder], 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def get(path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes, dict[str, str]]:
        port = server.server_address[1]
        wire = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        wire.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
        answer = wire.getresponse()
        found = answer.status, answer.read(), dict(answer.getheaders())
        wire.close()
        return found

    yield get
    server.shutdown()
    server.server_close()


def test_the_page_and_its_data_are_served(ask: Any) -> None:
    status, body, headers = ask("/")
    assert status == 200
    assert b"<!doctype html>" in body
    assert headers["Content-Security-Policy"].startswith("default-src 'none'")
    status, body, _ = ask("/api/query/0")
    assert json.loads(body)["epochs"]["checkpoint"][-1] == 30
    assert json.loads(ask("/api/queries")[1])[0]["name"] == "orders"


def test_a_request_under_another_name_is_refused(ask: Any) -> None:
    """A page of another site may let its name point here, and would read the answer."""
    assert ask("/api/query/0", host="evil.example:80")[0] == 403


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../../etc/passwd", "//[x", "/api/query/1", "/api/query/x", "/api/sample/9"]
)
def test_nothing_else_is_served(ask: Any, path: str) -> None:
    assert ask(path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(ask: Any, method: str) -> None:
    assert ask("/api/query/0", method)[0] == 501


def test_an_edge_that_is_not_there_is_an_answer(ask: Any) -> None:
    status, body, _ = ask("/api/sample/0?edge=nowhere")
    assert status == 200
    assert "there is no edge 'nowhere'" in json.loads(body)["error"]["seen"]


def test_a_sample_shows_rows_in_flight_as_short_texts() -> None:
    harness = Harness(CASES["aggregate"].make(), steps=1)
    harness.feed([{**row, "shop": "<b>" + "x" * 100_000} for row in rows(Random(1), 3000)])
    found = sample(harness._store, "source-to-it", None, 20)
    assert found["columns"][:2] == ["user", "shop"]
    assert len(found["rows"]) == 20
    assert all(len(value or "") <= 200 for row in found["rows"] for value in row)


def test_names_and_messages_are_cut(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "evil", name="x" * 5_000_000, names={"enrich": "\x1b[2J" + "y" * 100}, epochs=20)
    made = json.dumps(document(Folder(open_store(folder)).look()))
    assert len(made) < 200_000
    assert "\\u001b" not in made


def test_data_cannot_end_the_element_it_stands_in() -> None:
    made = page({"queries": [{"name": "</script><script>alert(1)</script>"}]})
    assert made.count("</script>") == 2
    assert "alert(1)</" not in made


def test_the_policy_names_the_script_and_lets_nothing_else_in() -> None:
    assert "unsafe" not in policy(live=True)
    assert "script-src 'sha256-" in policy(live=False)
    assert "connect-src" not in policy(live=False)


def test_a_report_is_one_file_without_addresses(folder: str, tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    result = CliRunner().invoke(main, ["report", folder, "-o", str(target)])
    assert result.exit_code == 0, result.output
    made = target.read_text()
    assert '"name":"orders"' in made
    assert "https://" not in made
    assert made.replace("http://www.w3.org/2000/svg", "").count("http://") == 0


def test_a_port_that_is_taken_is_told(ask: Any, folder: str) -> None:
    server = make_server([folder], 0)
    result = CliRunner().invoke(main, ["ui", folder, "--port", str(server.server_address[1])])
    server.server_close()
    assert result.exit_code == 1
    assert "choose another port" in result.output
