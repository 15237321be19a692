"""A state file as one subtask sees it: only rows of its own key groups, and only where the file is still valid.

After a rescale several subtasks share a file, and parts of it are superseded for some of them. The index of the
file says how many rows of each key group a batch holds, and rows are sorted by key group first, so the rows that
count are a few slices, known before any batch is read. A batch is read (mapped, checksum verified) on first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import StateFile
from penstock.records import StateSchema
from penstock.state.layout import Places, from_batch, order_span, places_in
from penstock.state.runs import Orders, SortedRun
from penstock.store.arrowfile import ArrowFile, BatchInfo
from penstock.store.base import Store


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows `start` to `stop` - 1 of a batch; their orders lie between `first` and `last`."""

    batch: int
    start: int
    stop: int
    first: np.uint64
    last: np.uint64


class FileRun:
    """One open state file, restricted to some key groups."""

    def __init__(
        self,
        path: str,
        file: ArrowFile,
        ranges: Sequence[KeyGroupRange],
        row_bytes: float,
        schema: StateSchema,
        places: Places,
        max_parallelism: int,
    ) -> None:
        self.path = path
        self._file, self._ranges, self._row_bytes = file, ranges, row_bytes
        self._schema, self._places, self._max_parallelism = schema, places, max_parallelism
        self._pieces = [
            piece
            for number, info in enumerate(file.batches)
            for part in ranges
            for piece in _pieces(number, info, part, max_parallelism)
        ]
        self._firsts = np.array([piece.first for piece in self._pieces], np.uint64)
        self._lasts = np.array([piece.last for piece in self._pieces], np.uint64)
        self._runs: dict[int, SortedRun] = {}
        self.rows = sum(piece.stop - piece.start for piece in self._pieces)
        self.bytes = int(row_bytes * self.rows)

    @classmethod
    def open(
        cls, store: Store, file: StateFile, groups: KeyGroupRange, schema: StateSchema, max_parallelism: int
    ) -> FileRun:
        """Raises: `MissingFile`, `CorruptFile`; `CheckpointMismatch` for a file with other columns."""
        opened = ArrowFile(store, file.path, file.checksum, mapped=True)
        try:
            places = places_in(file.path, opened.schema, schema)
            opened.require_groups(max_parallelism)
        except BaseException:
            opened.close()
            raise
        ranges = [part for part in (groups.intersect(other) for other in sorted(file.ranges)) if part is not None]
        return cls(file.path, opened, ranges, file.bytes / max(1, file.rows), schema, places, max_parallelism)

    def restricted(self, groups: KeyGroupRange) -> FileRun:
        """A view of some key groups, valid as long as this file is open."""
        ranges = [part for part in (groups.intersect(other) for other in self._ranges) if part is not None]
        if ranges == self._ranges:
            return self
        return FileRun(
            self.path, self._file, ranges, self._row_bytes, self._schema, self._places, self._max_parallelism
        )

    def rows_in(self, cut: Sequence[KeyGroupRange]) -> list[int]:
        """How many rows each of some neighbouring parts of the key groups has."""
        if len(cut) == 1:
            return [self.rows]
        counts = np.zeros(self._max_parallelism + 1, np.int64)
        for info in self._file.batches:
            np.add.at(counts, np.asarray(info.groups, np.int64) + 1, np.asarray(info.counts, np.int64))
        upto = np.cumsum(counts)
        parts = [[part for valid in self._ranges if (part := valid.intersect(groups))] for groups in cut]
        return [sum(int(upto[part.hi] - upto[part.lo]) for part in own) for own in parts]

    @property
    def may_hold_deleted(self) -> bool:
        return self._places.with_deleted

    def overlapping(self, orders: Orders) -> list[tuple[SortedRun, int, int]]:
        """Which part of some sorted orders may be found in which piece."""
        starts = np.searchsorted(orders, self._firsts).tolist()
        stops = np.searchsorted(orders, self._lasts, side="right").tolist()
        return [
            (self._run(number), start, stop)
            for number, (start, stop) in enumerate(zip(starts, stops, strict=True))
            if start < stop
        ]

    def between(self, first: np.uint64, last: np.uint64) -> list[SortedRun]:
        """The rows with an order from `first` to `last`, both included."""
        return [
            part
            for number, piece in enumerate(self._pieces)
            if piece.first <= last and first <= piece.last
            for part in self._run(number).between(first, last)
        ]

    def sample(self, step: int) -> Orders:
        """The order of every `step`-th row."""
        parts = [self._run(number).sample(step) for number in range(len(self._pieces))]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def close(self) -> None:
        self._runs.clear()
        self._file.close()

    def _run(self, number: int) -> SortedRun:
        run = self._runs.get(number)
        if run is None:
            piece = self._pieces[number]
            run = from_batch(self._file.read_batch(piece.batch), self._schema, self._places)
            run = run.slice(piece.start, piece.stop)
            self._runs[number] = run
        return run


def _pieces(number: int, info: BatchInfo, groups: KeyGroupRange, max_parallelism: int) -> Sequence[_Piece]:
    """The rows of `groups` in a batch: none, or one slice."""
    if not info.groups or groups.hi <= info.groups[0] or info.groups[-1] < groups.lo:
        return ()
    present, counts = np.asarray(info.groups, np.int64), np.asarray(info.counts, np.int64)
    ends = np.concatenate([[0], np.cumsum(counts)])
    assert ends[-1] == info.rows, "the index counts every row of a state file"
    i, j = np.searchsorted(present, [groups.lo, groups.hi]).tolist()
    if i == j:
        return ()
    first, last = order_span(KeyGroupRange(int(present[i]), int(present[j - 1]) + 1), max_parallelism)
    return (_Piece(number, int(ends[i]), int(ends[j]), first, last),)
