"""Writes one subtask's output of one epoch as data files of a lake, in the Spark task: what no format changes.

A table with a primary key gets two kinds of files: rows to put, and keys whose rows go away. They are handed over in
the order in which they were written: where a key is in several, the last one counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.sinks.base import Committable
from penstock.sinks.lake.commit import F, write_failed
from penstock.sinks.lake.keys import KeyedRows
from penstock.sinks.parquet.files import ParquetFiles, WrittenFile


class LakeWriter(ABC, Generic[F]):
    """One writer per attempt; file names hold a random part, so that attempts never meet.

    `columns` are what the table stores of the stream.
    """

    def __init__(
        self, description: str, path: str, columns: pa.Schema, primary_key: Sequence[str], row_kind: str | None
    ) -> None:
        self._description, self._path, self._columns, self._row_kind = description, path, columns, row_kind
        self._key = pa.schema([columns.field(name) for name in primary_key])
        self._keyed = KeyedRows(tuple(primary_key), columns) if primary_key else None
        self._open: list[ParquetFiles] = []
        self._files: list[F] = []

    @abstractmethod
    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Rows with the table's columns and types."""

    @abstractmethod
    def _new_files(self, columns: pa.Schema, *, deletes: bool) -> ParquetFiles:
        """Files with these columns, partition columns included."""

    @abstractmethod
    def _add(self, files: ParquetFiles, rows: pa.RecordBatch) -> None:
        """Puts rows into the files of their partitions."""

    @abstractmethod
    def _described(self, file: WrittenFile, *, deletes: bool) -> F:
        """What a commit needs to know of a file."""

    @abstractmethod
    def _encoded(self, files: Sequence[F]) -> bytes:
        """The payload of a committable."""

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            rows = self._stored(batch)
            if self._keyed is None:
                if not self._open:
                    self._open.append(self._new_files(self._columns, deletes=False))
                self._add(self._open[0], rows)
                return
            self._keyed.add(rows, None if self._row_kind is None else batch.column(self._row_kind))
            if self._keyed.full:
                self._put_down(self._keyed)
        except PenstockError:
            raise
        except Exception as error:
            raise write_failed(self._description, self._path, error) from error

    def _put_down(self, keyed: KeyedRows) -> None:
        rows, keys = keyed.take()
        for table, columns, deletes in ((rows, self._columns, False), (keys, self._key, True)):
            if table.num_rows:
                files = self._new_files(columns, deletes=deletes)
                self._open.append(files)
                for batch in table.to_batches():
                    self._add(files, batch)
                self._files += [self._described(file, deletes=deletes) for file in files.finish()]

    def prepare(self) -> list[Committable]:
        try:
            if self._keyed is not None:
                self._put_down(self._keyed)
            elif self._open:
                self._files = [self._described(file, deletes=False) for file in self._open[0].finish()]
        except Exception as error:
            self.abort()
            raise write_failed(self._description, self._path, error) from error
        if not self._files:
            return []
        rows, size = sum(file.rows for file in self._files), sum(file.size for file in self._files)
        return [Committable(self._encoded(self._files), rows, size)]

    def abort(self) -> None:
        for files in self._open:
            files.abort()
