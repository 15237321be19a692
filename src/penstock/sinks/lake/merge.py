"""Puts rows into a table by their key: listed files lose the rows that were changed, and what is left is written anew.

Done by the committer, in the driver, for everything that one commit holds. Files are read one after the other, batch by
batch. What stays in memory are the keys of the commit, one batch, and the buffers of the files being written. A listed
file is opened only if its statistics allow one of the keys, and rewritten only if it holds one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import TableRefused
from penstock.sinks.lake.commit import F, TableChange
from penstock.sinks.parquet.partitions import Partition

MERGE_BYTES_MAX = 4 << 30
"""Of listed files that one commit rewrites, unless the sink says otherwise."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file of the table. `low` and `high` bound the first column of the key; None where they are not known."""

    path: str
    bytes: int
    low: Any
    high: Any


class MergeTable(ABC, Generic[F]):
    """How a merge reads and writes one table as it was looked at."""

    key: pa.Schema
    """Columns of the key that are in the files."""

    @abstractmethod
    def partition_of(self, file: F) -> Partition:
        """The partition that a writer's file belongs to."""

    @abstractmethod
    def listed(self, partition: Partition) -> Iterable[ListedFile]:
        """Files of the table in which rows of a partition may be."""

    @abstractmethod
    def read(self, file: ListedFile, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Rows of a listed file, as the table shows them."""

    @abstractmethod
    def read_written(self, file: F, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Rows of a writer's file."""

    @abstractmethod
    def add(self, partition: Partition, rows: pa.RecordBatch) -> None:
        """Takes rows that are written anew."""

    @abstractmethod
    def finish(self) -> list[F]:
        """The files that were written anew."""

    @abstractmethod
    def abort(self) -> None:
        """Removes what was written."""


class KeySet:
    """Keys, and which rows of a batch have one of them. Exact: keys are compared, not only their hashes."""

    def __init__(self, columns: pa.Schema) -> None:
        self._columns = columns
        # Names of their own: a key may be called as what a join adds.
        self._plain = pa.schema([(f"key {number}", field.type) for number, field in enumerate(columns)])
        self._parts: list[pa.Table] = []
        self._all: pa.Table | None = None

    def __len__(self) -> int:
        return sum(part.num_rows for part in self._parts)

    def add(self, rows: pa.Table) -> None:
        self._parts.append(self._keys(rows))
        self._all = None

    def outside(self, rows: pa.Table) -> pa.Array:
        """Places of rows whose key is not here, in their order."""
        if not self._parts:
            return pa.array(np.arange(rows.num_rows))
        keys = self._keys(rows).append_column("place", pa.array(np.arange(rows.num_rows)))
        left = keys.join(self._table(), keys=self._plain.names, join_type="left anti")
        return pa.array(np.sort(np.asarray(left.column("place"))))

    def may_be_in(self, low: Any, high: Any) -> bool:
        """Whether one of the keys lies between these bounds."""
        if not self._parts:
            return False
        if low is None or high is None:
            return True
        first = self._table().column(0)
        above, below = pa.scalar(low, first.type), pa.scalar(high, first.type)
        return bool(pc.any(pc.and_(pc.greater_equal(first, above), pc.less_equal(first, below))).as_py())

    def _keys(self, rows: pa.Table) -> pa.Table:
        return rows.select(self._columns.names).rename_columns(self._plain.names).cast(self._plain)

    def _table(self) -> pa.Table:
        if self._all is None:
            self._all = pa.concat_tables(self._parts).combine_chunks()
            self._parts = [self._all]
        return self._all


def merged(table: MergeTable[F], files: Sequence[F], bytes_max: int, description: str) -> TableChange[F]:
    """What a commit of `files`, oldest first, changes in the table. Of rows with equal keys the newest stays.

    Raises: `TableRefused` when it would rewrite more than `bytes_max`.
    """
    by_partition: dict[Partition, list[F]] = {}
    for file in files:
        by_partition.setdefault(table.partition_of(file), []).append(file)
    kept: list[F] = []
    spent: list[str] = []
    removed: list[str] = []
    rewritten = 0
    try:
        for partition, written in by_partition.items():
            keys = KeySet(table.key)
            for file in reversed(written):
                if _newest_rows(table, partition, file, keys):
                    kept.append(file)
                else:
                    spent.append(file.path)
            for listed in table.listed(partition):
                if not keys.may_be_in(listed.low, listed.high) or not _holds(table, listed, keys):
                    continue
                rewritten += listed.bytes
                if rewritten > bytes_max:
                    raise _too_much(description, rewritten, bytes_max)
                for rows in table.read(listed, None):
                    _add_rest(table, partition, rows, keys)
                removed.append(listed.path)
        made = table.finish()
    except BaseException:
        table.abort()
        raise
    return TableChange((*kept, *made), tuple(removed), made=tuple(file.path for file in made), spent=tuple(spent))


def _newest_rows(table: MergeTable[F], partition: Partition, file: F, keys: KeySet) -> bool:
    """Takes the rows of a writer's file whose keys no newer file has; says whether the file can stay as it is."""
    there = pa.Table.from_batches(list(table.read_written(file, table.key.names)))
    fresh = keys.outside(there)
    whole = len(fresh) == there.num_rows and not file.deletes
    if not whole and not file.deletes and len(fresh):
        for rows in table.read_written(file, None):
            _add_rest(table, partition, rows, keys)
    keys.add(there.take(fresh))
    return whole


def _holds(table: MergeTable[F], listed: ListedFile, keys: KeySet) -> bool:
    for rows in table.read(listed, table.key.names):
        if len(keys.outside(pa.Table.from_batches([rows]))) < rows.num_rows:
            return True
    return False


def _add_rest(table: MergeTable[F], partition: Partition, rows: pa.RecordBatch, keys: KeySet) -> None:
    rest = keys.outside(pa.Table.from_batches([rows]))
    if len(rest):
        table.add(partition, rows if len(rest) == rows.num_rows else rows.take(rest))


def _too_much(description: str, rewritten: int, bytes_max: int) -> TableRefused:
    return TableRefused(
        f"a commit to {description} would rewrite more than {bytes_max} bytes of the table ({rewritten} so far)",
        cause="its keys are in files all over the table, which the driver would have to rewrite",
        next_step="partition the table by a part of the key that changes rarely, raise merge_bytes_max, or write to a"
        " Paimon table with a primary key",
    )
