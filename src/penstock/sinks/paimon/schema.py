"""Which streams fit which tables: column types and columns.

Invariant: a column that passes reads back with the values it was written with. Everything else is refused before
anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pat

from penstock.errors import TableMismatch
from penstock.sinks.paimon import private

# Names with a meaning of their own inside Paimon's files.
RESERVED_COLUMNS = frozenset({"_SEQUENCE_NUMBER", "_VALUE_KIND", "_ROW_ID", "_LEVEL", "rowkind"})

_ADVICE = (
    (pat.is_unsigned_integer, "Paimon has no unsigned integers: cast it to a wider signed one"),
    (pat.is_float16, "Paimon has no half floats: cast it to float32"),
    (pat.is_decimal, "Paimon's decimals have at most 38 digits and no negative scale: cast it"),
    (pat.is_date64, "cast it to date32"),
    (pat.is_time, "pypaimon keeps times to the millisecond at most: cast it to int64 or string"),
    (pat.is_duration, "Paimon has no durations: cast it to int64"),
    (pat.is_null, "the column has no type: cast it to the type it should have"),
    (pat.is_struct, "Parquet cannot store a struct without fields: drop the column"),
)
_PLAIN = (
    lambda kind: pat.is_decimal128(kind) and kind.scale >= 0,
    pat.is_boolean,
    pat.is_signed_integer,
    pat.is_float32,
    pat.is_float64,
    pat.is_string,
    pat.is_binary,
    pat.is_date32,
)


class _Unsupported(Exception):
    """A type inside a column that has no place in a table."""

    def __init__(self, kind: pa.DataType) -> None:
        advice = next((text for test, text in _ADVICE if test(kind)), "cast it to a type that Paimon has")
        super().__init__(advice)


def stored_type(kind: pa.DataType) -> pa.DataType:
    """The Arrow type under which pypaimon stores values of `kind`, without changing them."""
    if pat.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pat.is_large_string(kind) or pat.is_string_view(kind):
        return pa.string()
    if pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind) or pat.is_binary_view(kind):
        return pa.binary()
    if pat.is_timestamp(kind):
        return pa.timestamp(kind.unit, tz=None if kind.tz is None else "UTC")
    if pat.is_map(kind):
        return pa.map_(_stored_field(kind.key_field, "key"), _stored_field(kind.item_field, "value"))
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return pa.list_(_stored_field(kind.value_field, "item"))
    if pat.is_struct(kind) and kind.num_fields:
        return pa.struct([_stored_field(field) for field in kind])
    if any(test(kind) for test in _PLAIN):
        return kind
    raise _Unsupported(kind)


def is_storable(kind: pa.DataType) -> bool:
    """Whether values of this type read back as they were written."""
    try:
        return stored_type(kind).equals(kind)
    except _Unsupported:
        return False


def _stored_field(field: pa.Field, name: str | None = None) -> pa.Field:
    return pa.field(name or field.name, stored_type(field.type), nullable=field.nullable)


def table_columns(schema: pa.Schema, partition_by: Sequence[str], primary_key: Sequence[str] = ()) -> pa.Schema:
    """The columns that a table for this stream has.

    Raises: `TableMismatch` when a column has no place in a table.
    """
    fields, rows = [], []
    for field in schema:
        try:
            fields.append(_stored_field(field))
        except _Unsupported as error:
            rows.append(_Row(field.name, str(field.type), str(error)))
    rows += [_Row(name, "reserved name", "rename it") for name in schema.names if name in RESERVED_COLUMNS]
    rows += [_Row(name, "twice", "rename one") for name in set(schema.names) if schema.names.count(name) > 1]
    rows += _partition_problems(schema, {field.name: field.type for field in fields}, partition_by)
    missing = [name for name in primary_key if name not in schema.names]
    rows += [_Row(name, "(missing)", "name a column of the stream as key") for name in missing]
    if rows:
        raise _mismatch("columns of the stream cannot be stored", rows, "what to do", "change these columns")
    return pa.schema(fields)


def _partition_problems(
    schema: pa.Schema, stored: Mapping[str, pa.DataType], partition_by: Sequence[str]
) -> list[_Row]:
    rows = [
        _Row(name, "(missing)", "partition by a column of the stream")
        for name in partition_by
        if name not in schema.names
    ]
    rows += [
        _Row(name, str(stored[name]), "partition by a column of integers, strings, dates or timestamps")
        for name in partition_by
        if name in stored and not _can_partition(stored[name])
    ]
    if set(partition_by) == set(schema.names):
        rows.append(_Row(", ".join(partition_by), "all columns", "keep one column out of partition_by"))
    return rows


def _can_partition(kind: pa.DataType) -> bool:
    if pat.is_timestamp(kind):
        # pypaimon cuts the nanoseconds off a partition's value.
        return bool(kind.unit != "ns")
    # Nested values cannot be compared, floats not reliably.
    tests = (pat.is_boolean, pat.is_integer, pat.is_decimal, pat.is_date, pat.is_string)
    return any(test(kind) for test in tests)


def check_columns(schema: pa.Schema, table: private.Table, partition_by: Sequence[str]) -> pa.Schema:
    """The table's columns, after making sure that the stream's fit them; their order may differ.

    Raises: `TableMismatch`.
    """
    wanted = {field.name: field for field in table_columns(schema, partition_by)}
    there = private.columns_of(table)
    rows = [
        _Row(name, _describe(wanted.get(name)), _describe(field))
        for name, field in ((field.name, field) for field in there)
        if name not in wanted or not _fits(_keyed(wanted[name], table), field)
    ]
    rows += [_Row(name, _describe(field), "(missing)") for name, field in wanted.items() if name not in there.names]
    if rows:
        advice = "change the stream's columns, alter the table (evolve_table=True adds columns), or write to another"
        raise _mismatch(f"table {table.identifier.get_full_name()} has other columns", rows, "table", advice)
    keys = list(table.partition_keys)
    if partition_by and keys != list(partition_by):
        raise TableMismatch(
            f"the table is partitioned by {keys or 'nothing'}, partition_by asks for {list(partition_by)}",
            cause="the table existed before",
            next_step="leave partition_by out to take the table as it is, or write to another table",
        )
    return there


def _keyed(field: pa.Field, table: private.Table) -> pa.Field:
    """A key holds no nulls: the writer looks at each row, so the stream's column need not promise it."""
    return field.with_nullable(False) if field.name in table.primary_keys else field


def _fits(stream: pa.Field, table: pa.Field) -> bool:
    """Whether every value of the stream's column can be in the table's: same type, and nulls only where allowed."""
    if stream.nullable and not table.nullable:
        return False
    ours, theirs = stream.type, table.type
    if pat.is_map(ours) and pat.is_map(theirs):
        return _fits(ours.key_field, theirs.key_field) and _fits(ours.item_field, theirs.item_field)
    if pat.is_list(ours) and pat.is_list(theirs):
        return _fits(ours.value_field, theirs.value_field)
    if pat.is_struct(ours) and pat.is_struct(theirs):
        return [f.name for f in ours] == [f.name for f in theirs] and all(map(_fits, ours, theirs))
    return bool(ours == theirs)


@dataclass(frozen=True, slots=True)
class _Row:
    column: str
    stream: str
    other: str


def _describe(field: pa.Field | None) -> str:
    return "(missing)" if field is None else f"{field.type}{'' if field.nullable else ' not null'}"


def _mismatch(seen: str, rows: list[_Row], other: str, advice: str) -> TableMismatch:
    lines = [_Row("column", "stream", other), *rows]
    first = max(len(row.column) for row in lines)
    second = max(len(row.stream) for row in lines)
    text = "\n".join(f"    {row.column:<{first}}  {row.stream:<{second}}  {row.other}" for row in lines)
    return TableMismatch(f"{seen}\n{text}", next_step=advice, columns=", ".join(row.column for row in rows))
