"""Writes one subtask's output of one epoch as data files of a Paimon table, in the Spark task.

Invariants: nothing here looks at or changes the table's snapshots; what `prepare` hands over is durable on a local
warehouse; a committable is about 500 bytes, whatever its rows hold.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from penstock.errors import PenstockError, SubtaskFailed
from penstock.sinks import paimon_local as local
from penstock.sinks import paimon_private as private
from penstock.sinks.base import Committable, WriterContext
from penstock.sinks.paimon_open import open_table
from penstock.sinks.paimon_schema import check_columns

# Column statistics hold whole values, untruncated, and would carry long strings into every checkpoint. The optional
# native writer has other rules for cleaning up.
_OPTIONS = {"metadata.stats-mode": "none", "write.native.enabled": "false"}

# An Arrow string column ends at 2 GiB; a batch of large strings beyond half of that is written in pieces.
_PIECE_BYTES_MAX = 1 << 30


class PaimonWriter:
    """One writer per attempt; file names hold a random part, so that attempts never meet."""

    def __init__(self, warehouse: str, table: str, context: WriterContext, schema: pa.Schema) -> None:
        self._table = private.with_options(open_table(warehouse, table), _OPTIONS)
        self._columns = check_columns(schema, self._table, ())
        self._root = local.as_local(str(self._table.table_path))
        self._checkpoint = context.checkpoint
        self._write = self._table.new_stream_write_builder().new_write()
        private.announce_files(self._write, lambda path: context.announce(private.relative_to_table(self._table, path)))
        self._messages: list[private.Message] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows > 1 and batch.nbytes > _PIECE_BYTES_MAX:
            half = batch.num_rows // 2
            self.write(batch.slice(0, half))
            self.write(batch.slice(half))
        elif batch.num_rows:
            try:
                self._write.write_arrow_batch(_as_columns(batch, self._columns))
            except Exception as error:
                raise _failed(str(self._table.table_path), error) from error

    def prepare(self) -> list[Committable]:
        try:
            self._messages = self._write.prepare_commit(self._checkpoint)
            if self._root is not None:
                local.sync_files(map(Path, self._paths()), Path(self._root))
            return [self._committable(message) for message in self._messages]
        except Exception as error:
            # Not close: that would write what is buffered once more.
            self.abort()
            raise _failed(str(self._table.table_path), error) from error

    def abort(self) -> None:
        self._write.abort()
        for path in self._paths():
            self._table.file_io.delete_quietly(path)

    def _paths(self) -> list[str]:
        return [path for message in self._messages for path in private.data_paths(self._table, message).values()]

    def _committable(self, message: private.Message) -> Committable:
        return Committable(
            payload=private.encode(self._table, message),
            rows=sum(int(file.row_count) for file in message.new_files),
            bytes=sum(int(file.file_size) for file in message.new_files),
        )


def _as_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The same rows with the table's order and types; without copying where only the order differs."""
    arrays = [batch.column(field.name) for field in columns]
    arrays = [
        array if array.type == field.type else array.cast(field.type)
        for array, field in zip(arrays, columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _failed(path: str, error: Exception) -> PenstockError:
    return local.storage_error(error, path) or SubtaskFailed(
        f"the writer of table {path} failed: {type(error).__name__}: {error}",
        cause="pypaimon cannot write these rows, or its storage failed",
        next_step="look at the rows or the storage named above, then start again: nothing published was lost",
        path=path,
    )
