"""A real browser, driven through its developer tools by a WebSocket client of a few lines: only Chromium is needed.

`Browser` notes every message of the console and every exception, so a test can say that there was none.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit
from urllib.request import urlopen

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
WHY_NOT = "there is no Chromium: run `make browser`, or install it (Debian: apt-get install chromium)"
_START_S = 30.0
_ANSWER_S = 30.0


def find() -> str | None:
    return next((found for name in NAMES if (found := shutil.which(name)) is not None), None)


class Browser:
    """One tab of a headless browser."""

    def __init__(self) -> None:
        program = find()
        assert program is not None, WHY_NOT
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-chromium-", ignore_cleanup_errors=True)
        self._process = subprocess.Popen(
            [
                program,
                *("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
                *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
                *("--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={self._folder.name}"),
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.complaints: list[str] = []
        self._number = 0
        self._wire = self._connect()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    # -- what a test does --------------------------------------------------------------------------------------------

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, url: str, ready: str = "document.getElementById('app').dataset.drawn") -> None:
        """Goes to an address and waits until an expression is true."""
        self.call("Page.navigate", url="about:blank")
        self.wait("location.href === 'about:blank'")
        self.call("Page.navigate", url=url)
        self.wait(f"document.readyState === 'complete' && {ready}")

    def wait(self, expression: str) -> Any:
        until = time.monotonic() + _ANSWER_S
        while True:
            try:
                if found := self.run(expression):
                    return found
            except RuntimeError:  # between two documents there is none to ask
                pass
            assert time.monotonic() < until, f"{expression} did not become true; {self.complaints}"
            time.sleep(0.02)  # a browser is asked, there is nothing to wait on

    def run(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:500])
        return answer["result"].get("value")

    def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" else {"buttons": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def text(self) -> str:
        return str(self.run("document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    # -- the wire ----------------------------------------------------------------------------------------------------

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        self._wire.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._wire.receive())
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                answer: dict[str, Any] = message["result"]
                return answer
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message.get("method"):
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(message["params"])[:2000])
            case "Log.entryAdded":
                self.complaints.append(json.dumps(message["params"]["entry"])[:2000])

    def _connect(self) -> _Wire:
        """Chromium writes the port that it chose into a file."""
        file = Path(self._folder.name) / "DevToolsActivePort"
        until = time.monotonic() + _START_S
        while not file.exists() or not file.read_text().strip():
            assert self._process.poll() is None, "Chromium ended at once"
            assert time.monotonic() < until, "Chromium does not start"
            time.sleep(0.05)
        port = file.read_text().split()[0]
        with urlopen(f"http://127.0.0.1:{port}/json/list", timeout=_ANSWER_S) as answer:
            tabs = json.load(answer)
        return _Wire(next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"))


class _Wire:
    """A WebSocket: text messages to and fro (RFC 6455), as much of it as a browser on this machine needs."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=_ANSWER_S)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._reader = self._socket.makefile("rb")
        status = self._reader.readline()
        assert b" 101 " in status, status
        while self._reader.readline().strip():
            pass

    def send(self, text: str) -> None:
        data, mask = text.encode(), os.urandom(4)
        if len(data) < 126:
            head = struct.pack("!BB", 0x81, 0x80 | len(data))
        elif len(data) < 1 << 16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, len(data))
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, len(data))
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self._socket.sendall(head + mask + masked)

    def receive(self) -> str:
        parts = []
        while True:
            first, second = self._reader.read(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._reader.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._reader.read(8))
            data = self._reader.read(length)
            if first & 0x0F in (0, 1):
                parts.append(data)
                if first & 0x80:
                    return b"".join(parts).decode()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()
