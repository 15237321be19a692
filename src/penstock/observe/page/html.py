"""The page as one HTML document: style, script and data in one file, under a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from penstock.text import printable_json

_SCRIPTS = (
    *("format.js", "dom.js", "charts.js", "graph.js"),
    *("overview.js", "timeline.js", "checkpoint.js", "lists.js", "main.js"),
)
"""In this order: each may use those before it."""
_STYLES = ("page.css",)

_TEMPLATE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>Penstock</title>
<link rel="icon" href="data:,">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This page draws with JavaScript, which is switched off.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page(data: Any, *, live: bool = False) -> str:
    """The document with its data in it. With `live` it may ask its own server for newer ones."""
    style, script = _joined(_STYLES), _joined(_SCRIPTS)
    return _TEMPLATE.format(policy=policy(live=live), style=style, script=script, data=_embedded(data))


def policy(*, live: bool) -> str:
    """Only this style and this script; no image, frame, form or address but the page's own server."""
    parts = [
        "default-src 'none'",
        f"script-src '{_hash(_joined(_SCRIPTS))}'",
        f"style-src '{_hash(_joined(_STYLES))}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live:
        parts.append("connect-src 'self'")
    return "; ".join(parts)


def _embedded(data: Any) -> str:
    """JSON that cannot end the element it stands in."""
    text = printable_json(json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False))
    return text.replace("<", "\\u003c").replace("&", "\\u0026")


@cache
def _joined(names: tuple[str, ...]) -> str:
    folder = files("penstock.observe.page") / "static"
    return "\n".join((folder / name).read_text("utf-8") for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
