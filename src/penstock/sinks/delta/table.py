"""Opens Delta tables, and says what their library's failures mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from penstock.errors import StorageFailed, TableMismatch

__all__ = ["find_table", "open_table", "reading"]


@contextmanager
def reading(uri: str) -> Iterator[None]:
    """Raises: `StorageFailed` for whatever the library could not read."""
    try:
        yield
    except TableNotFoundError:
        raise
    except (DeltaError, OSError) as error:
        raise StorageFailed(
            f"Delta table {uri}: {error}",
            cause="its log cannot be read: the storage failed, or the log is damaged",
            next_step="look at the storage named above, then start again",
            path=uri,
        ) from error


def find_table(uri: str) -> Any:
    """The table, or None where there is none."""
    try:
        with reading(uri):
            return DeltaTable(uri)
    except TableNotFoundError:
        return None


def open_table(uri: str) -> Any:
    """Raises: `TableMismatch` where there is none; `StorageFailed`."""
    table = find_table(uri)
    if table is None:
        raise TableMismatch(
            f"there is no Delta table at {uri}",
            cause="its address is misspelt, it was not made yet, or it was removed while the query runs",
            next_step="make the table, or allow it with create=True",
            table=uri,
        )
    return table
