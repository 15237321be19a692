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
from penstock.sinks.parquet.stats import FileStats

TARGET_BYTES = 128 << 20
"""Readers open few files, and none is too large for one task."""
BUFFER_BYTES_MAX = 128 << 20
"""Of all partitions of a writer. Beyond it the largest becomes a row group of its file."""
ROW_GROUP_ROWS = 1 << 20


class TableFolder(Protocol):
    """Where files are made: names are relative to it."""

    def create(self, name: str) -> Any:
        """A stream that writes a new file."""
        ...

    def finish(self, names: Sequence[str]) -> None:
        """Makes files durable."""
        ...

    def exists(self, name: str) -> bool: ...
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
    stats: FileStats
    footer: pq.FileMetaData


@dataclass(slots=True)
class _Open:
    """A file that is being written, and rows that are not in it yet."""

    name: str
    batches: list[pa.RecordBatch] = field(default_factory=list)
    buffered: int = 0
    stream: Any = None
    writer: pq.ParquetWriter | None = None
    stats: FileStats = field(default_factory=FileStats)


class ParquetFiles:
    """The files of one attempt. `folder_of` names the folder of a partition, `columns` are what a file holds."""

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
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder, self._columns, self._partition_by = folder, columns, tuple(partition_by)
        self._folder_of, self._announce, self._prefix = folder_of, announce, prefix
        self._target_bytes, self._options = target_bytes, dict(options or {})
        self._open: dict[Partition, _Open] = {}
        self._done: list[WrittenFile] = []
        self._made: list[str] = []

    def add(self, rows: pa.RecordBatch, keys: pa.RecordBatch | None = None) -> None:
        """Takes rows; `keys` has their partition values where these are not columns of the rows."""
        if keys is None:
            for partition, members in groups_of(rows, self._partition_by):
                self._add(partition, members.select(self._columns.names))
        else:
            names = self._columns.names
            both = pa.RecordBatch.from_arrays([*rows.columns, *keys.columns], [*names, *keys.schema.names])
            for partition, members in groups_of(both, keys.schema.names):
                self._add(partition, pa.RecordBatch.from_arrays(members.columns[: len(names)], schema=self._columns))
        while sum(one.buffered for one in self._open.values()) > BUFFER_BYTES_MAX:
            self._flush(max(self._open, key=lambda partition: self._open[partition].buffered))

    def _add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        if partition not in self._open:
            self._open[partition] = _Open(self._new_name(partition))
        one = self._open[partition]
        one.batches.append(rows)
        one.buffered += rows.nbytes
        one.stats.add(rows)

    def _new_name(self, partition: Partition) -> str:
        folder = self._folder_of(partition)
        name = f"{self._prefix}-{uuid.uuid4()}.parquet"
        return f"{folder}/{name}" if folder else name

    def _flush(self, partition: Partition) -> None:
        one = self._open[partition]
        if one.writer is None:
            self._announce(one.name)
            self._made.append(one.name)
            one.stream = self._folder.create(one.name)
            one.writer = pq.ParquetWriter(one.stream, self._columns, compression="zstd", **self._options)
        table = pa.Table.from_batches(one.batches, schema=self._columns)
        one.writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        one.batches, one.buffered = [], 0
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
