"""How a merge by key, and upkeep, read and write an Iceberg table: files of its newest snapshot, and files of ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask

from penstock.sinks.iceberg.layout import TableLayout
from penstock.sinks.iceberg.writer import IcebergFiles, ManifestEntry, as_data_file, plain
from penstock.sinks.lake.merge import ListedFile, MergeTable
from penstock.sinks.parquet.partitions import Partition


class SnapshotReader:
    """Reads files of a table as its newest schema shows them, without rows that other engines deleted."""

    def __init__(self, table: Any, columns: pa.Schema) -> None:
        self._table, self._columns = table, columns

    def read(self, task: Any, names: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        columns = self._columns if names is None else pa.schema([self._columns.field(name) for name in names])
        schema = self._table.schema()
        scan = ArrowScan(self._table.metadata, self._table.io, schema.select(*columns.names), AlwaysTrue())
        for batch in scan.to_record_batches([task]):
            arrays = [batch.column(field.name).cast(field.type) for field in columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=columns)


class IcebergMergeTable(MergeTable[ManifestEntry]):
    """One snapshot of a table, and files to put into it.

    Where the table got other partitions since some of these files were written, the rows of a file may belong to any
    partition: then there is one place for all, and each row finds its own partition when it is written anew.
    """

    def __init__(
        self,
        table: Any,
        layout: TableLayout,
        primary_key: Sequence[str],
        target_bytes: int,
        written: Sequence[ManifestEntry],
    ) -> None:
        self._table, self._layout = table, layout
        self._format = IcebergFiles(layout, lambda _: None, target_bytes)
        self._columns = self._format.columns
        self.key = pa.schema([self._columns.field(name) for name in primary_key])
        self._reader = SnapshotReader(table, self._columns)
        self._files = self._format.new(self._columns, "merged", self.key.names)
        self._tasks: dict[str, Any] = {task.file.file_path: task for task in table.scan().plan_files()}
        specs = {entry.spec for entry in written} | {task.file.spec_id for task in self._tasks.values()}
        self._one_place = specs != {self._format.spec.spec_id}

    def partition_of(self, file: ManifestEntry) -> Partition:
        return () if self._one_place else values_of(as_data_file(file, "", self._format.spec, self._format.schema))

    def listed(self, partition: Partition) -> Sequence[ListedFile]:
        files = (task.file for task in self._tasks.values())
        return [self._bounded(file) for file in files if self._one_place or values_of(file) == partition]

    def _bounded(self, file: DataFile) -> ListedFile:
        field: Any = self._format.schema.find_field(self.key.names[0])
        found = [(bounds or {}).get(field.field_id) for bounds in (file.lower_bounds, file.upper_bounds)]
        low, high = (None if data is None else self._typed(from_bytes(field.field_type, data)) for data in found)
        return ListedFile(file.file_path, int(file.file_size_in_bytes), low, high)

    def _typed(self, value: Any) -> Any:
        """A bound as Arrow has it: the library gives dates and times as numbers."""
        kind = self.key.field(0).type
        if isinstance(value, int) and pa.types.is_temporal(kind):
            return pa.scalar(value, pa.int32() if pa.types.is_date32(kind) else pa.int64()).cast(kind).as_py()
        return value

    def read(self, file: ListedFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        return self._reader.read(self._tasks[file.path], columns)

    def read_written(self, file: ManifestEntry, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Columns are found by their ids: one may have been renamed since, or added."""
        entry = as_data_file(file, self._layout.data, self._table.specs()[file.spec], self._format.schema)
        return self._reader.read(FileScanTask(entry), columns)

    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        if self._one_place:
            self._format.add(self._files, rows)
        else:
            self._files.add_to(partition, rows)
            self._files.bound_memory()

    def finish(self) -> list[ManifestEntry]:
        return [self._format.described(file) for file in self._files.finish()]

    def abort(self) -> None:
        self._files.abort()


def values_of(file: DataFile) -> Partition:
    """The values of a file's partition, dates and times as numbers."""
    return tuple(plain(file.partition[number]) for number in range(len(file.partition)))
