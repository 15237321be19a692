"""Opens and makes tables. A handle is never kept: opening takes half a millisecond, and a stale one would be wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.catalog.catalog_exception import TableNotExistException

from penstock.errors import PenstockError, StorageFailed, TableMismatch, TableRefused
from penstock.sinks.paimon import fence, local, private
from penstock.sinks.paimon.catalogs import FILESYSTEM, catalog_of, kind_of, publishes_snapshots


def open_table(warehouse: str, name: str) -> private.Table:
    """An existing table.

    Raises: `TableMismatch` when there is none.
    """
    table = find_table(warehouse, name)
    if table is None:
        raise TableMismatch(
            f"there is no table {name} in {warehouse}",
            cause="it was dropped or renamed, or its name is misspelt",
            next_step="check the name, or let it be made: Paimon(..., create=True)",
            table=name,
        )
    return table


def find_table(warehouse: str, name: str) -> private.Table | None:
    """An existing table, or None.

    Raises: `StorageFailed` when the warehouse cannot be read; `UnsafeName` where a link leads out of the table;
    `CorruptFile` where files of a table are, but no table.
    """
    table = _looked_up(warehouse, name)
    folder = _folder(warehouse, name)
    if table is None and folder is not None and fence.leftover(folder) is not None:
        # Another process may have made the table between the two looks. Then the second look finds it.
        table = _looked_up(warehouse, name)
        if table is None:
            fence.require_unused(folder)
    return table


def _looked_up(warehouse: str, name: str) -> private.Table | None:
    try:
        folder = _folder(warehouse, name)
        if folder is not None:
            fence.require_plain(folder)
        return fence.fenced(CatalogFactory.create(catalog_of(warehouse)).get_table(name))
    except (TableNotExistException, FileNotFoundError, NotADirectoryError):
        return None
    except PenstockError:
        raise
    except Exception as error:
        raise local.storage_error(error, warehouse) or StorageFailed(
            f"table {name} in {warehouse} cannot be opened: {error}",
            cause="the warehouse cannot be reached, or the table's schema is damaged",
            next_step="check the warehouse's address and credentials, and the table's schema folder",
            table=name,
        ) from error


def _folder(warehouse: str, name: str) -> Path | None:
    """Where a table is or would be; None for storage that is not a local folder."""
    root = None if publishes_snapshots(warehouse) else local.as_local(warehouse)
    database, _, own = name.partition(".")
    return None if root is None else Path(root, f"{database}.db", own)


def table_schema(
    name: str, columns: pa.Schema, partition_by: Sequence[str], primary_key: Sequence[str], options: Mapping[str, str]
) -> Schema:
    """A table to be made, as pypaimon describes it.

    Raises: `TableRefused` when pypaimon does not know such a table.
    """
    try:
        return Schema.from_pyarrow_schema(
            columns, partition_keys=list(partition_by), primary_keys=list(primary_key), options=dict(options)
        )
    except ValueError as error:
        raise _unknown(name, error) from error


def draft_table(name: str, schema: Schema) -> private.Table:
    """What `create_table` would make, to be looked at; nothing is made.

    Raises: `TableRefused` when pypaimon does not know such a table.
    """
    try:
        return private.draft(name, schema)
    except ValueError as error:
        raise _unknown(name, error) from error


def create_table(warehouse: str, name: str, schema: Schema) -> private.Table:
    """A new table, or the one that another process made meanwhile."""
    catalog = CatalogFactory.create(catalog_of(warehouse))
    if kind_of(warehouse) == FILESYSTEM:
        private.refuse_second_try(catalog)
    try:
        catalog.create_database(name.partition(".")[0], ignore_if_exists=True)
        catalog.create_table(name, schema, ignore_if_exists=True)
    except Exception as error:
        table = find_table(warehouse, name)
        if table is None:
            raise _not_created(warehouse, name, error) from error
        return table
    return open_table(warehouse, name)


def add_columns(warehouse: str, table: private.Table, name: str, wanted: pa.Schema) -> private.Table:
    """The table with columns for all that is wanted; those that it lacks are added behind the others, nullable.

    Raises: `StorageFailed`.
    """
    there = private.columns_of(table).names
    added = [field for field in wanted if field.name not in there]
    if not added:
        return table
    try:
        catalog = CatalogFactory.create(catalog_of(warehouse))
        catalog.alter_table(name, private.additions(added))
    except Exception as error:
        found = open_table(warehouse, name)
        if all(field.name in private.columns_of(found).names for field in added):
            return found  # another process was faster
        raise local.storage_error(error, warehouse) or StorageFailed(
            f"columns {', '.join(field.name for field in added)} cannot be added to table {name}: {error}",
            cause="the table's schema folder cannot be written, or the catalog does not allow it",
            next_step="add the columns with another engine, then start again",
            table=name,
        ) from error
    return open_table(warehouse, name)


def make_writable(warehouse: str, name: str) -> None:
    """Makes the folder in which the table is or will be, and proves that it can be written; local warehouses only.

    Raises: `StorageFailed`.
    """
    folder = _folder(warehouse, name)
    if folder is None:
        return
    database = folder.parent
    try:
        database.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise local.unwritable(database.parent, error) from error
    local.probe(folder if folder.is_dir() else database)


def _not_created(warehouse: str, name: str, error: Exception) -> PenstockError:
    if isinstance(error, ValueError):
        return _unknown(name, error)
    return StorageFailed(
        f"table {name} cannot be made in {warehouse}: {error}",
        cause="the warehouse cannot be reached or written",
        next_step="check its address, permissions and credentials",
        table=name,
    )


def _unknown(name: str, error: ValueError) -> TableRefused:
    return TableRefused(
        f"table {name} cannot be made: {error}",
        cause="pypaimon does not know such a table",
        next_step="change columns or options",
        table=name,
    )
