"""How a merge by key reads and writes a Delta table: files of the newest version, and files of our own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa

from penstock.errors import TableRefused
from penstock.sinks.delta.log import can_take_out, file_name
from penstock.sinks.delta.writer import AddedFile, added, later
from penstock.sinks.lake.merge import ListedFile, MergeTable
from penstock.sinks.parquet.files import ParquetFiles, TableFolder
from penstock.sinks.parquet.partitions import Partition, as_text, folder_of
from penstock.sinks.parquet.reading import read_parquet
from penstock.store.paths import is_path


class DeltaMergeTable(MergeTable[AddedFile]):
    """One version of a table."""

    def __init__(self, table: Any, folder: TableFolder, primary_key: Sequence[str], target_bytes: int) -> None:
        self._folder = folder
        self._names = tuple(table.metadata().partition_columns)
        schema = pa.schema(table.schema().to_arrow())
        self._columns = pa.schema([field for field in schema if field.name not in self._names])
        self.key = pa.schema([self._columns.field(name) for name in primary_key if name not in self._names])
        self._table = table
        self._listed: dict[Partition, list[ListedFile]] | None = None
        self._files = ParquetFiles(
            folder,
            self._columns,
            (),
            lambda values: folder_of(self._names, values),
            announce=lambda _: None,
            prefix="merged",
            target_bytes=target_bytes,
            sort_by=self.key.names,
        )

    def partition_of(self, file: AddedFile) -> Partition:
        return tuple(file.partition[name] or None for name in self._names)

    def listed(self, partition: Partition) -> Sequence[ListedFile]:
        if self._listed is None:
            self._listed = self._by_partition()
        return self._listed.get(partition, ())

    def _by_partition(self) -> dict[Partition, list[ListedFile]]:
        refuse_deletion_vectors(self._table)
        actions = pa.table(self._table.get_add_actions(flatten=True))
        first = self.key.names[0]
        low = _column(actions, f"min.{first}")
        high = _column(actions, f"max.{first}")
        values = [_column(actions, f"partition.{name}") for name in self._names]
        found: dict[Partition, list[ListedFile]] = {}
        for place, (path, size) in enumerate(
            zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        ):
            partition = tuple(as_text(value[place]) or None for value in values)
            file = ListedFile(path, int(size), low[place], _rounded_up(high[place]))
            found.setdefault(partition, []).append(file)
        return found

    def read(self, file: ListedFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        path = file_name(file.path)
        if not is_path(path):
            raise TableRefused(
                f"the table lists {path}, which is outside its folder",
                cause="it is a shallow clone of another table",
                next_step="make a copy of the table and write to that",
                path=path,
            )
        if not can_take_out(file.path):
            raise TableRefused(
                f"the table lists {file.path}, and a row of that file is to be changed",
                cause="another engine spells signs in paths differently; deltalake could not take the file out again",
                next_step="let another job rewrite such files, for example OPTIMIZE, or copy the table",
                path=path,
            )
        return self._read(path, columns)

    def read_written(self, file: AddedFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return self._read(file.path, columns)

    def _read(self, path: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        wanted = self._columns if columns is None else pa.schema([self._columns.field(name) for name in columns])
        return read_parquet(self._folder, path, wanted)

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        self._files.add_to(partition, rows)
        self._files.bound_memory()

    def finish(self) -> list[AddedFile]:
        return [added(file, self._names, file.partition) for file in self._files.finish()]

    def abort(self) -> None:
        self._files.abort()


def _column(actions: pa.Table, name: str) -> list[Any]:
    return actions[name].to_pylist() if name in actions.column_names else [None] * actions.num_rows


def _rounded_up(high: Any) -> Any:
    """The log has times in milliseconds, cut off."""
    return later(high) if isinstance(high, datetime) else high


def refuse_deletion_vectors(table: Any) -> None:
    """Raises: `TableRefused` for a table whose files may hold rows that are not there any more."""
    if "deletionVectors" in (table.protocol().writer_features or ()):
        raise TableRefused(
            "the table has deletion vectors, and is to be written by a primary key",
            cause="a merge rewrites files, and deltalake cannot say which rows of a file a vector took away",
            next_step="write to a table without delta.enableDeletionVectors",
        )
