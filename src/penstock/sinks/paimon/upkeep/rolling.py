"""Writes sorted rows of one bucket as data files of about the target size, without holding them in memory."""

from __future__ import annotations

import uuid
from collections.abc import Collection
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.write.writer.parquet_writer_options import create_parquet_writer_options

from penstock.sinks.paimon import fold
from penstock.sinks.paimon.stats import FileStats, footer_options
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.rowkind import takes_back

COMPACTED = 1
"""Paimon's mark of a file that compaction made."""

_GROUP_BYTES_MAX = 64 << 20
_GROUP_BYTES_MIN = 64 << 10


class RollingFiles:
    """The files of one rewrite, all of one level. What is not finished can be taken back."""

    def __init__(
        self, table: KeptTable, partition: tuple[Any, ...], bucket: int, level: int, nan_columns: Collection[str]
    ) -> None:
        self._table, self._partition, self._bucket, self._level = table, partition, bucket, level
        self._nan_columns = nan_columns
        self._target = table.data_target_bytes(keyed=True)
        self._group_bytes = min(_GROUP_BYTES_MAX, max(_GROUP_BYTES_MIN, self._target // 4))
        self._open: _OpenFile | None = None
        self._paths: list[Path] = []
        self._done: list[DataFileMeta] = []

    def write(self, rows: pa.Table) -> None:
        """Takes rows behind all those before."""
        while rows.num_rows:
            share = rows.nbytes / self._group_bytes
            count = max(1, int(rows.num_rows / share)) if share > 1 else rows.num_rows
            self._write_group(rows.slice(0, count))
            rows = rows.slice(count)

    def finish(self) -> list[DataFileMeta]:
        """Closes the last file; all are durable then."""
        self._close()
        self._table.make_durable(self._paths)
        return self._done

    def abort(self) -> None:
        if self._open is not None:
            self._open.abandon()
        self._table.remove(self._paths)

    def _write_group(self, rows: pa.Table) -> None:
        if self._open is None:
            name = f"{self._table.table.options.data_file_prefix() or 'data-'}{uuid.uuid4()}-0.parquet"
            path = self._table.data_path(self._partition, self._bucket, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._paths.append(path)
            self._open = _OpenFile(self._table, path, rows.schema, self._level, self._nan_columns)
        if self._open.write(rows) >= self._target:
            self._close()

    def _close(self) -> None:
        if self._open is not None:
            self._done.append(self._open.close())
            self._open = None


class _OpenFile:
    def __init__(
        self, table: KeptTable, path: Path, schema: pa.Schema, level: int, nan_columns: Collection[str]
    ) -> None:
        self._table, self._path, self._level = table, path, level
        self._keys = [f"_KEY_{name}" for name in table.table.trimmed_primary_keys]
        self._stats = FileStats.of(table.table, table.options, level)
        self._file: BinaryIO = path.open("xb")
        self._writer = parquet_writer(self._file, schema, table.table.options, nan_columns)
        self._key_stats = FileStats.of_keys(table.table)
        self._low: list[Any] = []
        self._high: list[Any] = []
        self._sequences: list[int] = []
        self._rows = self._deleted = 0

    def write(self, rows: pa.Table) -> int:
        """How many bytes the file has now."""
        self._writer.write_table(rows, rows.num_rows)
        self._stats.add(rows)
        self._key_stats.add(rows)
        self._low = self._low or self._key_at(rows, 0)
        self._high = self._key_at(rows, rows.num_rows - 1)
        both = pc.min_max(rows.column(fold.SEQUENCE))
        self._sequences += [both["min"].as_py(), both["max"].as_py()]
        self._rows += rows.num_rows
        self._deleted += int(takes_back(np.asarray(rows.column(fold.KIND))).sum())
        return self._file.tell()

    def _key_at(self, rows: pa.Table, place: int) -> list[Any]:
        return [rows.column(name)[place].as_py() for name in self._keys]

    def abandon(self) -> None:
        self._writer.close()
        self._file.close()

    def close(self) -> DataFileMeta:
        self.abandon()
        fields = self._table.table.trimmed_primary_keys_fields
        value_stats, columns = self._stats.result()
        return DataFileMeta.create(
            file_name=self._path.name,
            file_size=self._path.stat().st_size,
            row_count=self._rows,
            min_key=GenericRow(self._low, fields),
            max_key=GenericRow(self._high, fields),
            key_stats=self._key_stats.result()[0],
            value_stats=value_stats,
            min_sequence_number=min(self._sequences),
            max_sequence_number=max(self._sequences),
            schema_id=self._table.table.table_schema.id,
            level=self._level,
            extra_files=[],
            delete_row_count=self._deleted,
            file_source=COMPACTED,
            value_stats_cols=columns,
        )


def parquet_writer(
    file: BinaryIO | Path, schema: pa.Schema, options: Any, nan_columns: Collection[str]
) -> pq.ParquetWriter:
    """As the table's options say."""
    compression = options.file_compression()
    level = options.file_compression_zstd_level() if compression.lower() == "zstd" else None
    return pq.ParquetWriter(
        file,
        schema,
        compression=compression,
        compression_level=level,
        **create_parquet_writer_options(options),
        **footer_options(schema, nan_columns),
    )
