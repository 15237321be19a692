"""Data files of one subtask: rows are buffered per partition and bucket, then written by pypaimon's file writers.

The second home, beside `paimon_private`, of touches that pypaimon's documentation does not promise: its file writers
are given sequence numbers of ours and a fold of ours. tests/sinks/test_paimon_keyed.py fails when a name moves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pypaimon.common.memory_size import MemorySize
from pypaimon.write.commit_message import CommitMessage
from pypaimon.write.writer.append_only_data_writer import AppendOnlyDataWriter
from pypaimon.write.writer.data_writer import DataWriter
from pypaimon.write.writer.key_value_data_writer import KeyValueDataWriter

from penstock.display import value_of
from penstock.errors import SubtaskFailed
from penstock.sinks.paimon import fold, private
from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.stats import FileStats, footer_options, nan_columns
from penstock.sinks.rowkind import Kinds, takes_back
from penstock.sinks.runs import run_starts

Partition = tuple[Any, ...]

BUFFER_BYTES = 128 << 20
"""What one subtask buffers over all partitions and buckets, unless the table says so by ``write-buffer-size``."""

KEY_PREFIX = "_KEY_"


class DataFiles:
    """The open files of one writer. Rows of one partition and bucket are in files by the order in which they came.

    `announce` is called with the name of each file, relative to the table, before it is made.
    """

    def __init__(
        self, table: private.Table, kind: Kind, announce: Callable[[str], object], stats: Callable[[], FileStats]
    ) -> None:
        self._table, self._kind, self._announce, self._stats = table, kind, announce, stats
        size = kind.options.get("write-buffer-size")
        self._limit = MemorySize.parse(size).get_bytes() if size else BUFFER_BYTES
        self._writers: dict[tuple[Partition, int], DataWriter] = {}
        self._folds = Folds(table, kind) if kind.primary_key else None

    def add(
        self, partition: Partition, bucket: int, rows: pa.RecordBatch, sequence: npt.NDArray[np.int64], kinds: Kinds
    ) -> None:
        """Takes rows of one partition and bucket; `sequence` grows from row to row."""
        writer = self._writers.get((partition, bucket))
        if writer is None:
            writer = self._writers[partition, bucket] = self._open(partition, bucket, int(sequence[0]))
            private.announce_files(writer, lambda path: self._announce(private.relative_to_table(self._table, path)))
        if self._kind.primary_key:
            rows = self._with_system_columns(rows, sequence, kinds)
        elif self._kind.bucketed:
            writer.sequence_generator.current = int(sequence[-1])
        writer.write(rows)

    def bound_memory(self) -> None:
        """Writes the largest buffers out until at most half of the limit is buffered."""
        sizes = {place: writer._buffer.nbytes for place, writer in self._writers.items()}  # noqa: SLF001
        total = sum(sizes.values())
        if total <= self._limit:
            return
        for place in sorted(sizes, key=sizes.__getitem__, reverse=True):
            # Preparing writes what is buffered, and may be done again.
            self._writers[place].prepare_commit()
            total -= sizes[place]
            if total <= self._limit // 2:
                return

    def finish(self) -> list[private.Message]:
        """Closes all files; one message for each partition and bucket that got rows."""
        messages = [
            CommitMessage(partition=partition, bucket=bucket, new_files=writer.prepare_commit())
            for (partition, bucket), writer in self._writers.items()
        ]
        return [message for message in messages if message.new_files]

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.abort()

    def _open(self, partition: Partition, bucket: int, first: int) -> DataWriter:
        options = self._table.options
        writer: DataWriter
        if self._folds is not None:
            writer = KeyedWriter(self._table, partition, bucket, options, self._folds)
        else:
            writer = AppendOnlyDataWriter(self._table, partition, bucket, first if self._kind.bucketed else 0, options)
        return with_statistics(writer, self._stats)

    def _with_system_columns(
        self, rows: pa.RecordBatch, sequence: npt.NDArray[np.int64], kinds: Kinds
    ) -> pa.RecordBatch:
        names = self._table.trimmed_primary_keys
        arrays = [*(rows.column(name) for name in names), pa.array(sequence), pa.array(kinds), *rows.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=keyed_schema(names, rows.schema))


def keyed_schema(keys: Sequence[str], columns: pa.Schema) -> pa.Schema:
    """What a file of a table with a primary key holds: key columns, sequence number, kind of the row, all columns."""
    fields = [columns.field(name).with_name(KEY_PREFIX + name) for name in keys]
    fields += [pa.field(fold.SEQUENCE, pa.int64(), nullable=False), pa.field(fold.KIND, pa.int8(), nullable=False)]
    return pa.schema([*fields, *columns])


def with_statistics(writer: DataWriter, stats: Callable[[], FileStats]) -> DataWriter:
    """The same writer, whose files get column statistics: pypaimon has only whole values, or none."""
    write = writer._write_data_to_file  # noqa: SLF001
    plain = writer.parquet_writer_options

    def written(data: pa.Table) -> None:
        writer.parquet_writer_options = plain | footer_options(data.schema, nan_columns(data))
        write(data)
        gathered = stats()
        gathered.add(data)
        value_stats, columns = gathered.result()
        writer.committed_files[-1] = dataclasses.replace(
            writer.committed_files[-1], value_stats=value_stats, value_stats_cols=columns
        )

    writer._write_data_to_file = written  # noqa: SLF001
    return writer


class Folds:
    """How rows of one key become one, by the table's merge engine."""

    def __init__(self, table: private.Table, kind: Kind) -> None:
        self._table, self._engine = table, kind.merge_engine
        self._keys = list(table.trimmed_primary_keys)
        by_column = dict.fromkeys(kind.columns.names, "last_non_null_value")
        if self._engine == "aggregation":
            by_column = private.aggregate_functions(table)
        self._functions = ["primary_key"] * (len(self._keys) + 2) + list(by_column.values())
        self._vectorised = all(fold.can_fold(kind.columns.field(name).type, by_column[name]) for name in by_column)
        self.merge_function = None if self._vectorised else private.merge_function(table)

    def __call__(self, data: pa.Table, one_by_one: Any) -> pa.Table:
        """`data` sorted by key and age; `one_by_one` is pypaimon's own fold, for functions that numpy does not have."""
        starts = run_starts([data.column(KEY_PREFIX + name) for name in self._keys])
        if len(starts) == data.num_rows and self._vectorised:
            return data  # functions that numpy does not have may change single values: listagg drops blank ones
        if self._engine == "first-row":
            return fold.keep_first(data, starts)
        if self._engine == "deduplicate":
            return fold.keep_last(data, starts)
        if self._vectorised:
            return fold.fold_columns(data, starts, self._functions)
        return one_by_one(data)


class KeyedWriter(KeyValueDataWriter):  # type: ignore[misc]  # pypaimon has no types
    """pypaimon's writer of tables with a primary key, given rows that have their system columns already."""

    def __init__(self, table: private.Table, partition: Partition, bucket: int, options: Any, folds: Folds) -> None:
        super().__init__(table, partition, bucket, 0, options, merge_function=folds.merge_function)
        self._folds = folds

    def _process_data(self, data: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([data])

    def _merge_pending_by_pk(self, data: pa.Table) -> pa.Table:
        # In one piece: pypaimon takes a file's largest key from the first piece.
        return self._folds(data, super()._merge_pending_by_pk).combine_chunks()

    def in_order(self, data: pa.Table) -> pa.Table:
        """Rows by key, and the rows of a key from the oldest to the newest."""
        return self._sort_by_primary_key(data)

    def folded(self, data: pa.Table) -> pa.Table:
        """One row for each key; `data` is in order."""
        return self._merge_pending_by_pk(data)

    def _write_data_to_file(self, data: pa.Table) -> None:
        assert data.num_rows, "pypaimon writes no file for nothing"
        super()._write_data_to_file(data)
        deleted = int(takes_back(np.asarray(data.column(fold.KIND))).sum())
        self.committed_files[-1] = dataclasses.replace(self.committed_files[-1], delete_row_count=deleted)


def groups_of(
    batch: pa.RecordBatch, partition_by: tuple[str, ...], buckets: npt.NDArray[np.int64] | None
) -> Iterator[tuple[Partition, int, npt.NDArray[np.int64] | None]]:
    """Rows by partition and bucket, each group's in their order; None in place of all rows."""
    if buckets is None and not partition_by:
        yield (), 0, None
        return
    codes = np.zeros(batch.num_rows, dtype=np.int64) if buckets is None else buckets
    for name in partition_by:
        encoded = batch.column(name).dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for lo, hi in zip(starts, [*starts[1:], len(order)], strict=True):
        first = int(order[lo])
        partition = tuple(_partition_value(batch.column(name)[first], name) for name in partition_by)
        bucket = 0 if buckets is None else int(buckets[first])
        yield partition, bucket, None if len(starts) == 1 else order[lo:hi]


def _partition_value(scalar: pa.Scalar, column: str) -> Any:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError) as error:
        raise SubtaskFailed(
            f"the partition column {column!r} holds {value_of(scalar)!r}: {error}",
            cause="a partition is a folder of the table, and this value cannot be its name",
            next_step="repair such values before they reach the table, for example with make_valid_utf8 in select()",
            column=column,
        ) from error
