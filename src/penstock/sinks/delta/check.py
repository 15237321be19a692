"""Whether a Delta table fits a stream: its columns, and what it wants of writers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import DeltaError

from penstock.errors import TableMismatch, TableRefused
from penstock.sinks.delta.merge import refuse_deletion_vectors
from penstock.sinks.delta.table import find_table, open_table, reading
from penstock.sinks.lake.keys import check_keys, require_columns, without_kind

if TYPE_CHECKING:
    from penstock.sinks.delta.sink import Delta

_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",  # an append needs no change files: readers take its rows
        "deletionVectors",
        "domainMetadata",
        "invariants",  # the feature alone; columns that have one are refused
        "checkConstraints",  # likewise
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "inCommitTimestamp",
    }
)
"""What a table may demand of a writer that only adds files."""
_ASK_OF_WRITERS = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def check_table(sink: Delta, schema: pa.Schema) -> None:
    """Makes the table, or verifies it. Raises: `TableMismatch`, `TableRefused`, `StorageFailed`."""
    check_keys(sink.description, sink.primary_key, sink.row_kind, sink.partition_by, schema)
    schema = without_kind(schema, sink.row_kind)
    _check_partitions(sink, schema)
    _check_sorted(sink, schema)
    wanted = stream_fields(schema, sink.description)
    table = find_table(sink.uri)
    if table is None:
        table = _create(sink, wanted)
    _refuse_features(sink.description, table)
    if sink.primary_key:
        _refuse_merges(sink.description, table)
    partitioned = tuple(table.metadata().partition_columns)
    if partitioned != tuple(sink.partition_by):
        raise TableMismatch(
            f"{sink.description} is partitioned by {list(partitioned)}, the sink by {list(sink.partition_by)}",
            cause="the table was made with other partitions",
            next_step=f"use partition_by={list(partitioned)}, or another table",
            table=sink.uri,
        )
    _check_columns(sink, table, wanted)


def stream_fields(schema: pa.Schema, where: str) -> dict[str, Field]:
    """The stream's columns as Delta names their types. Raises: `TableRefused` for a type that Delta does not have."""
    for field in schema:
        if _has_unsigned(field.type):
            raise TableRefused(
                f"{where}: column {field.name!r} is {field.type}",
                cause="Delta Lake has no unsigned integers: engines could not read the column, or its larger values",
                next_step="cast the column to a wider signed integer before the sink",
                column=field.name,
            )
    try:
        return {field.name: field for field in DeltaSchema.from_arrow(schema).fields}
    except Exception as error:
        raise TableRefused(
            f"{where}: {error}",
            cause="a column of the stream has a type that Delta Lake does not have",
            next_step="cast the column before the sink",
        ) from error


def _has_unsigned(kind: pa.DataType) -> bool:
    """The library takes an unsigned integer for a signed one of the same size."""
    inner = (kind.field(place).type for place in range(kind.num_fields))
    return bool(pa.types.is_unsigned_integer(kind) or any(map(_has_unsigned, inner)))


def _create(sink: Delta, wanted: dict[str, Field]) -> Any:
    if not sink.create:
        return open_table(sink.uri)
    # The stream may send nulls, whatever its schema says of a source.
    fields = [Field(field.name, field.type, nullable=True) for field in wanted.values()]
    with reading(sink.uri):
        DeltaTable.create(
            sink.uri,
            DeltaSchema(fields),
            mode="ignore",  # somebody else may have made it meanwhile
            partition_by=list(sink.partition_by),
            configuration=dict(sink.configuration or {}),
        )
    return open_table(sink.uri)


def _check_partitions(sink: Delta, schema: pa.Schema) -> None:
    require_columns(sink.description, "partition_by", sink.partition_by, schema)
    odd = [name for name in sink.partition_by if not _can_partition(schema.field(name).type)]
    if odd or set(sink.partition_by) == set(schema.names):
        what = f"{odd[0]!r} is a {schema.field(odd[0]).type}" if odd else "every column is a partition column"
        raise TableRefused(
            f"{sink.description}: {what}",
            cause="a partition has one text for each value, and a file needs at least one column of its own",
            next_step="partition by integers, texts, booleans, dates, timestamps or decimals, and keep a column more",
        )


def _can_partition(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_string(kind)
        or types.is_boolean(kind)
        or types.is_date(kind)
        or types.is_timestamp(kind)
        or types.is_decimal(kind)
    )


def _refuse_features(where: str, table: Any) -> None:
    """Penstock writes the files itself, so what the table wants of its rows would go unheard."""
    demanded = set(table.protocol().writer_features or ()) - _FEATURES
    configuration = table.metadata().configuration
    constraints = [name for name in configuration if name.startswith("delta.constraints.")]
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        demanded.add("columnMapping")
    columns = [
        field["name"]
        for field in json.loads(table.schema().to_json())["fields"]
        if any(key in field.get("metadata", {}) for key in _ASK_OF_WRITERS)
    ]
    found = [*sorted(demanded), *constraints, *(f"a rule for column {name}" for name in columns)]
    if found:
        raise TableRefused(
            f"{where} wants {', '.join(found)} of its writers",
            cause="Penstock adds files to a table; it does not compute columns, check rows or map names",
            next_step="write to a table without it, and let another job copy the rows",
        )


def _refuse_merges(where: str, table: Any) -> None:
    """What a table may not have when files of it are rewritten."""
    refuse_deletion_vectors(table)
    configuration = table.metadata().configuration
    for option, why in (
        ("delta.appendOnly", "rows of the table may not be changed"),
        ("delta.enableChangeDataFeed", "a change feed needs files of its own, which Penstock does not write"),
    ):
        if configuration.get(option, "false").lower() == "true":
            raise TableRefused(
                f"{where} has {option} = true and is to be written by a primary key",
                cause=why,
                next_step=f"set {option} to false, or leave primary_key out to append",
            )


def _check_sorted(sink: Delta, schema: pa.Schema) -> None:
    require_columns(sink.description, "sort_by", sink.sort_by, schema)
    if sink.primary_key and set(sink.primary_key) <= set(sink.partition_by):
        raise TableRefused(
            f"{sink.description} is partitioned by its whole primary key {list(sink.primary_key)}",
            cause="each row would be a partition and a file of its own",
            next_step="partition by a part of the key",
        )


def _check_columns(sink: Delta, table: Any, wanted: dict[str, Field]) -> None:
    there = {field.name: field for field in table.schema().fields}
    added = [field for name, field in wanted.items() if name not in there]
    if added and not sink.evolve_table:
        raise TableMismatch(
            f"{sink.description} has no column {added[0].name!r}; it has {list(there)}",
            cause="the stream gained a column, or the table is another one",
            next_step="add the column to the table, drop it before the sink, or allow it with evolve_table=True",
            column=added[0].name,
        )
    for name, field in wanted.items():
        if name in there and field.type != there[name].type:
            raise TableMismatch(
                f"{sink.description}: column {name!r} is {_named(there[name])}, the stream has {_named(field)}",
                cause="the stream or the table was changed",
                next_step="cast the column before the sink",
                column=name,
            )
    lacking = [name for name, field in there.items() if name not in wanted and not field.nullable]
    if lacking:
        raise TableMismatch(
            f"{sink.description}: column {lacking[0]!r} may not be null, and the stream does not have it",
            cause="the table wants a value in every row",
            next_step="add the column to the stream",
            column=lacking[0],
        )
    if added:
        _add_columns(sink, table, added)


def _named(field: Field) -> str:
    return str(json.loads(field.to_json())["type"])


def _add_columns(sink: Delta, table: Any, added: Sequence[Field]) -> None:
    fields = [Field(field.name, field.type, nullable=True) for field in added]
    try:
        table.alter.add_columns(fields, commit_properties=CommitProperties(max_commit_retries=15))
    except DeltaError as error:
        raise TableMismatch(
            f"{sink.description}: columns {[field.name for field in fields]} could not be added: {error}",
            cause="another writer changed the table at the same time, or forbids it",
            next_step="start again, or add the columns by hand",
            table=sink.uri,
        ) from error
