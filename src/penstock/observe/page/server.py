"""Serves the page on this machine: GET only, to this machine only, about the folders that were named at the start."""

from __future__ import annotations

import json
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from penstock.errors import PenstockError
from penstock.observe.folder import Folder
from penstock.observe.page.document import document, names_of, summary
from penstock.observe.page.html import page, policy
from penstock.observe.page.sample import sample
from penstock.store import open_store
from penstock.store.base import Store

_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
_QUERY = re.compile(r"/api/(?P<what>query|sample)/(?P<number>\d{1,4})")
SAMPLE_ROWS = 20


class WatchedFolder:
    """A folder that is looked at; several browsers share one look at a time."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._folder = Folder(store)
        self._lock = threading.Lock()

    def document(self) -> dict[str, Any]:
        """Raises: `PenstockError`."""
        with self._lock:
            return document(self._folder.look())

    def summary(self) -> dict[str, Any]:
        """Raises: `PenstockError`."""
        with self._lock:
            return summary(self._folder.look())

    def sample(self, shown: str, checkpoint: int | None) -> dict[str, Any]:
        """Some rows in flight on an edge, by the name that the page shows. Raises: `PenstockError`."""
        with self._lock:
            edges = names_of(self._folder.look())
        return sample(self.store, edges.get(shown, shown), checkpoint, SAMPLE_ROWS)


def make_server(folders: list[str], port: int) -> ThreadingHTTPServer:
    """A server on 127.0.0.1; port 0 takes a free one. Raises: `ConfigError`, `OSError` if the port is taken."""
    watched = [WatchedFolder(open_store(folder)) for folder in folders]
    handler = type("Handler", (_Handler,), {"watched": watched})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    return server


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    watched: ClassVar[list[WatchedFolder]] = []
    server_version = "penstock"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        # A page of another site may reach this port under a name of its own, and would then read what it says.
        if not _HOST.fullmatch(self.headers.get("Host", "")):
            self._send(HTTPStatus.FORBIDDEN, b"this server answers to 127.0.0.1 and localhost only", "text/plain")
            return
        try:
            self._route()
        except PenstockError as error:
            report = {"error": {"code": error.code, "seen": error.seen, "next_step": error.next_step}}
            self._send_json(report, HTTPStatus.OK)
        except (BrokenPipeError, ConnectionResetError):
            pass

    do_HEAD = do_GET  # noqa: N815

    def _route(self) -> None:
        try:
            parts = urlsplit(self.path)
        except ValueError:  # half a bracket where a host would be
            parts = urlsplit("")
        if parts.path == "/":
            data = {"live": True, "queries": [None] * len(self.watched)}
            self._send(HTTPStatus.OK, page(data, live=True).encode(), "text/html; charset=utf-8")
        elif parts.path == "/api/queries":
            self._send_json([_guarded(watched) for watched in self.watched])
        elif (match := _QUERY.fullmatch(parts.path)) and int(match["number"]) < len(self.watched):
            watched = self.watched[int(match["number"])]
            if match["what"] == "query":
                self._send_json(watched.document())
            else:
                asked = parse_qs(parts.query)
                checkpoint = asked.get("checkpoint", [""])[0]
                number = int(checkpoint) if checkpoint.isdecimal() and len(checkpoint) <= 10 else None
                self._send_json(watched.sample(asked.get("edge", [""])[0][:4000], number))
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is no such page", "text/plain")

    def _send_json(self, value: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(status, json.dumps(value, allow_nan=False).encode(), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Content-Security-Policy": policy(live=True) + "; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Requests are not worth a line each."""


def _guarded(watched: WatchedFolder) -> dict[str, Any]:
    """One folder that cannot be reached does not hide the others."""
    try:
        return watched.summary()
    except PenstockError as error:
        return {"error": {"code": error.code, "seen": error.seen, "next_step": error.next_step}}
