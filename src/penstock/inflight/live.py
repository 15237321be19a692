"""Rows of this epoch's micro-batch, as Spark delivers them: they can be read once, and what is not processed is
written to new segments.

A subtask has one stream of live rows, and `LiveInputs` alone reads it. Whatever it reads goes at once to the input that
it belongs to, a `LiveRows`, which counts it and keeps it until it is taken. Where several sources meet in one stage,
reading for one input brings rows of others:

- an input that may be taken now (`in_turn`) and has enough waiting stops the reading: the gate takes these rows first;
- any other input that has too much waiting is *left behind*: what waits and all that comes later goes to its segment,
  in order, and none of it is read again in this epoch. The others go on.

The end of the epoch leaves all inputs behind and reads the stream to its end (`drain`). Only then are writers closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import REPORT_IT, ConservationError
from penstock.hashing import hash_columns
from penstock.inflight.eventtimes import EventTimes
from penstock.inflight.segment import HASH_COLUMN
from penstock.protocol.eventtime import lowest
from penstock.protocol.manifest import Segment
from penstock.slices import GATHERED_ROWS

GATHERED_BYTES = 8 << 20

LiveBatches: TypeAlias = Iterator[pa.RecordBatch]
Split: TypeAlias = Callable[[pa.RecordBatch], Iterator[tuple[int, pa.RecordBatch]]]
"""From a batch of the stream to the rows of each input, by its number."""


class RowsWriter(Protocol):
    """Where rows go that wait for a later epoch."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def close(self) -> list[Segment]: ...


class LiveInputs:
    """The stream of a subtask's live rows, and the inputs they belong to."""

    def __init__(self, batches: LiveBatches, edges: Sequence[str], split: Split, bytes_max: int) -> None:
        self._batches, self._split, self._bytes_max = batches, split, bytes_max
        self._numbers = {edge: number for number, edge in enumerate(edges)}
        self._inputs: dict[int, LiveRows] = {}
        self.ended = False

    @staticmethod
    def single(batches: LiveBatches, edge: str, keys: Sequence[str] = ()) -> LiveInputs:
        """Rows of one edge; with `keys` the hash is computed here."""

        def split(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
            yield 0, hashed(batch, keys) if keys else batch

        # No other input waits, so there is no limit.
        return LiveInputs(batches, [edge], split, bytes_max=0)

    @staticmethod
    def mixed(batches: LiveBatches, edges: Sequence[str], bytes_max: int) -> LiveInputs:
        """Rows of several edges: the number of the edge, one struct column for each edge, and the hash. Of each edge
        about `bytes_max` wait in memory, and one batch of the stream."""
        return LiveInputs(batches, edges, _by_number, bytes_max)

    def attach(self, edge: str, rows: LiveRows) -> None:
        """Rows of `edge` go to `rows` from now on."""
        self._inputs[self._numbers[edge]] = rows
        rows.inputs = self

    def read_for(self, asking: LiveRows) -> bool:
        """Reads one batch. False: the stream is at its end, or another input has rows that should be taken first."""
        others = [rows for rows in self._inputs.values() if rows is not asking]
        if any(rows.in_turn and rows.bytes_waiting > self._bytes_max for rows in others):
            return False
        if not self._read():
            return False
        for rows in others:
            if not rows.in_turn and rows.bytes_waiting > self._bytes_max:
                rows.leave_behind()
        return True

    def drain(self) -> None:
        """Ends the epoch for all inputs: what was not taken, and the rest of the stream, goes to segments."""
        for rows in self._inputs.values():
            rows.leave_behind()
        while self._read():
            pass

    def _read(self) -> bool:
        batch = None if self.ended else next(self._batches, None)
        if batch is None:
            self.ended = True
            return False
        for number, part in self._split(batch):
            self._inputs[number].take_in(part)
        return True


def hashed(batch: pa.RecordBatch, keys: Sequence[str]) -> pa.RecordBatch:
    """The batch with the hash of the key as its last column."""
    hashes = pa.array(hash_columns([batch.column(key) for key in keys]))
    return pa.RecordBatch.from_arrays([*batch.columns, hashes], [*batch.schema.names, HASH_COLUMN])


def _by_number(mixed: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    # A number that is missing or negative raises here; one without an input, where the rows are handed over.
    numbers = mixed.column(0).to_numpy(zero_copy_only=True)
    for number in np.flatnonzero(np.bincount(numbers)).tolist():
        yield number, _of_one(mixed, number, np.flatnonzero(numbers == number))


def _of_one(mixed: pa.RecordBatch, number: int, rows: npt.NDArray[np.int64]) -> pa.RecordBatch:
    packed, hashes = mixed.column(1 + number), mixed.column(mixed.num_columns - 1)
    if len(rows) < mixed.num_rows:
        picked = pa.array(rows)
        packed, hashes = packed.take(picked), hashes.take(picked)
    names = [field.name for field in packed.type]
    return pa.RecordBatch.from_arrays([*packed.flatten(), hashes], [*names, HASH_COLUMN])


def _of_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Casts columns to the expected types: Spark gives timestamps the session's time zone, and the first micro-batch
    still has the user's."""
    columns = batch.columns
    if batch.schema.types != schema.types:
        columns = [column.cast(kind) for column, kind in zip(columns, schema.types, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class LiveRows:
    """The live rows of one input, in the order in which they came: each is taken, or written to a segment."""

    def __init__(
        self,
        schema: pa.Schema,
        open_writer: Callable[[int | None], RowsWriter],
        watermark: int | None = None,
        times: EventTimes | None = None,
        *,
        gathers: bool = False,
    ) -> None:
        """With `gathers` it waits for larger slices."""
        self._schema = schema
        self._open_writer, self.watermark = open_writer, watermark
        self.times = times or EventTimes(schema, None)
        self._gathers = gathers
        self.inputs: LiveInputs | None = None
        self._waiting: deque[pa.RecordBatch] = deque()
        self._rows_waiting = self.bytes_waiting = 0
        self._current: pa.RecordBatch | None = None
        self._offset = 0
        self._writer: RowsWriter | None = None
        self._given_back: list[pa.RecordBatch] = []
        self.in_turn = False
        """Whether rows are taken from here as soon as there are any."""
        self.left_behind = False
        """Whether all rows that were not taken wait for a later epoch."""
        self._closed = False
        self.accepted = 0
        self.consumed = 0
        self.put_back = 0

    def take_in(self, batch: pa.RecordBatch) -> None:
        """Accepts rows of the stream."""
        if self._closed:
            raise ConservationError(
                f"{batch.num_rows} live rows came after the segments of their edge were closed",
                cause="a fault in Penstock: the epoch ended before its stream did; nothing of this epoch was published",
                next_step=REPORT_IT,
            )
        self.accepted += batch.num_rows
        self.times.follow(batch)
        batch = _of_types(batch, self._schema)
        if self.left_behind:
            self._write(batch)
        elif batch.num_rows:
            self._waiting.append(batch)
            self._rows_waiting += batch.num_rows
            self.bytes_waiting += batch.nbytes

    def peek(self) -> pa.RecordBatch | None:
        """The next rows. None: there are none, or none in this epoch, or another input has to be taken first."""
        if self.left_behind:
            return None
        if self._current is None or self._offset == self._current.num_rows:
            self._current, self._offset = self._next(), 0
        return None if self._current is None else self._current.slice(self._offset)

    def advance(self, rows: int) -> None:
        assert self._current is not None
        assert self._offset + rows <= self._current.num_rows
        self._offset += rows
        self.consumed += rows

    def give_back(self, batches: Sequence[pa.RecordBatch], watermark: int | None) -> None:
        """Takes rows back that were taken before all that is left here, to be written first; `watermark` is the lowest
        that was in effect for them, or None."""
        assert self._writer is None, "rows that came later were written already"
        self._given_back += batches
        self.put_back += sum(batch.num_rows for batch in batches)
        self.watermark = lowest((self.watermark, watermark))

    def leave_behind(self) -> None:
        """Writes rows that were not taken, and all later ones, to a segment, in order."""
        if self.left_behind:
            return
        rest = [] if self._current is None else [self._current.slice(self._offset)]
        for batch in (*self._given_back, *rest, *self._waiting):
            self._write(batch)
        self._current = None
        self._given_back.clear()
        self._waiting.clear()
        self._rows_waiting = self.bytes_waiting = 0
        self.left_behind = True

    def spill(self) -> list[Segment]:
        """Ends the epoch, once the stream was drained: the segments of everything that was not consumed."""
        assert self.inputs is None or self.inputs.ended, "the stream has more rows"
        self.leave_behind()
        self._closed = True
        return [] if self._writer is None else self._writer.close()

    def _next(self) -> pa.RecordBatch | None:
        while not self._enough() and self.inputs is not None and self.inputs.read_for(self):
            pass
        taken: list[pa.RecordBatch] = []
        rows = size = 0
        while self._waiting:
            first = self._waiting[0]
            rows, size = rows + first.num_rows, size + first.nbytes
            if taken and (not self._gathers or rows > GATHERED_ROWS or size > GATHERED_BYTES):
                break
            taken.append(self._waiting.popleft())
            self._rows_waiting -= first.num_rows
            self.bytes_waiting -= first.nbytes
        return pa.concat_batches(taken) if len(taken) > 1 else next(iter(taken), None)

    def _enough(self) -> bool:
        if not self._gathers:
            return bool(self._waiting)
        return self._rows_waiting > GATHERED_ROWS or self.bytes_waiting > GATHERED_BYTES

    def _write(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            if self._writer is None:
                self._writer = self._open_writer(self.watermark)
            self._writer.write(batch)
