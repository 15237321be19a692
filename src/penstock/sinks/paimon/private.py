"""Every touch of pypaimon that its documentation does not promise, one small function each.

Nothing else in the package reaches below pypaimon's catalog, read builder and write builder.
tests/sinks/test_paimon_private.py fails when one of these names moves.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pypaimon import Schema
from pypaimon.common.file_io import FileIO
from pypaimon.common.identifier import Identifier
from pypaimon.common.json_util import JSON
from pypaimon.read.merge_engine_support import check_supported
from pypaimon.read.reader.aggregation_merge_function import resolve_agg_func_name
from pypaimon.schema.data_types import ArrayType, AtomicType, MapType, PyarrowFieldParser, RowType
from pypaimon.schema.schema_change import SchemaChange
from pypaimon.schema.table_schema import TableSchema
from pypaimon.snapshot.snapshot_commit import SnapshotCommit
from pypaimon.table.file_store_table import FileStoreTable
from pypaimon.utils.file_store_path_factory import canonical_data_file_path
from pypaimon.write.commit_message_serializer import VERSION, deserialize_commit_message, serialize_commit_message
from pypaimon.write.file_store_commit import FileStoreCommit
from pypaimon.write.file_store_write import FileStoreWrite

from penstock.sinks.paimon.fence import is_data_file

if not logging.getLogger("pypaimon").level:
    # pypaimon logs every commit and file at INFO. A level that the user set stays.
    logging.getLogger("pypaimon").setLevel(logging.WARNING)

_LENGTH = re.compile(r"(VAR)?(CHAR|BINARY)\s*\(\s*(?P<length>\d+)\s*\)", re.IGNORECASE)
_LENGTH_MAX = (1 << 31) - 1  # STRING and BYTES

Table = Any
Message = Any
Snapshot = Any

# What publishes a snapshot: (snapshot) -> published.
Publish = Callable[[Snapshot], bool]


def columns_of(table: Table) -> pa.Schema:
    """The table's columns as the Arrow types that pypaimon wants to be given."""
    return PyarrowFieldParser.from_paimon_schema(table.table_schema.fields)


def additions(fields: Iterable[pa.Field]) -> list[SchemaChange]:
    """The changes that add columns; rows that are there have null in them."""
    return [
        SchemaChange.add_column(field.name, PyarrowFieldParser.to_paimon_type(field.type, nullable=True))
        for field in fields
    ]


def made_at_ms(table: Table) -> int | None:
    """When the table's first schema was written; None when that schema is gone, or the table is a view."""
    if not is_file_store(table):
        return None
    first = table.schema_manager.get_schema(0)
    return None if first is None or first.time_millis is None else int(first.time_millis)


def is_file_store(table: Table) -> bool:
    """Whether it is a Paimon table proper, not a view onto other files."""
    return isinstance(table, FileStoreTable)


def bucket_key(table: Table) -> tuple[str, ...]:
    """The columns that decide about a row's bucket."""
    return tuple(table.table_schema.bucket_keys)


def why_not_merged(table: Table) -> str | None:
    """Why pypaimon cannot merge rows of one key in this table; None if it can or need not."""
    try:
        check_supported(table)
        if table.is_primary_key_table:
            merge_function(table)
    except (NotImplementedError, ValueError) as error:
        return str(error)
    return None


def merge_function(table: Table) -> Any:
    """pypaimon's own fold of rows of one key, one row at a time."""
    return FileStoreWrite(table, "")._build_pk_merge_function()  # noqa: SLF001


def sequence_fields(table: Table) -> tuple[str, ...]:
    """The columns by which rows of one key are ordered before the order of arrival counts."""
    return tuple(table.options.sequence_field())


def aggregate_functions(table: Table) -> dict[str, str]:
    """By column the function that folds it, in a table with merge-engine = aggregation."""
    names, keys = [field.name for field in table.table_schema.fields], table.primary_keys
    fields, options = set(sequence_fields(table)), table.table_schema.options
    return {name: str(resolve_agg_func_name(name, keys, options, fields)) for name in names}


Part = tuple[tuple[str, ...], str, int]


def text_limits(table: Table) -> dict[str, list[Part]]:
    """By column the texts and bytes in it that have a largest length, which Arrow's types do not know.

    Each with the steps that lead to it ("item", "key", "value", or the name of a field), its type and the length.
    """
    return {field.name: list(_limited(field.type, ())) for field in table.table_schema.fields}


def _limited(kind: Any, steps: tuple[str, ...]) -> Iterator[Part]:
    match kind:
        case AtomicType():
            limited = _LENGTH.fullmatch(kind.type.strip())
            if limited is not None and int(limited["length"]) < _LENGTH_MAX:
                yield steps, kind.type, int(limited["length"])
        case ArrayType():
            yield from _limited(kind.element, (*steps, "item"))
        case MapType():
            yield from _limited(kind.key, (*steps, "key"))
            yield from _limited(kind.value, (*steps, "value"))
        case RowType():
            for field in kind.fields:
                yield from _limited(field.type, (*steps, field.name))


def highest_sequence(table: Table) -> int:
    """The largest sequence number of the newest snapshot; 0 for an empty table."""
    files = TableFiles(table, commit_user="", publish=lambda _: False)
    latest = files.latest()
    entries = files.entries(latest) if latest is not None else ()
    return max((int(entry.file.max_sequence_number) for entry in entries), default=0)


def draft(name: str, schema: Schema) -> Table:
    """The table that `schema` would make; it has no place, so nothing can be read or written."""
    return FileStoreTable(FileIO.get("/"), Identifier.from_string(name), "/", TableSchema.from_schema(0, schema))


def refuse_second_try(catalog: Any) -> None:
    """Makes a catalog fail where it cannot write a table's first schema.

    pypaimon takes that for another's being faster. It tries again, for ever if there is no such table.
    """
    write = catalog.file_io.try_to_write_atomic

    def written(path: str, content: str) -> bool:
        if not write(path, content):
            raise FileExistsError(f"{path} is there already, or cannot be written")
        return True

    catalog.file_io.try_to_write_atomic = written


def with_options(table: Table, options: dict[str, str]) -> Table:
    """The same table with options for this process only."""
    return table.copy_without_time_travel(options)


def encode(table: Table, message: Message) -> bytes:
    """A commit message as pypaimon's own bytes, behind one byte that says their version."""
    body: bytes = serialize_commit_message(message, table.partition_keys_fields)
    return bytes([VERSION]) + body


def decode(table: Table, payload: bytes) -> Message:
    """The inverse of `encode`.

    Raises: `ValueError` or `struct.error` for bytes that this pypaimon cannot read.
    """
    if not payload:
        raise ValueError("empty commit message")
    return deserialize_commit_message(
        payload[1:], table.partition_keys_fields, table.trimmed_primary_keys_fields, version=payload[0]
    )


_ADDED = "new_files"
_PLACE = {"partition", "bucket", _ADDED, "check_from_snapshot", "total_buckets"}


def require_additions(table: Table, message: Message) -> None:
    """Our writers only add data files, inside the table. A committable of a forged checkpoint could do anything else.

    Raises: `ValueError`.
    """
    more = [name for name, value in vars(message).items() if name not in _PLACE and value]
    if more:
        raise ValueError(f"it changes {', '.join(more)}")
    for file in message.new_files:
        if file.external_path or file.extra_files:
            raise ValueError(f"{file.file_name!r} has files outside of its place")
    root = _root(table)
    for name, path in data_paths(table, message).items():
        if "/" in name or not path.startswith(root) or not is_data_file(path[len(root) :]):
            raise ValueError(f"{name!r} is no data file of the table")


def data_paths(table: Table, message: Message) -> dict[str, str]:
    """Where the data files that a commit message adds are stored, by their names."""
    partition = tuple(message.partition)
    names = [str(file.file_name) for file in message.new_files]
    return {name: canonical_data_file_path(table, partition, message.bucket, name) for name in names}


def partition_of(table: Table, message: Message) -> str:
    """The folder of a commit message's partition below the table's; empty for a table without partitions."""
    bucket = canonical_data_file_path(table, tuple(message.partition), message.bucket, "").rstrip("/")
    return relative_to_table(table, bucket).rpartition("/")[0]


def relative_to_table(table: Table, path: str) -> str:
    """A data file's or folder's path below the table's folder."""
    root = _root(table)
    assert path.startswith(root), f"{path} is not below {root}"
    return path[len(root) :]


def absolute_in_table(table: Table, relative: str) -> str:
    """The inverse of `relative_to_table`."""
    return _root(table) + relative


def _root(table: Table) -> str:
    """The table's folder as pypaimon begins the paths of data files, with a slash at its end."""
    return str(canonical_data_file_path(table, (), 0, "")).rstrip("/").rpartition("/")[0] + "/"


def announce_files(writer: Any, announce: Callable[[str], object]) -> None:
    """Has `announce` called with the path of each data file before a file writer of pypaimon makes it."""
    generate = writer._generate_file_path  # noqa: SLF001

    def announced(file_name: str) -> str:
        path = str(generate(file_name))
        announce(path)
        return path

    writer._generate_file_path = announced  # noqa: SLF001


def snapshot_json(snapshot: Snapshot) -> str:
    return str(JSON.to_json(snapshot, indent=2))


class _Publisher(SnapshotCommit):  # type: ignore[misc]  # pypaimon has no types
    """Puts our `publish` where pypaimon's commit loop makes a snapshot visible."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def commit(self, _base_snapshot_uuid: str | None, snapshot: Snapshot, _statistics: list[Any]) -> bool:
        return self._publish(snapshot)

    def close(self) -> None:
        """pypaimon closes it after every try; there is nothing to close."""


class TableFiles:
    """Snapshots and manifests of a table, and the commit loop that adds to them."""

    def __init__(self, table: Table, commit_user: str, publish: Publish) -> None:
        self._commit = FileStoreCommit(_Publisher(publish), table, commit_user)
        self._snapshots = table.snapshot_manager()
        self._lists = self._commit.manifest_list_manager
        self._manifests = self._commit.manifest_file_manager

    def commit(self, messages: list[Message], identifier: int, properties: dict[str, str]) -> None:
        """Appends; a snapshot that another committer published first makes it try again on top of that one."""
        self._commit.commit(messages, identifier, snapshot_properties=properties)

    def latest(self) -> Snapshot | None:
        return self._snapshots.get_latest_snapshot()

    def snapshot(self, snapshot_id: int) -> Snapshot | None:
        """None when it expired or was never there."""
        return self._snapshots.get_snapshot_by_id(snapshot_id)

    def snapshot_path(self, snapshot_id: int) -> str:
        return str(self._snapshots.get_snapshot_path(snapshot_id))

    def hint_path(self) -> str:
        return str(self._snapshots.latest_file)

    def own_manifests(self, snapshot: Snapshot) -> list[str]:
        """The manifest files that came with this snapshot; older ones are shared with older snapshots."""
        names = [meta.file_name for meta in self._lists.read_delta(snapshot)]
        names += [snapshot.base_manifest_list, snapshot.delta_manifest_list]
        return [f"{self._manifests.manifest_path}/{name}" for name in names]

    def discard_manifests(self, snapshot: Snapshot) -> None:
        """Removes the manifest files of a snapshot that was never published."""
        clean_up = self._commit._clean_up_tmp_manifests  # noqa: SLF001
        clean_up(snapshot.base_manifest_list, snapshot.delta_manifest_list, None)

    def files_added(self, snapshot: Snapshot) -> int:
        """How many data files a snapshot added; 0 when it expired meanwhile: the number is only for people."""
        try:
            return sum(int(meta.num_added_files) for meta in self._lists.read_delta(snapshot))
        except FileNotFoundError:
            return 0

    def entries(self, snapshot: Snapshot, names: frozenset[str] | None = None) -> Iterator[Any]:
        """Every addition and removal of a data file that the snapshot's manifests name, duplicates included."""
        wanted = None if names is None else lambda record: record["_FILE"]["_FILE_NAME"] in names
        for meta in self._lists.read_all(snapshot):
            yield from self._manifests.read(meta.file_name, early_record_filter=wanted)


def own_publish(table: Table) -> Publish:
    """How pypaimon itself publishes: the only way on storage that is not a local folder."""
    inner = table.new_snapshot_commit()
    return lambda snapshot: bool(inner.commit(None, snapshot, []))
