"""A few rows in flight as short texts, for the page."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa

from penstock.display import shortened
from penstock.observe.tables.opened import OpenFolder
from penstock.store.base import Store
from penstock.text import printable

VALUE_MAX = 200
COLUMNS_MAX = 60


def sample(store: Store, edge: str, checkpoint: int | None, rows: int) -> dict[str, Any]:
    """The first rows that wait on an edge. Raises: `PenstockError`."""
    scan = OpenFolder(store, checkpoint).in_flight(edge)
    names = scan.schema.names[:COLUMNS_MAX]
    found: list[list[str | None]] = []
    for batch in scan:
        part = batch.slice(0, rows - len(found))
        columns = [[_shown(part.column(place), row) for row in range(part.num_rows)] for place in range(len(names))]
        found += [list(row) for row in itertools.islice(zip(*columns, strict=True), rows)]
        if len(found) >= rows:
            break
    return {"columns": [shortened(printable(name), VALUE_MAX) for name in names], "rows": found}


def _shown(column: pa.Array, row: int) -> str | None:
    value = column[row]
    if not value.is_valid:
        return None
    try:
        text = str(value)
    except (ValueError, OverflowError, pa.ArrowException):
        return "?"
    return shortened(printable(text[: 4 * VALUE_MAX]), VALUE_MAX)
