"""Rows of this epoch's micro-batch, as Spark delivers them: they can be read once, and what is not processed is
written to new segments.

Where several sources meet in one stage, Spark delivers their rows in one stream. Each input takes its own; what
arrives for another one waits in memory up to a bound, and goes to a segment from there on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.channel.barrier import GATHERED_ROWS
from penstock.channel.hashing import hash_columns
from penstock.channel.segment import HASH_COLUMN
from penstock.protocol.eventtime import lowest
from penstock.protocol.manifest import Segment

GATHERED_BYTES = 8 << 20

LiveBatches: TypeAlias = Iterator[pa.RecordBatch]
PutAway: TypeAlias = Callable[[pa.RecordBatch], None]


class RowsWriter(Protocol):
    """Where rows go that wait for a later epoch."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> list[Segment]: ...


class LiveInputs(Protocol):
    """The live rows of a subtask, by edge."""

    def batches_of(self, edge: str) -> LiveBatches: ...

    def on_overflow(self, edge: str, put_away: PutAway) -> None:
        """Where rows go that wait too long for their turn; from the first one on all the rest of the input."""
        ...


class SeparateInputs:
    """A stream for each edge."""

    def __init__(self, batches: Mapping[str, LiveBatches]) -> None:
        self._batches = batches

    def batches_of(self, edge: str) -> LiveBatches:
        return self._batches[edge]

    def on_overflow(self, edge: str, put_away: PutAway) -> None:
        """Nothing ever waits here."""


def hashed(batches: LiveBatches, keys: Sequence[str]) -> LiveBatches:
    """The batches with the hash of the key as their last column."""
    for batch in batches:
        hashes = pa.array(hash_columns([batch.column(key) for key in keys]))
        yield pa.RecordBatch.from_arrays([*batch.columns, hashes], [*batch.schema.names, HASH_COLUMN])


def gathered(batches: LiveBatches) -> LiveBatches:
    """Fewer, larger batches, in order: for operators to which many rows of a key at once are worth waiting for."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if held and (rows > GATHERED_ROWS or size > GATHERED_BYTES):
            yield _joined(held)
            held, rows, size = [], batch.num_rows, batch.nbytes
        held.append(batch)
    if held:
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


class MixedInputs:
    """One stream for several edges: the number of the edge, one struct column for each edge, and the hash."""

    def __init__(self, batches: LiveBatches, edges: Sequence[str], bytes_max: int) -> None:
        self._batches, self._bytes_max = batches, bytes_max
        self._ports = {edge: _Port() for edge in edges}

    def batches_of(self, edge: str) -> LiveBatches:
        port = self._ports[edge]
        while True:
            while port.waiting:
                batch = port.waiting.popleft()
                port.bytes -= batch.nbytes
                yield batch
            if port.overflown or not self._read_one():
                return

    def on_overflow(self, edge: str, put_away: PutAway) -> None:
        self._ports[edge].put_away = put_away

    def _read_one(self) -> bool:
        mixed = next(self._batches, None)
        if mixed is None:
            return False
        numbers = mixed.column(0).to_numpy(zero_copy_only=False)
        for number, port in enumerate(self._ports.values()):
            rows = np.flatnonzero(numbers == number)
            if len(rows):
                port.take_in(_of_one(mixed, number, rows), self._bytes_max)
        return True


class _Port:
    """What waits for one input."""

    def __init__(self) -> None:
        self.waiting: deque[pa.RecordBatch] = deque()
        self.bytes = 0
        self.put_away: PutAway | None = None
        self.overflown = False

    def take_in(self, batch: pa.RecordBatch, bytes_max: int) -> None:
        self.waiting.append(batch)
        self.bytes += batch.nbytes
        if self.put_away is not None and (self.overflown or self.bytes > bytes_max):
            # Everything from here on, or later rows would overtake these (A8).
            self.overflown = True
            for waiting in self.waiting:
                self.put_away(waiting)
            self.waiting.clear()
            self.bytes = 0


def _of_one(mixed: pa.RecordBatch, number: int, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    packed, hashes = mixed.column(1 + number), mixed.column(mixed.num_columns - 1)
    if len(rows) < mixed.num_rows:
        picked = pa.array(rows)
        packed, hashes = packed.take(picked), hashes.take(picked)
    names = [field.name for field in packed.type]
    return pa.RecordBatch.from_arrays([*packed.flatten(), hashes], [*names, HASH_COLUMN])


def _of_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Spark calls times by the zone of whoever started it; the first micro-batch still has the user's."""
    columns = batch.columns
    if batch.schema.types != schema.types:
        columns = [column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class LiveRows:
    """The live rows of one input."""

    def __init__(
        self,
        batches: LiveBatches,
        schema: pa.Schema,
        open_writer: Callable[[int | None], RowsWriter],
        watermark: int | None = None,
        event_time: str | None = None,
    ) -> None:
        self._batches = batches
        self._schema = schema
        self._open_writer, self.watermark = open_writer, watermark
        self._event_time = None if event_time is None else schema.get_field_index(event_time)
        self._current: pa.RecordBatch | None = None
        self._offset = 0
        self._writer: RowsWriter | None = None
        self._given_back: list[pa.RecordBatch] = []
        self.accepted = 0
        self.consumed = 0
        self.put_back = 0
        self.max_event_time: int | None = None

    def peek(self) -> pa.RecordBatch | None:
        while self._current is None or self._offset == self._current.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                self._current = None
                return None
            self._current, self._offset = self._taken_in(batch), 0
        return self._current.slice(self._offset)

    def advance(self, rows: int) -> None:
        assert self._current is not None
        assert self._offset + rows <= self._current.num_rows
        self._offset += rows
        self.consumed += rows

    def put_away(self, batch: pa.RecordBatch) -> None:
        """Takes rows that will not be processed in this epoch, and with them all that are in hand."""
        if self._current is not None:
            self._write(self._current.slice(self._offset))
            self._current = None
        self._write(self._taken_in(batch))

    def give_back(self, batches: Sequence[pa.RecordBatch], watermark: int | None) -> None:
        """Takes rows back that were taken before all that is left here, to be written first; `watermark` is the lowest
        that was in effect for them, or None."""
        assert self._writer is None, "rows that came later were written already"
        self._given_back += batches
        self.put_back += sum(batch.num_rows for batch in batches)
        self.watermark = lowest((self.watermark, watermark))

    def spill(self) -> RowsWriter | None:
        """Ends the epoch: everything that was not consumed goes to segments, in order. None: nothing was left."""
        for batch in self._given_back:
            self._write(batch)
        while (rest := self.peek()) is not None:
            self._write(rest)
            self._offset += rest.num_rows
        return self._writer

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            if self._writer is None:
                self._writer = self._open_writer(self.watermark)
            self._writer.write(batch)

    def _taken_in(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.accepted += batch.num_rows
        if self._event_time is not None and batch.num_rows:
            newest = pc.max(batch.column(self._event_time))
            if newest.is_valid:
                micros = newest.cast(pa.timestamp("us", newest.type.tz), safe=newest.type.unit != "ns").value
                self.max_event_time = micros if self.max_event_time is None else max(self.max_event_time, micros)
        return _of_types(batch, self._schema)
