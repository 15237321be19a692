"""The endpoint of a query's metrics in the driver: ``/metrics`` for Prometheus, ``/healthz`` and ``/readyz`` for
Kubernetes. Read-only; it tells names and numbers, never rows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock.errors import ConfigError
from penstock.observe.events import EpochPublished, Event, QueryStopped
from penstock.observe.metrics import Metrics

IDLE_S = 30.0
"""A connection without a request ends then: the port is open to others, and each connection has a thread."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsServer:
    """A listener that serves what it hears. Opened before a query starts, so that a port that is taken is refused."""

    def __init__(self, host: str, port: int) -> None:
        """Raises: `ConfigError` for a port that cannot be had."""
        self.metrics = Metrics()
        self._ready, self._ended = False, False
        try:
            self._server = ThreadingHTTPServer((host, port), _handler(self._answer))
        except OSError as error:
            raise ConfigError(
                f"metrics={port}: {error.strerror or error}",
                cause="another query or program listens on that port, or it needs more rights",
                next_step="choose another port, or 0 for any that is free; each query of a program needs its own",
            ) from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="penstock-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __call__(self, event: Event) -> None:
        self.metrics(event)
        self._ready = self._ready or (isinstance(event, EpochPublished) and event.kind != "takeover")
        self._ended = self._ended or isinstance(event, QueryStopped)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        match path.partition("?")[0]:
            case "/metrics":
                return 200, CONTENT_TYPE, self.metrics.exposition()
            case "/healthz":
                return self._state(200 if not self._ended else 503)
            case "/readyz":
                return self._state(200 if self._ready and not self._ended else 503)
            case _:
                return 404, "text/plain; charset=utf-8", b"/metrics, /healthz, /readyz\n"

    def _state(self, code: int) -> tuple[int, str, bytes]:
        told = {"alive": not self._ended, "ready": self._ready and not self._ended}
        return code, "application/json", json.dumps(told).encode()


def _handler(answer: Callable[[str], tuple[int, str, bytes]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = IDLE_S

        def do_GET(self) -> None:
            code, kind, body = answer(self.path)
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the base class gives it
            """Scrapes are no news."""

    return Handler
