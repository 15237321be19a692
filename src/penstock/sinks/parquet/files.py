"""Writes the rows of one attempt as Parquet files: one partition each, rolled at a target size.

Invariants: a file is announced before it is made; buffers of all partitions together are bounded; what `finish` gives
is complete and, in a local folder, durable.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sinks.parquet.partitions import Partition, groups_of
from penstock.sinks.parquet.stats import ParquetStats, footer_statistics, nan_columns

TARGET_BYTES = 128 << 20
"""Readers open few files, and none is too large for one task."""
BUFFER_BYTES_MAX = 128 << 20
"""Of all partitions of a writer. Beyond it the largest becomes a row group of its file."""
ROW_GROUP_ROWS = 1 << 17
"""Readers skip row groups by their statistics and read several at once; engines write about as many themselves."""
OPTIONS: Mapping[str, Any] = {"compression": "zstd", "write_page_index": True}
"""With the page index readers skip pages within a row group, too."""


class TableFolder(Protocol):
    """Where files are made: names are relative to it."""

    def create(self, name: str) -> Any:
        """A stream that writes a new file."""
        ...

    def finish(self, names: Sequence[str]) -> None:
        """Makes files durable."""
        ...

    def exists(self, name: str) -> bool: ...
    def read(self, name: str) -> bytes | None:
        """The content of a small file; None where there is none."""
        ...

    def made_at_ms(self, name: str) -> int | None:
        """When a file was written, as its file system says; None where that is not known."""
        ...

    def open(self, name: str) -> pa.NativeFile:
        """Random access to a file. Raises: any exception where it cannot be read."""
        ...

    def remove(self, name: str) -> None:
        """Removes a file, if it is there."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """Files below a folder of this machine."""

    root: str

    def create(self, name: str) -> Any:
        path = Path(self.root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("xb")

    def finish(self, names: Sequence[str]) -> None:
        folders: set[Path] = set()
        for name in names:
            path = Path(self.root, name)
            _sync(path)
            folders |= {folder for folder in path.parents if folder.is_relative_to(self.root)}
        for folder in folders:
            _sync(folder)

    def exists(self, name: str) -> bool:
        return Path(self.root, name).is_file()

    def read(self, name: str) -> bytes | None:
        try:
            return Path(self.root, name).read_bytes()
        except FileNotFoundError:
            return None

    def made_at_ms(self, name: str) -> int | None:
        try:
            return Path(self.root, name).stat().st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return None

    def open(self, name: str) -> pa.NativeFile:
        return pa.OSFile(str(Path(self.root, name)))

    def remove(self, name: str) -> None:
        Path(self.root, name).unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One finished file."""

    name: str
    partition: Partition
    bytes: int
    made_at_ms: int
    stats: ParquetStats
    footer: pq.FileMetaData


@dataclass(slots=True)
class _Open:
    """A file that is being written, and rows that are not in it yet."""

    name: str
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered: int = 0
    stream: Any = None
    writer: pq.ParquetWriter | None = None
    stats: ParquetStats = field(default_factory=ParquetStats)
    without: frozenset[str] = frozenset()
    """Columns that get no statistics in the footer, because of their NaN."""


class ParquetFiles:
    """The files of one attempt. `folder_of` names the folder of a partition, `columns` are what a file holds.

    Rows of a row group are sorted by `sort_by`, so that readers skip by these columns. A file of less than
    `BUFFER_BYTES_MAX` is sorted as a whole.
    """

    def __init__(
        self,
        folder: TableFolder,
        columns: pa.Schema,
        partition_by: Sequence[str],
        folder_of: Callable[[Partition], str],
        *,
        announce: Callable[[str], object],
        prefix: str,
        target_bytes: int = TARGET_BYTES,
        sort_by: Sequence[str] = (),
    ) -> None:
        self._folder, self._columns, self._partition_by = folder, columns, tuple(partition_by)
        self._folder_of, self._announce, self._prefix = folder_of, announce, prefix
        self._target_bytes = target_bytes
        self._sort_by = [(name, "ascending") for name in sort_by if name in columns.names]
        self._open: dict[Partition, _Open] = {}
        self._done: list[WrittenFile] = []
        self._made: list[str] = []

    def add(self, rows: pa.RecordBatch, keys: pa.RecordBatch | None = None) -> None:
        """Takes rows; `keys` has their partition values where these are not columns of the rows."""
        if keys is None:
            for partition, members in groups_of(rows, self._partition_by):
                self.add_to(partition, members.select(self._columns.names))
        else:
            names = self._columns.names
            both = pa.RecordBatch.from_arrays([*rows.columns, *keys.columns], [*names, *keys.schema.names])
            for partition, members in groups_of(both, keys.schema.names):
                self.add_to(partition, pa.RecordBatch.from_arrays(members.columns[: len(names)], schema=self._columns))
        self.bound_memory()

    def bound_memory(self) -> None:
        """Writes what is buffered beyond the limit."""
        while sum(one.buffered for one in self._open.values()) > BUFFER_BYTES_MAX:
            self._flush(max(self._open, key=lambda partition: self._open[partition].buffered))

    def add_to(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Takes rows of one partition, with the columns of a file."""
        if partition not in self._open:
            self._open[partition] = _Open(self._new_name(partition))
        one = self._open[partition]
        one.batches.append(rows)
        one.buffered += rows.nbytes

    def _new_name(self, partition: Partition) -> str:
        folder = self._folder_of(partition)
        name = f"{self._prefix}-{uuid.uuid4()}.parquet"
        return f"{folder}/{name}" if folder else name

    def _flush(self, partition: Partition) -> None:
        one = self._open[partition]
        if not one.batches:
            return
        table = pa.Table.from_batches(one.batches, schema=self._columns)
        table = table.sort_by(self._sort_by) if self._sort_by else table
        one.batches, one.buffered = [], 0
        without = nan_columns(table)
        if one.writer is not None and not without <= one.without:
            self._close(partition)  # its footer has statistics of columns that have a NaN now
            one = self._open[partition] = _Open(self._new_name(partition))
        if one.writer is None:
            self._announce(one.name)
            self._made.append(one.name)
            one.stream, one.without = self._folder.create(one.name), without
            statistics = footer_statistics(self._columns, without)
            one.writer = pq.ParquetWriter(one.stream, self._columns, write_statistics=statistics, **OPTIONS)
        one.writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        one.stats.add(table)
        if one.stream.tell() >= self._target_bytes:
            self._close(partition)

    def _close(self, partition: Partition) -> None:
        one = self._open.pop(partition)
        assert one.writer is not None
        one.writer.close()
        size = one.stream.tell()
        one.stream.close()
        footer = one.writer.writer.metadata
        self._done.append(WrittenFile(one.name, partition, size, int(time.time() * 1000), one.stats, footer))

    def finish(self) -> list[WrittenFile]:
        """Closes all files; called once, last."""
        for partition in list(self._open):
            self._flush(partition)
            if partition in self._open:
                self._close(partition)
        self._folder.finish([file.name for file in self._done])
        return self._done

    def abort(self) -> None:
        """Removes everything that was made."""
        for one in self._open.values():
            if one.stream is not None:
                one.stream.close()
        self._open.clear()
        for name in self._made:
            self._folder.remove(name)
