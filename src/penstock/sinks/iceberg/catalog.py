"""Opens tables of Iceberg catalogs, and says what the library's failures mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from penstock.errors import PenstockError, StorageFailed, TableMismatch

RETRIES = "commit.retry.num-retries"
MERGE = "commit.manifest-merge.enabled"


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Raises: `StorageFailed` for whatever the library could not do."""
    try:
        yield
    except (PenstockError, NoSuchTableError, NoSuchNamespaceError):
        raise
    except Exception as error:
        raise StorageFailed(
            f"Iceberg table {table}: {type(error).__name__}: {error}",
            cause="the catalog or the storage does not answer, or metadata of the table is damaged",
            next_step="look at the catalog and the storage, then start again",
            path=table,
        ) from error


def open_catalog(catalog: Mapping[str, str] | str) -> Catalog:
    """A catalog in a database keeps its tables under its name: `name` in the properties, else "default"."""
    if isinstance(catalog, str):
        return load_catalog(catalog)
    properties = dict(catalog)
    return load_catalog(properties.pop("name", "default"), **properties)


def find_table(catalog: Mapping[str, str] | str, name: str) -> Any:
    """The table, or None where there is none. Raises: `StorageFailed`."""
    try:
        with reading(name):
            return as_written(open_catalog(catalog).load_table(name))
    except (NoSuchTableError, NoSuchNamespaceError):
        return None


def as_written(table: Any) -> Any:
    """The same table, as it is committed to.

    The library would try a failed commit again behind snapshots that were not looked at. It merges manifests only if
    the table says so, while Iceberg's own default is to merge: else each commit takes longer than the one before.
    """
    table.metadata.properties[RETRIES] = "0"
    table.metadata.properties.setdefault(MERGE, "true")
    return table


def open_table(catalog: Mapping[str, str] | str, name: str) -> Any:
    """Raises: `TableMismatch` where there is none; `StorageFailed`."""
    table = find_table(catalog, name)
    if table is None:
        raise TableMismatch(
            f"there is no Iceberg table {name} in the catalog",
            cause="its name is misspelt, it was not made yet, or it was dropped while the query runs",
            next_step="make the table, or allow it with create=True",
            table=name,
        )
    return table
