"""Writes one subtask's output of one epoch as data files of an Iceberg table, in the Spark task.

Columns carry the table's field ids. A committable holds, for each file, what its manifest entry needs: name, size,
partition values in Iceberg's binary form, and the statistics of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, time
from typing import Any

import msgspec
import pyarrow as pa
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, time_to_micros

from penstock.errors import PenstockError, SubtaskFailed
from penstock.sinks.base import Committable, WriterContext
from penstock.sinks.iceberg.layout import TableLayout
from penstock.sinks.parquet.files import ParquetFiles, WrittenFile
from penstock.sinks.parquet.partitions import Partition
from penstock.sinks.parquet.remote import open_folder

_STATISTICS = (
    "record_count",
    "column_sizes",
    "value_counts",
    "null_value_counts",
    "nan_value_counts",
    "lower_bounds",
    "upper_bounds",
    "split_offsets",
)


class ManifestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file that a commit adds to the table; maps are by field id."""

    path: str
    size: int
    spec: int
    folder: str
    partition: list[bytes | None]
    record_count: int
    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    nan_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: list[int]


def encode(entries: Sequence[ManifestEntry]) -> bytes:
    return msgspec.json.encode(entries)


def decode(payload: bytes) -> list[ManifestEntry]:
    """Raises: `msgspec.DecodeError`."""
    return msgspec.json.decode(payload, type=list[ManifestEntry])


def as_data_file(entry: ManifestEntry, root: str, spec: PartitionSpec, schema: Schema) -> DataFile:
    """The entry as the library adds it to a manifest."""
    types: list[Any] = [field.field_type for field in spec.partition_type(schema).fields]
    values = [
        None if data is None else from_bytes(kind, data) for kind, data in zip(types, entry.partition, strict=True)
    ]
    statistics = {name: getattr(entry, name) for name in _STATISTICS}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{entry.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=entry.size,
        sort_order_id=None,
        spec_id=spec.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )


class IcebergWriter:
    """One writer per attempt; file names hold a random part, so that attempts never meet."""

    def __init__(self, layout: TableLayout, schema: pa.Schema, context: WriterContext, target_bytes: int) -> None:
        self._layout = layout
        self._schema = Schema.model_validate_json(layout.schema)
        self._spec = PartitionSpec.model_validate_json(layout.spec)
        present = [field for field in schema_to_pyarrow(self._schema) if field.name in schema.names]
        self._columns = pa.schema(present)
        self._names = [field.name for field in self._spec.fields]
        self._types: list[Any] = [field.field_type for field in self._spec.partition_type(self._schema).fields]
        self._files = ParquetFiles(
            open_folder(layout.data),
            self._columns,
            (),
            self._folder_of,
            announce=context.announce,
            prefix=f"{context.checkpoint}-{context.subtask}",
            target_bytes=target_bytes,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            arrays = [batch.column(field.name).cast(field.type) for field in self._columns]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self._columns)
            self._files.add(rows, self._keys(rows) if self._spec.fields else None)
        except PenstockError:
            raise
        except Exception as error:
            raise _failed(self._layout.name, error) from error

    def _keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The partition values of rows: each transform is the library's own."""
        found = {}
        for number, part in enumerate(self._spec.fields):
            source = self._schema.find_field(part.source_id)
            column = rows.column(source.name)
            if not isinstance(part.transform, IdentityTransform):
                column = part.transform.pyarrow_transform(source.field_type)(column)
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            found[f"partition {number}"] = column
        return pa.record_batch(found)

    def _record(self, values: Partition) -> Record:
        return Record(*[_plain(value) for value in values])

    def _folder_of(self, values: Partition) -> str:
        return self._spec.partition_to_path(self._record(values), self._schema) if values else ""

    def prepare(self) -> list[Committable]:
        try:
            entries = [self._entry(file) for file in self._files.finish()]
        except Exception as error:
            self.abort()
            raise _failed(self._layout.name, error) from error
        if not entries:
            return []
        rows, size = sum(entry.record_count for entry in entries), sum(entry.size for entry in entries)
        return [Committable(encode(entries), rows, size)]

    def abort(self) -> None:
        self._files.abort()

    def _entry(self, file: WrittenFile) -> ManifestEntry:
        statistics = data_file_statistics_from_parquet_metadata(
            parquet_metadata=file.footer,
            stats_columns=compute_statistics_plan(self._schema, {}),
            parquet_column_mapping=parquet_path_to_id_mapping(self._schema),
        ).to_serialized_dict()
        record = self._record(file.partition)
        values = zip(self._types, (record[number] for number in range(len(self._types))), strict=True)
        return ManifestEntry(
            path=file.name,
            size=file.bytes,
            spec=self._spec.spec_id,
            folder=self._folder_of(file.partition),
            partition=[None if value is None else to_bytes(kind, value) for kind, value in values],
            **{name: statistics[name] for name in _STATISTICS},
        )


def _plain(value: Any) -> Any:
    """A partition value as the library's records hold it: dates and times as numbers."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case time():
            return time_to_micros(value)
    return value


def _failed(name: str, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return SubtaskFailed(
        f"the writer of Iceberg table {name} failed: {type(error).__name__}: {error}",
        cause="these rows cannot be written as Parquet, or the storage failed",
        next_step="look at the rows or the storage named above, then start again: nothing published was lost",
        path=name,
    )
