"""Writes one subtask's output of one epoch as data files of an Iceberg table, in the Spark task.

Columns carry the table's field ids. A committable holds, for each file, what its manifest entry needs: name, size,
partition values in Iceberg's binary form, and the statistics of its columns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import (
    StatsAggregator,
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

from penstock.sinks.base import WriterContext
from penstock.sinks.iceberg.layout import TableLayout
from penstock.sinks.lake.keys import without_kind
from penstock.sinks.lake.writer import LakeWriter
from penstock.sinks.parquet.files import ParquetFiles, WrittenFile
from penstock.sinks.parquet.partitions import Partition
from penstock.sinks.parquet.remote import open_folder

if TYPE_CHECKING:
    from penstock.sinks.iceberg.sink import Iceberg

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


class ManifestEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file that a commit adds; maps are by field id. With `deletes` it holds keys whose rows go away."""

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
    deletes: bool = False

    @property
    def rows(self) -> int:
        return self.record_count


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
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{root}/{entry.path}",
        file_format=FileFormat.PARQUET,
        partition=Record(*values),
        file_size_in_bytes=entry.size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    made.spec_id = spec.spec_id
    return made


class IcebergFiles:
    """Makes data files of a table, and describes them. `columns` are what files hold, with the table's field ids."""

    def __init__(self, layout: TableLayout, announce: Callable[[str], object], target_bytes: int) -> None:
        self._layout, self._announce, self._target_bytes = layout, announce, target_bytes
        self.schema = Schema.model_validate_json(layout.schema)
        self.spec = PartitionSpec.model_validate_json(layout.spec)
        self.columns: pa.Schema = schema_to_pyarrow(self.schema)
        self._types: list[Any] = [field.field_type for field in self.spec.partition_type(self.schema).fields]

    def new(self, columns: pa.Schema, prefix: str, sort_by: Sequence[str]) -> ParquetFiles:
        return ParquetFiles(
            open_folder(self._layout.data),
            columns,
            (),
            self.folder_of,
            announce=self._announce,
            prefix=prefix,
            target_bytes=self._target_bytes,
            sort_by=sort_by,
        )

    def add(self, files: ParquetFiles, rows: pa.RecordBatch) -> None:
        """Puts rows into the files of their partitions."""
        files.add(rows, self._keys(rows) if self.spec.fields else None)

    def _keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The partition values of rows: each transform is the library's own."""
        found = {}
        for number, part in enumerate(self.spec.fields):
            source = self.schema.find_field(part.source_id)
            column = rows.column(source.name)
            if not isinstance(part.transform, IdentityTransform):
                if pa.types.is_large_binary(column.type):  # the library cuts small ones only
                    column = column.cast(pa.binary())
                column = part.transform.pyarrow_transform(source.field_type)(column)
            column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
            found[f"partition {number}"] = column
        return pa.record_batch(found)

    def _record(self, values: Partition) -> Record:
        return Record(*[plain(value) for value in values])

    def folder_of(self, values: Partition) -> str:
        return self.spec.partition_to_path(self._record(values), self.schema) if values else ""

    def described(self, file: WrittenFile, *, deletes: bool = False) -> ManifestEntry:
        """What the manifest says of a file."""
        statistics = _statistics(file.footer, self.schema)
        record = self._record(file.partition)
        values = zip(self._types, (record[number] for number in range(len(self._types))), strict=True)
        return ManifestEntry(
            path=file.name,
            size=file.bytes,
            spec=self.spec.spec_id,
            folder=self.folder_of(file.partition),
            partition=[None if value is None else to_bytes(kind, value) for kind, value in values],
            deletes=deletes,
            **{name: statistics[name] for name in _STATISTICS},
        )


def _statistics(footer: pq.FileMetaData, schema: Schema) -> dict[str, Any]:
    """The library's own, without bounds that are not certain."""
    paths = parquet_path_to_id_mapping(schema)
    found = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, {}),
        parquet_column_mapping=paths,
    )
    uncertain = {paths[path] for path in _without_bounds(footer)}
    for number, bounds in list(found.column_aggregates.items()):
        if number in uncertain or not _can_be_written(bounds):
            del found.column_aggregates[number]
    return dict(found.to_serialized_dict())


def _without_bounds(footer: pq.FileMetaData) -> Iterator[str]:
    """Columns with values that a row group has no bounds of, which the library would overlook: Parquet keeps none of
    texts of more than 4 KiB."""
    for group in map(footer.row_group, range(footer.num_row_groups)):
        for column in map(group.column, range(footer.num_columns)):
            found = column.statistics
            if found is not None and not found.has_min_max and found.null_count != column.num_values:
                yield column.path_in_schema


def _can_be_written(bounds: StatsAggregator) -> bool:
    """A text that is cut and rounded up may end in half of a character."""
    try:
        bounds.min_as_bytes()
        bounds.max_as_bytes()
    except UnicodeEncodeError:
        return False
    return True


class _FewerWarnings(logging.Filter):
    """A column without statistics is our choice: it has a NaN."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("PyArrow statistics missing")


logging.getLogger("pyiceberg.io.pyarrow").addFilter(_FewerWarnings())


class IcebergWriter(LakeWriter[ManifestEntry]):
    """As `LakeWriter`."""

    def __init__(self, sink: Iceberg, layout: TableLayout, schema: pa.Schema, context: WriterContext) -> None:
        self._format = IcebergFiles(layout, context.announce, sink.target_file_size)
        self._prefix, self._sort_by = f"{context.checkpoint}-{context.subtask}", sink.sort_by
        stored = without_kind(schema, sink.row_kind).names
        columns = pa.schema([field for field in self._format.columns if field.name in stored])
        super().__init__(sink.description, layout.name, columns, sink.primary_key, sink.row_kind)

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [batch.column(field.name).cast(field.type) for field in self._columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self._columns)

    def _new_files(self, columns: pa.Schema, *, deletes: bool) -> ParquetFiles:
        return self._format.new(columns, f"gone-{self._prefix}" if deletes else self._prefix, self._sort_by)

    def _add(self, files: ParquetFiles, rows: pa.RecordBatch) -> None:
        self._format.add(files, rows)

    def _described(self, file: WrittenFile, *, deletes: bool) -> ManifestEntry:
        return self._format.described(file, deletes=deletes)

    def _encoded(self, files: Sequence[ManifestEntry]) -> bytes:
        return encode(files)


def plain(value: Any) -> Any:
    """A partition value as the library's records hold it: dates and times as numbers."""
    match value:
        case datetime():
            return datetime_to_micros(value)
        case date():
            return date_to_days(value)
        case time():
            return time_to_micros(value)
    return value
