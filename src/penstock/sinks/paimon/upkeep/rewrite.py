"""Rewrites several data files of an append table as one, row by row the same, without holding them in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.read.split import DataSplit
from pypaimon.table.row.generic_row import GenericRow

from penstock.errors import CorruptFile
from penstock.sinks.paimon import private
from penstock.sinks.paimon.stats import FileStats, maybe_nan_columns
from penstock.sinks.paimon.upkeep.files import ADD, Entry, KeptTable
from penstock.sinks.paimon.upkeep.rolling import COMPACTED, parquet_writer

# Row groups of this size are what pyarrow writes by default; wide rows are cut earlier, so that memory stays bounded.
_GROUP_ROWS_MAX = 1 << 20
_GROUP_BYTES_MAX = 64 << 20
_BATCH_ROWS = 1 << 16


class Stopped(Exception):
    """The work was called off; nothing of it is left."""


def rewrite(table: KeptTable, inputs: list[Entry], stopping: Callable[[], bool]) -> Entry:
    """The entry of a new file with the rows of the inputs, in their order, in the table's newest schema.

    Raises: `Stopped`; `CorruptFile` when the inputs do not hold as many rows as the table says.
    """
    first = inputs[0]
    partition = tuple(first.partition.values)
    name = f"{table.table.options.data_file_prefix() or 'data-'}{uuid.uuid4()}-0.parquet"
    path = table.data_path(partition, first.bucket, name)
    stats = FileStats.of(table.table, table.options)
    try:
        rows = _copy(table, inputs, path, stats, stopping)
        expected = sum(int(entry.file.row_count) for entry in inputs)
        if rows != expected:
            raise CorruptFile(
                f"{len(inputs)} data files of {table.root} hold {rows} rows, the table says {expected}",
                cause="a data file was changed after it was committed",
                next_step="compare the table with its source; the files were left as they are",
            )
        table.make_durable([path])
    except BaseException:
        table.remove([path])
        raise
    files = [entry.file for entry in inputs]
    value_stats, value_columns = stats.result()
    meta = DataFileMeta.create(
        file_name=name,
        file_size=path.stat().st_size,
        row_count=rows,
        min_key=first.file.min_key,
        max_key=first.file.max_key,
        key_stats=first.file.key_stats,
        value_stats=value_stats,
        min_sequence_number=min(file.min_sequence_number for file in files),
        max_sequence_number=max(file.max_sequence_number for file in files),
        schema_id=table.table.table_schema.id,
        level=0,
        extra_files=[],
        delete_row_count=0,
        file_source=COMPACTED,
        value_stats_cols=value_columns,
    )
    return ManifestEntry(ADD, first.partition, first.bucket, first.total_buckets, meta)


def _copy(table: KeptTable, inputs: list[Entry], path: Path, stats: FileStats, stopping: Callable[[], bool]) -> int:
    columns = private.columns_of(table.table)
    rows = 0
    nan_columns = maybe_nan_columns(columns, (entry.file for entry in inputs))
    with parquet_writer(path, columns, table.table.options, nan_columns) as writer:
        gathered: list[pa.RecordBatch] = []
        for batch in _batches(table, inputs, columns):
            if stopping():
                raise Stopped
            rows += batch.num_rows
            gathered.append(batch)
            if (
                sum(b.num_rows for b in gathered) >= _GROUP_ROWS_MAX
                or sum(b.nbytes for b in gathered) >= _GROUP_BYTES_MAX
            ):
                _write(writer, gathered, columns, stats)
                gathered = []
        _write(writer, gathered, columns, stats)
    return rows


def _batches(table: KeptTable, inputs: list[Entry], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows in the table's newest schema; pypaimon knows how to read files of older ones and of other writers."""
    for entry in inputs:
        (path,) = table.data_paths(entry)
        with pq.ParquetFile(path) as file:
            current = entry.file.schema_id == table.table.table_schema.id and file.schema_arrow.equals(columns)
            yield from file.iter_batches(_BATCH_ROWS) if current else _converted(table, entry, path)


def _converted(table: KeptTable, entry: Entry, path: Path) -> Iterator[pa.RecordBatch]:
    entry.file.file_path = str(path)
    partition = GenericRow(list(entry.partition.values), entry.partition.fields)
    split = DataSplit([entry.file], partition, entry.bucket, raw_convertible=True)
    yield from table.table.new_read_builder().new_read().to_arrow_batch_reader([split], parallelism=1)


def _write(writer: pq.ParquetWriter, batches: list[pa.RecordBatch], columns: pa.Schema, stats: FileStats) -> None:
    if batches:
        table = pa.Table.from_batches(batches)
        table = table if table.schema.equals(columns) else table.cast(columns)
        writer.write_table(table, _GROUP_ROWS_MAX)
        stats.add(table)
