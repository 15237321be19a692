"""Reading rows in flight outside of a subtask: of each segment those that no consumer has taken, in one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.inflight.segment import HASH_COLUMN, hashes_of
from penstock.protocol.keygroups import KeyGroupRange, groups_of
from penstock.protocol.manifest import Segment
from penstock.state.keys import KeyColumn, equal_keys, normalise
from penstock.store.arrowfile import ArrowFile
from penstock.store.base import Store
from penstock.store.local import LocalStore

_NEVER = np.iinfo(np.int64).max


def stays_open(store: Store) -> bool:
    """Whether a file that is mapped can be read on after it was deleted: on a local disk."""
    return isinstance(store, LocalStore)


class FlightBatch(NamedTuple):
    """Rows that wait, without the hidden column, and their key groups."""

    batch: pa.RecordBatch
    groups: npt.NDArray[np.int64]


class SegmentScan:
    """One open segment. A file that is open stays readable when it is deleted, where the storage is a local disk."""

    def __init__(
        self, store: Store, segment: Segment, schema: pa.Schema, max_parallelism: int, groups: KeyGroupRange
    ) -> None:
        """Raises: `MissingFile`, `CorruptFile`."""
        self._segment, self._schema, self._max_parallelism = segment, schema, max_parallelism
        self._file = ArrowFile(store, segment.path, segment.checksum, mapped=stays_open(store))
        try:
            self._require_fit()
        except BaseException:
            self._file.close()
            raise
        self._cursors = np.full(max_parallelism, _NEVER, np.int64)
        for span in segment.spans:
            for part in span.ranges:
                if (own := part.intersect(groups)) is not None:
                    self._cursors[own.lo : own.hi] = span.cursor

    def close(self) -> None:
        self._file.close()

    def batches(self) -> Iterator[FlightBatch]:
        """In the order of the file, which is that of each key."""
        first = 0
        for number, info in enumerate(self._file.batches):
            cursors = self._cursors[np.asarray(info.groups, np.int64)]
            if len(cursors) and (cursors < first + info.rows).any():
                yield from self._waiting(number, first)
            first += info.rows

    def find(self, columns: Sequence[str], key: Sequence[pa.Array]) -> Iterator[FlightBatch]:
        """The rows of one key, given as arrays of one value."""
        key = [normalise(column) for column in key]
        (wanted,) = hash_columns(key)
        group = int(groups_of(np.array([wanted]), self._max_parallelism)[0])
        elsewhere = np.arange(self._max_parallelism) != group
        self._cursors[elsewhere] = _NEVER
        probe = tuple(KeyColumn(column) for column in key)
        for waiting in self.batches():
            keys = tuple(KeyColumn(normalise(waiting.batch.column(name))) for name in columns)
            rows = np.arange(waiting.batch.num_rows)
            hits = np.flatnonzero(equal_keys(keys, rows, probe, np.zeros(len(rows), np.int64)))
            if len(hits):
                yield FlightBatch(waiting.batch.take(pa.array(hits)), waiting.groups[hits])

    def _waiting(self, number: int, first: int) -> Iterator[FlightBatch]:
        batch = self._file.read_batch(number)
        if batch.column(batch.num_columns - 1).null_count:
            self._file.corrupt(f"batch {number} has rows without {HASH_COLUMN}")
        groups = groups_of(hashes_of(batch), self._max_parallelism)
        rows = np.arange(first, first + batch.num_rows)
        kept = np.flatnonzero(rows >= self._cursors[groups])
        own = batch.select(list(range(batch.num_columns - 1)))
        if len(kept) == batch.num_rows:
            yield FlightBatch(own, groups)
        elif len(kept):
            yield FlightBatch(own.take(pa.array(kept)), groups[kept])

    def _require_fit(self) -> None:
        """A file of another folder, or one that was forged, may hold anything. Raises: `CorruptFile`."""
        file, schema = self._file, self._file.schema
        if (found := file.meta.get("max_parallelism")) != self._max_parallelism:
            file.corrupt(f"it has max_parallelism {found}, the checkpoint has {self._max_parallelism}")
        if not schema.names or schema.names[-1] != HASH_COLUMN or schema.types[-1] != pa.int64():
            file.corrupt(f"its last column is not {HASH_COLUMN}")
        if schema.names[:-1] != self._schema.names or schema.types[:-1] != self._schema.types:
            file.corrupt(f"its columns are {', '.join(schema.names)}, with other types or names than the edge's")
        if file.rows != self._segment.rows:
            file.corrupt(f"it has {file.rows} rows, the checkpoint says {self._segment.rows}")
        file.require_groups(self._max_parallelism)
