"""Writes one subtask's output of one epoch as data files of a Paimon table, in the Spark task.

Invariants: nothing here looks at or changes the table's snapshots; what `prepare` hands over is durable on a local
warehouse; a committable is about 500 bytes, whatever its rows hold.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PenstockError, SubtaskFailed
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import Committable
from penstock.sinks.paimon import local, private
from penstock.sinks.paimon.bucket import buckets_of
from penstock.sinks.paimon.files import DataFiles, groups_of
from penstock.sinks.paimon.kinds import ROW_KIND_FIELD, check_kind
from penstock.sinks.paimon.schema import check_columns
from penstock.sinks.paimon.sequence import ROW_BITS
from penstock.sinks.paimon.stats import FileStats
from penstock.sinks.paimon.text import limits_of, refuse_too_long
from penstock.sinks.rowkind import INSERT, Kinds, row_kinds, takes_back

# pypaimon's own column statistics hold whole values, or nothing; ours are made beside it, as the table says. The
# optional native writer has other rules for cleaning up.
_OPTIONS = {"metadata.stats-mode": "none", "write.native.enabled": "false"}

# An Arrow string column ends at 2 GiB; a batch of large strings beyond half of that is written in pieces.
_PIECE_BYTES_MAX = 1 << 30


def stored_columns(schema: pa.Schema, row_kind: str | None, table: pa.Schema | None) -> pa.Schema:
    """The stream's columns that are stored: the one with the row kinds is not, unless the table has it."""
    if row_kind is None or row_kind not in schema.names or (table is not None and row_kind in table.names):
        return schema
    return schema.remove(schema.get_field_index(row_kind))


class PaimonWriter:
    """One writer per attempt; file names hold a random part, so that attempts never meet.

    `first_sequence` numbers the first row, the rest follow.
    """

    def __init__(
        self,
        table: private.Table,
        checkpoint: CheckpointId,
        schema: pa.Schema,
        *,
        row_kind: str | None,
        first_sequence: int,
        announce: Callable[[str], object],
    ) -> None:
        options = {name: str(value) for name, value in table.table_schema.options.items()}
        self._table = private.with_options(table, _OPTIONS)
        self._kind = check_kind(self._table)
        self._columns = check_columns(stored_columns(schema, row_kind, self._kind.columns), self._table, ())
        self._limits = limits_of(self._table)
        self._row_kind = row_kind or self._kind.options.get(ROW_KIND_FIELD)
        self._root = local.as_local(str(self._table.table_path))
        self._checkpoint = checkpoint
        self._next = first_sequence
        self._sequence_end = first_sequence + (1 << ROW_BITS)
        self._files = DataFiles(self._table, self._kind, announce, partial(FileStats.of, table, options))
        self._messages: list[private.Message] = []

    def write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows > 1 and batch.nbytes > _PIECE_BYTES_MAX:
            half = batch.num_rows // 2
            self.write(batch.slice(0, half))
            self.write(batch.slice(half))
        elif batch.num_rows:
            try:
                self._write(batch)
            except PenstockError:
                raise
            except Exception as error:
                raise _failed(str(self._table.table_path), error) from error

    def prepare(self) -> list[Committable]:
        try:
            self._messages = self._files.finish()
            if self._root is not None:
                local.sync_files(map(Path, self._paths()), Path(self._root))
            return [self._committable(message) for message in self._messages]
        except Exception as error:
            self.abort()
            raise _failed(str(self._table.table_path), error) from error

    def abort(self) -> None:
        self._files.abort()
        for path in self._paths():
            self._table.file_io.delete_quietly(path)

    def _write(self, batch: pa.RecordBatch) -> None:
        batch, kinds = self._with_kinds(batch)
        rows = _as_columns(batch, self._columns)
        self._refuse_null_keys(rows)
        refuse_too_long(rows, self._limits)
        sequence = self._numbered(rows.num_rows)
        for partition, bucket, members in groups_of(rows, self._kind.partition_by, self._buckets(rows)):
            if members is None:
                self._files.add(partition, bucket, rows, sequence, kinds)
            else:
                self._files.add(partition, bucket, rows.take(pa.array(members)), sequence[members], kinds[members])
        self._files.bound_memory()

    def _with_kinds(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Kinds]:
        """The rows to write, and the kind of each."""
        if self._row_kind is None:
            return batch, np.full(batch.num_rows, INSERT, dtype=np.int8)
        kinds = row_kinds(batch.column(self._row_kind))
        if not self._kind.ignores_deletes:
            return batch, kinds
        kept = ~takes_back(kinds)
        return batch.filter(pa.array(kept)), kinds[kept]

    def _buckets(self, rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
        if not self._kind.bucketed:
            return None
        return buckets_of([rows.column(name) for name in self._kind.bucket_key], self._kind.buckets)

    def _numbered(self, rows: int) -> npt.NDArray[np.int64]:
        first, self._next = self._next, self._next + rows
        assert self._next <= self._sequence_end, "more rows in an epoch than sequence numbers"
        return np.arange(first, self._next, dtype=np.int64)

    def _refuse_null_keys(self, rows: pa.RecordBatch) -> None:
        nulls = [name for name in self._kind.primary_key if rows.column(name).null_count]
        if nulls:
            raise SubtaskFailed(
                f"a row has no value in {', '.join(nulls)}, which is part of the primary key",
                cause="the source or an operator made a null",
                next_step="drop such rows with a filter, or give them a value, before they reach the sink",
                column=nulls[0],
            )

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
