"""Reading a table of state outside of a subtask: all of it in bounded memory, or one key.

Key groups are read in sections, one after the other; what was read of a section is let go before the next one. The
newest file that knows a key decides, as in a subtask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.observe.tables.shapes import StoredTable
from penstock.protocol.keygroups import KeyGroupRange, groups_of, joined, order_of
from penstock.state.compact import merged_chunks
from penstock.state.files import FileRun
from penstock.state.keys import KeyColumn, equal_keys, normalise
from penstock.state.layout import FIRST_ORDER, LAST_ORDER
from penstock.state.runs import SortedRun, merge
from penstock.store.base import Store

_CUTS_MAX = 1024
SECTION_ROWS = 1 << 20


class StateScan:
    """The open files of one table, newest first. A file that is open stays readable when it is deleted, where the
    storage is a local disk."""

    def __init__(self, store: Store, table: StoredTable, max_parallelism: int, groups: KeyGroupRange) -> None:
        """Raises: `MissingFile`, `CorruptFile`; `CheckpointMismatch` for a file with other columns."""
        self._table, self._max_parallelism, self._groups = table, max_parallelism, groups
        with ExitStack() as opened:
            self.files = [
                opened.enter_context(closing(FileRun.open(store, file, groups, table.schema, max_parallelism)))
                for file in reversed(table.files)
                if any(part.intersect(groups) for part in file.ranges)
            ]
            opened.pop_all()

    def close(self) -> None:
        for file in self.files:
            file.close()

    def runs(self) -> Iterator[SortedRun]:
        """Every key with its value, by key group."""
        for section in sections(self.files, self._groups):
            levels = [level for file in self.files if (level := file.restricted(section)).rows]
            if len(levels) == 1:
                yield from filter(_any_rows, map(_alive, levels[0].between(FIRST_ORDER, LAST_ORDER)))
            else:
                yield from merged_chunks(levels, drop_deleted=True)

    def find(self, key: Sequence[pa.Array]) -> Iterator[SortedRun]:
        """The rows of one key, given as arrays of one value."""
        key = [normalise(column) for column in key]
        hashes = hash_columns(key)
        group = int(groups_of(hashes, self._max_parallelism)[0])
        own = KeyGroupRange(group, group + 1)
        levels = [file.restricted(own) for file in self.files]
        if self._table.found_by_key:
            (order,) = order_of(hashes, self._max_parallelism)
            parts = [part for level in levels for part in level.between(order, order)]
            candidates = iter([merge(parts, drop_deleted=True)] if parts else [])
        else:
            candidates = merged_chunks([level for level in levels if level.rows], drop_deleted=True)
        wanted = tuple(KeyColumn(column) for column in key)
        first = self._table.key_begin
        for run in candidates:
            keys = tuple(KeyColumn(column) for column in run.columns[first : first + len(key)])
            rows = np.arange(run.rows)
            hits = np.flatnonzero(equal_keys(keys, rows, wanted, np.zeros(run.rows, np.int64)))
            if len(hits):
                yield _taken(run, hits)


def sections(files: Sequence[FileRun], groups: KeyGroupRange, rows: int = SECTION_ROWS) -> list[KeyGroupRange]:
    """Neighbouring key groups with about so many rows in all files together."""
    step = -(-len(groups) // _CUTS_MAX)
    cut = [KeyGroupRange(lo, min(lo + step, groups.hi)) for lo in range(groups.lo, groups.hi, step)]
    if not files:
        return []
    counts = np.array([file.rows_in(cut) if len(cut) > 1 else [file.rows] for file in files], np.int64).sum(axis=0)
    return grouped(cut, counts.tolist(), rows)


def grouped(cut: Sequence[KeyGroupRange], counts: Sequence[int], rows: int) -> list[KeyGroupRange]:
    """Neighbours joined until they have `rows`; parts without rows are left out at the ends.

    >>> grouped([KeyGroupRange(0, 1), KeyGroupRange(1, 2), KeyGroupRange(2, 3)], [2, 3, 4], 5)
    [KeyGroupRange(lo=0, hi=2), KeyGroupRange(lo=2, hi=3)]
    """
    result: list[KeyGroupRange] = []
    run: list[KeyGroupRange] = []
    total = 0
    for part, count in zip(cut, counts, strict=True):
        if not count and not run:
            continue
        run.append(part)
        total += count
        if total >= rows:
            result += joined(run)
            run, total = [], 0
    return result + list(joined(run))


def _any_rows(run: SortedRun) -> bool:
    return run.rows > 0


def _alive(run: SortedRun) -> SortedRun:
    if run.deleted is None:
        return run
    return _taken(SortedRun(run.orders, run.columns, run.key_count), np.flatnonzero(~run.deleted))


def _taken(run: SortedRun, rows: np.ndarray) -> SortedRun:
    if len(rows) == run.rows:
        return run
    indices = pa.array(rows)
    return SortedRun(run.orders[rows], [column.take(indices) for column in run.columns], run.key_count)
