"""Writing segments: the in-flight records of one edge, in immutable files.

Each row carries the 64-bit hash of its key in the hidden last column, so that any later reader can tell its key group.
`SegmentWriter` keeps the order of rows; `ExchangeWriter` groups them by consumer and keeps the order of each key.
Nothing is written when there are no rows. A record of any size passes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import REPORT_IT, ConservationError, StorageFailed
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.protocol.manifest import Segment, Span
from penstock.store.arrowfile import ArrowFileWriter, Compression, FileInfo
from penstock.store.base import Store

HASH_COLUMN = "__penstock_hash"

# Fastest to write and to read back of those measured, and still smaller than raw; disks are the bottleneck.
SEGMENT_COMPRESSION: Compression = "lz4"

TARGET_BYTES = 64 << 20
EXCHANGE_BUFFER_BYTES = 32 << 20

# Rows are sorted in portions that stay in a processor's cache: strings move several times faster then.
SORT_BYTES = 2 << 20

# A stored batch is what a reader holds in memory at once: large enough to amortise a call, small enough to bound it.
BATCH_ROWS_MAX = 65_536
BATCH_BYTES_AIM = 1 << 20
BATCH_BYTES_MAX = 4 << 20


def edge_schema(user_schema: pa.Schema) -> pa.Schema:
    """The columns of an edge: the user's, then the hidden hash."""
    assert HASH_COLUMN not in user_schema.names
    return user_schema.append(pa.field(HASH_COLUMN, pa.int64()))


def hashes_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """The hidden column, without a copy."""
    assert batch.schema.names[-1] == HASH_COLUMN
    hashes: npt.NDArray[np.int64] = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=True)
    return hashes


class Apart(NamedTuple):
    """What the writers of one edge share if they separate rows by arrival; see `Segment.arrival`."""

    arrival: CheckpointId | None
    """The arrival of the rows; None: the epoch in which they are written."""
    numbers: Iterator[int]
    """Numbers for files; the writers share them."""


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """Who writes, and when: it becomes part of each segment."""

    epoch: CheckpointId
    producer: int
    watermark: int | None
    max_parallelism: int
    apart: Apart = field(default_factory=lambda: Apart(None, itertools.count()))


class SegmentFiles:
    """Writes batches as they come, into a row of files that roll at `target_bytes`."""

    def __init__(
        self,
        store: Store,
        path_factory: Callable[[int], str],
        schema: pa.Schema,
        *,
        origin: SegmentOrigin,
        groups: KeyGroupRange,
        target_bytes: int,
    ) -> None:
        assert schema.names[-1] == HASH_COLUMN
        self._store, self._path_factory, self._schema = store, path_factory, schema
        self._origin, self._groups, self._target_bytes = origin, groups, target_bytes
        self._file: ArrowFileWriter | None = None
        self._sequence = 0
        self._finished: list[Segment] = []
        self._closed = False

    def require_open(self, rows: int) -> None:
        """Raises: `ConservationError` once the list of segments was handed out: no reader would read these rows."""
        if self._closed:
            raise ConservationError(
                f"{rows} rows for a segment of epoch {self._origin.epoch} came after it was closed",
                cause="a fault in Penstock: the epoch ended before its input did; nothing of this epoch was published",
                next_step=REPORT_IT,
            )

    def write(self, batch: pa.RecordBatch, groups: npt.NDArray[Any]) -> None:
        lo, hi = int(groups.min()), int(groups.max())
        assert self._groups.lo <= lo <= hi < self._groups.hi, f"key groups {lo} to {hi} are not of {self._groups}"
        if self._file is None:
            self._file = self._open_file()
        self._file.write(batch, groups)
        if self._file.bytes_written >= self._target_bytes:
            self._finish_file()

    def close(self) -> list[Segment]:
        self._closed = True
        if self._file is not None:
            self._finish_file()
        return list(self._finished)

    def abort(self) -> None:
        """Removes all files it can. It never raises, because it runs after another error, which must not be hidden."""
        if self._file is not None:
            self._file.abort()
            self._file = None
        with suppress(StorageFailed):
            self._store.delete([segment.path for segment in self._finished])
        self._finished = []

    def _open_file(self) -> ArrowFileWriter:
        sequence = self._sequence = next(self._origin.apart.numbers)
        meta: dict[str, str | int | None] = {
            "epoch": self._origin.epoch,
            "producer": self._origin.producer,
            "sequence": sequence,
            "watermark": self._origin.watermark,
            "max_parallelism": self._origin.max_parallelism,
        }
        path = self._path_factory(sequence)
        return ArrowFileWriter(
            self._store, path, self._schema, kind="segment", compression=SEGMENT_COMPRESSION, meta=meta
        )

    def _finish_file(self) -> None:
        assert self._file is not None
        info = self._file.close()
        self._finished.append(self._segment(info))
        self._file = None

    def _segment(self, info: FileInfo) -> Segment:
        arrival = self._origin.apart.arrival
        return Segment(
            path=info.path,
            epoch=self._origin.epoch,
            producer=self._origin.producer,
            sequence=self._sequence,
            rows=info.rows,
            bytes=info.bytes,
            checksum=info.checksum,
            watermark=self._origin.watermark,
            spans=(Span(ranges=(self._groups,), cursor=0, rows_left=info.rows),),
            arrival=msgspec.UNSET if arrival is None or arrival == self._origin.epoch else arrival,
        )


class SegmentWriter:
    """Appends rows in the order given: what a subtask does with the live input behind the barrier."""

    def __init__(
        self,
        store: Store,
        path_factory: Callable[[int], str],
        schema: pa.Schema,
        *,
        groups: KeyGroupRange,
        epoch: CheckpointId,
        producer: int,
        watermark: int | None,
        max_parallelism: int,
        target_bytes: int = TARGET_BYTES,
    ) -> None:
        origin = SegmentOrigin(epoch, producer, watermark, max_parallelism)
        self._files = SegmentFiles(store, path_factory, schema, origin=origin, groups=groups, target_bytes=target_bytes)
        self._schema, self._max_parallelism = schema, max_parallelism
        self._pending = _Pending(BATCH_BYTES_AIM, BATCH_ROWS_MAX)
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows; `batch` has the edge's schema, hidden column included."""
        self._files.require_open(batch.num_rows)
        self.rows += batch.num_rows
        for run in self._pending.add(_conform(batch, self._schema)):
            self._store_run(run)

    def close(self) -> list[Segment]:
        """The segments written, durable and in order; empty when there were no rows."""
        for run in self._pending.drain():
            self._store_run(run)
        return self._files.close()

    def abort(self) -> None:
        self._files.abort()

    def _store_run(self, run: pa.RecordBatch) -> None:
        for batch in split(run, BATCH_BYTES_MAX, BATCH_ROWS_MAX):
            self._files.write(batch, groups_of(hashes_of(batch), self._max_parallelism))


class _SortedRun(NamedTuple):
    """Rows sorted by key group; consumer k gets those from `cuts[k]` to `cuts[k + 1]` - 1."""

    batch: pa.RecordBatch
    groups: npt.NDArray[np.uint16]
    cuts: list[int]


class ExchangeWriter:
    """Writes the edge between two operators: rows are gathered, and stored consumer by consumer.

    Each consumer then reads its own batches only. After a rescale the index still tells which batches hold rows of a
    reader's key groups, and rows of a key group are mostly together.
    """

    def __init__(
        self,
        store: Store,
        path_factory: Callable[[int], str],
        schema: pa.Schema,
        *,
        consumer_parallelism: int,
        epoch: CheckpointId,
        producer: int,
        watermark: int | None,
        max_parallelism: int,
        target_bytes: int = TARGET_BYTES,
        buffer_bytes: int = EXCHANGE_BUFFER_BYTES,
        apart: Apart | None = None,
    ) -> None:
        apart = Apart(None, itertools.count()) if apart is None else apart
        origin = SegmentOrigin(epoch, producer, watermark, max_parallelism, apart)
        groups = KeyGroupRange(0, max_parallelism)
        self._files = SegmentFiles(store, path_factory, schema, origin=origin, groups=groups, target_bytes=target_bytes)
        self._schema, self._max_parallelism, self._buffer_bytes = schema, max_parallelism, buffer_bytes
        consumers = range(consumer_parallelism)
        self._bounds = [range_of(consumer, consumer_parallelism, max_parallelism).lo for consumer in consumers]
        self._pending = _Pending(SORT_BYTES, None)
        self._runs: list[_SortedRun] = []
        self._runs_bytes = 0
        self.rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Adds rows; `batch` has the edge's schema, hidden column included."""
        self._files.require_open(batch.num_rows)
        self.rows += batch.num_rows
        for piece in split(_conform(batch, self._schema), SORT_BYTES, None):
            for run in self._pending.add(piece):
                self._keep(run)

    def close(self) -> list[Segment]:
        """The segments written, durable and in order; empty when there were no rows."""
        self.flush()
        return self._files.close()

    def flush(self) -> None:
        """Frees the memory that gathered rows take."""
        for run in self._pending.drain():
            self._keep(run)
        self._store_runs()

    def abort(self) -> None:
        self._files.abort()

    def _keep(self, run: pa.RecordBatch) -> None:
        # Before and not after: a run that alone exceeds the buffer is never joined with others.
        size_bytes = run.nbytes
        if self._runs_bytes + size_bytes > self._buffer_bytes:
            self._store_runs()
        self._runs.append(self._sort(run))
        self._runs_bytes += size_bytes

    def _sort(self, run: pa.RecordBatch) -> _SortedRun:
        # 16 bits make numpy sort by radix, in linear time; stable, so the rows of one key keep their order.
        groups = groups_of(hashes_of(run), self._max_parallelism).astype(np.uint16)
        order = np.argsort(groups, kind="stable")
        groups = groups[order]
        cuts = [*np.searchsorted(groups, np.array(self._bounds, np.uint16)).tolist(), len(groups)]
        return _SortedRun(run.take(pa.array(order)), groups, cuts)

    def _store_runs(self) -> None:
        runs, self._runs, self._runs_bytes = self._runs, [], 0
        for consumer in range(len(self._bounds)):
            bounds = [(run, run.cuts[consumer], run.cuts[consumer + 1]) for run in runs]
            parts = [(run, begin, end) for run, begin, end in bounds if begin < end]
            if parts:
                self._store_part(
                    _joined([run.batch.slice(begin, end - begin) for run, begin, end in parts]),
                    np.concatenate([run.groups[begin:end] for run, begin, end in parts]),
                )

    def _store_part(self, part: pa.RecordBatch, groups: npt.NDArray[np.uint16]) -> None:
        begin = 0
        for batch in split(part, BATCH_BYTES_MAX, BATCH_ROWS_MAX):
            self._files.write(batch, groups[begin : begin + batch.num_rows])
            begin += batch.num_rows


class _Pending:
    """Gathers small batches into runs of about `bytes_aim`; a batch that is large enough is never copied."""

    def __init__(self, bytes_aim: int, rows_aim: int | None) -> None:
        self._bytes_aim, self._rows_aim = bytes_aim, rows_aim
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Takes a batch, yields the runs that are complete now."""
        if batch.num_rows == 0:
            return
        size_bytes = batch.nbytes
        # Never joined with others when large: joined strings might exceed what 32-bit offsets can address.
        if self._is_enough(size_bytes, batch.num_rows):
            yield from self.drain()
            yield batch
            return
        self._batches.append(batch)
        self._bytes += size_bytes
        self._rows += batch.num_rows
        if self._is_enough(self._bytes, self._rows):
            yield from self.drain()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yields what is left as one run."""
        batches, self._batches = self._batches, []
        self._bytes = self._rows = 0
        if batches:
            yield _joined(batches)

    def _is_enough(self, size_bytes: int, rows: int) -> bool:
        return size_bytes >= self._bytes_aim or (self._rows_aim is not None and rows >= self._rows_aim)


def split(batch: pa.RecordBatch, bytes_max: int, rows_max: int | None) -> Iterator[pa.RecordBatch]:
    """Cuts a batch into slices of at most `bytes_max`, or of one row that is larger; nothing is copied."""
    parts = -(-batch.nbytes // bytes_max)
    if rows_max is not None:
        parts = max(parts, -(-batch.num_rows // rows_max))
    if parts <= 1 or batch.num_rows <= 1:
        yield batch
        return
    step = -(-batch.num_rows // parts)
    for begin in range(0, batch.num_rows, step):
        # Rows differ in size: a slice may still be too large, and is then cut again.
        yield from split(batch.slice(begin, step), bytes_max, rows_max)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly this schema; only metadata and nullability may differ."""
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    assert batch.schema.names == schema.names, f"columns {batch.schema.names}, wanted {schema.names}"
    assert batch.schema.types == schema.types, f"types {batch.schema.types}, wanted {schema.types}"
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
