"""Rows to be read batch by batch: what every table of a folder is to its readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError


class Scan:
    """Rows of a folder. Iterate over it for record batches, one at a time in memory.

    DuckDB, Polars and others read it as it is: it is an Arrow stream to them (`__arrow_c_stream__`).
    """

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._schema, self._batches = schema, batches

    @property
    def schema(self) -> pa.Schema:
        """The columns, known before anything is read."""
        return self._schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Raises: `PenstockError`."""
        return self._batches()

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream that other libraries read."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def to_table(self) -> pa.Table:
        """Everything at once, in memory."""
        return pa.Table.from_batches(self._batches(), self._schema)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Everything at once, one dictionary per row."""
        return self.to_table().to_pylist()

    def count(self) -> int:
        """How many rows there are; they are read for that."""
        return sum(batch.num_rows for batch in self._batches())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name}: {field.type}" for field in self._schema)
        return f"<rows of {columns[:300]}>"


def free_names(columns: Sequence[str], ours: Sequence[str]) -> list[str]:
    """Names of our own columns that no column of the user has: those that are taken get one more underscore.

    >>> free_names(["user", "_edge"], ["_edge", "_epoch"])
    ['__edge', '_epoch']
    """
    taken = set(columns)
    found = []
    for name in ours:
        while name in taken:
            name = f"_{name}"  # noqa: PLW2901 - the name is looked for
        taken.add(name)
        found.append(name)
    return found


def picked(schema: pa.Schema, columns: Sequence[str] | None) -> list[int]:
    """The places of some columns. Raises: `ConfigError` for one that is not there."""
    if columns is None:
        return list(range(len(schema)))
    if isinstance(columns, str):
        columns = [columns]
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise ConfigError(
            f"there is no column {missing[0]!r}",
            cause="a typo, or the column belongs to another table",
            next_step=f"choose of: {', '.join(schema.names)}",
        )
    return [schema.names.index(name) for name in columns]
