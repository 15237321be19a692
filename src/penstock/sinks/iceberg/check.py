"""Whether an Iceberg table fits a stream: its columns, its partitions, and what it wants of writers."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.exceptions import NamespaceAlreadyExistsError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import parse_transform

from penstock.errors import ConfigError, TableMismatch, TableRefused
from penstock.sinks.iceberg.catalog import as_written, find_table, open_catalog, open_table, reading
from penstock.sinks.lake.keys import check_keys, require_columns, without_kind

if TYPE_CHECKING:
    from penstock.sinks.iceberg.sink import Iceberg

_CALL = re.compile(r"(?P<name>\w+)\((?:(?P<number>\d+)\s*,\s*)?(?P<column>[^,()]+)\)")
_DEFAULTS = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "20"}
"""Each commit writes the table's metadata anew: without these, old copies pile up."""


def transform_of(text: str) -> tuple[str, str]:
    """A column and its transform, in Iceberg's words.

    >>> [transform_of(text) for text in ("day", "day(time)", "bucket(16, user)")]
    [('day', 'identity'), ('time', 'day'), ('user', 'bucket[16]')]
    """
    call = _CALL.fullmatch(text.strip())
    if call is None:
        return text, "identity"
    name = call["name"] if call["number"] is None else f"{call['name']}[{call['number']}]"
    return call["column"].strip(), name


def check_table(sink: Iceberg, schema: pa.Schema) -> None:
    """Makes the table, or verifies it. Raises: `TableMismatch`, `TableRefused`, `StorageFailed`, `ConfigError`."""
    check_keys(sink.description, sink.primary_key, sink.row_kind, (), schema)
    schema = without_kind(schema, sink.row_kind)
    require_columns(sink.description, "sort_by", sink.sort_by, schema)
    table = find_table(sink.catalog, sink.table)
    if table is None:
        table = _create(sink, schema)
    if table.format_version < 2:
        raise TableRefused(
            f"{sink.description} has format version 1",
            cause="its snapshots have no sequence numbers, so commits have no order that can be relied on",
            next_step="upgrade the table to version 2",
        )
    _check_partitions(sink, table)
    sources = [table.schema().find_field(field.source_id).name for field in table.spec().fields]
    check_keys(sink.description, sink.primary_key, None, sources, schema)
    _check_columns(sink, table, schema)


def _create(sink: Iceberg, schema: pa.Schema) -> Any:
    if not sink.create:
        return open_table(sink.catalog, sink.table)
    with reading(sink.table):
        catalog = open_catalog(sink.catalog)
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(sink.table.rpartition(".")[0])
        # The stream may send nulls, whatever its schema says of a source.
        columns = pa.schema([field.with_nullable(True) for field in schema])
        parts = [transform_of(text)[0] for text in sink.partition_by]
        require_columns(sink.description, "partition_by", parts, columns)
        with suppress(TableAlreadyExistsError):
            _make(sink, catalog, columns)
    return open_table(sink.catalog, sink.table)


def _make(sink: Iceberg, catalog: Any, columns: pa.Schema) -> None:
    making = catalog.create_table_transaction(sink.table, columns, properties={**_DEFAULTS, **(sink.properties or {})})
    try:
        with making.update_spec() as spec:
            for text in sink.partition_by:
                column, transform = transform_of(text)
                spec.add_field(column, parse_transform(transform), _part_name(column, transform))
    except ValueError as error:
        raise ConfigError(
            f"partition_by has {', '.join(sink.partition_by)}: {error}",
            cause="one of them is no transform of Iceberg, or not one for that type",
            next_step="use columns, or year(c), month(c), day(c), hour(c), bucket(8, c), truncate(8, c)",
        ) from error
    making.commit_transaction()


def _part_name(column: str, transform: str) -> str:
    return column if transform == "identity" else f"{column}_{transform.partition('[')[0]}"


def _check_partitions(sink: Iceberg, table: Any) -> None:
    there = [(table.schema().find_field(field.source_id).name, str(field.transform)) for field in table.spec().fields]
    wanted = [transform_of(text) for text in sink.partition_by]
    if wanted and wanted != there:
        raise TableMismatch(
            f"{sink.description} is partitioned by {there}, the sink by {wanted}",
            cause="the table was made with other partitions",
            next_step="leave partition_by out, or use another table",
            table=sink.table,
        )


def _check_columns(sink: Iceberg, table: Any, schema: pa.Schema) -> None:
    there = {field.name: field for field in schema_to_pyarrow(table.schema(), include_field_ids=False)}
    added = [field for field in schema if field.name not in there]
    if added and not sink.evolve_table:
        raise TableMismatch(
            f"{sink.description} has no column {added[0].name!r}; it has {list(there)}",
            cause="the stream gained a column, or the table is another one",
            next_step="add the column to the table, drop it before the sink, or allow it with evolve_table=True",
            column=added[0].name,
        )
    for field in schema:
        if field.name in there and not _same(field.type, there[field.name].type):
            raise TableMismatch(
                f"{sink.description}: column {field.name!r} is {there[field.name].type}, the stream has {field.type}",
                cause="the stream or the table was changed",
                next_step="cast the column before the sink",
                column=field.name,
            )
    lacking = [name for name, field in there.items() if name not in schema.names and not field.nullable]
    if lacking:
        raise TableMismatch(
            f"{sink.description}: column {lacking[0]!r} may not be null, and the stream does not have it",
            cause="the table wants a value in every row",
            next_step="add the column to the stream",
            column=lacking[0],
        )
    if added:
        with reading(sink.table), as_written(table).update_schema() as update:
            update.union_by_name(pa.schema([*there.values(), *(field.with_nullable(True) for field in added)]))


def _same(stream: pa.DataType, table: pa.DataType) -> bool:
    """Iceberg has no integers below 32 bits, and Arrow has two kinds of text."""
    if pa.types.is_integer(stream) and stream.bit_width < 32:
        return bool(table == pa.int32())
    return _plain(stream) == _plain(table)


def _plain(kind: pa.DataType) -> str:
    return re.sub(r"large_|(?<=list<)\w+(?=:)", "", str(kind)).replace(" not null", "")
