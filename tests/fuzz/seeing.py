"""What people do with a folder to see it: tables, status, page, panel, and Spark's data source. Each only reads."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import penstock as pen
from penstock.errors import ConfigError
from penstock.observe.folder import Folder
from penstock.observe.notebook.panel import panel
from penstock.observe.page.document import document
from penstock.observe.page.html import page
from penstock.observe.page.sample import sample
from penstock.observe.tables.scan import Scan
from penstock.spark.data_source import CheckpointSource
from penstock.store import open_store
from tests.fuzz.folders import used

NAMES_MAX = 4
DOCUMENT_BYTES_MAX = 4 << 20
HARMLESS = frozenset({"div", "span", "b", "br", "p", "pre", "svg", "g", "title", "rect", "path", "text"})


def contents(folder: Path) -> Counter[str]:
    """Everything that `pen.open` gives of the newest checkpoint. Raises: `PenstockError`."""
    look = pen.open(str(folder))
    found: Counter[str] = Counter()
    for edge in look.edges[:NAMES_MAX]:
        found += _rows(look.in_flight(edge), "number")
    for operator, table in look.states[:NAMES_MAX]:
        found += _rows(look.state(operator, table, raw=True), "seen")
        look.state(operator, table).count()
        _one_key(look, operator, table)
    for scan in (look.checkpoints(), look.epochs(), look.commits(), look.files()):
        scan.to_pylist()
    return found


def _one_key(look: Any, operator: str, table: str) -> None:
    try:
        look.state(operator, table, key=3).to_pylist()
    except ConfigError as error:
        assert "the key has these columns" in str(error), error  # noqa: PT017 - a forged key has other columns


def _rows(scan: Scan, column: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for batch in scan:
        copied = used(batch)
        if column in copied.schema.names:
            found.update(f"{column} {value}" for value in copied.column(column).to_pylist())
    return found


def through_spark(folder: Path) -> Counter[str]:
    """The same as Spark asks for it. Raises: `PenstockError`."""
    look = pen.open(str(folder))
    found: Counter[str] = Counter()
    asked = [({"edge": edge}, "number") for edge in look.edges[:NAMES_MAX]]
    asked += [
        ({"operator": f"{operator}/{table}" if table else operator, "raw": "true"}, "seen")
        for operator, table in look.states[:NAMES_MAX]
        if "/" not in operator
    ]
    for options, column in asked:
        source = CheckpointSource({"path": str(folder), **options})
        schema = source.schema()
        reader = source.reader(schema)
        for part in reader.partitions():
            for batch in reader.read(part):
                copied = used(batch)
                if column in copied.schema.names:
                    found.update(f"{column} {value}" for value in copied.column(column).to_pylist())
    return found


def drawn(folder: Path) -> None:
    """Page, panel and sample of a folder. Raises: `PenstockError`; `AssertionError` for what must not be shown."""
    store = open_store(str(folder))
    view = Folder(store).look()
    shown = document(view)
    assert len(json.dumps(shown, allow_nan=False)) < DOCUMENT_BYTES_MAX
    page({"queries": [shown]})
    seen = _Tags()
    seen.feed(panel(view))
    assert seen.tags <= HARMLESS, seen.tags - HARMLESS
    for edge in view.edges[:NAMES_MAX]:
        json.dumps(sample(store, edge.name, None, 5), allow_nan=False)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs), attrs
