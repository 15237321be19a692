"""One subtask's inputs: recovered segments first, live rows last, each edge in the order of arrival (A8).

Positions are only numbers: at the barrier nothing recovered is copied, its cursor is reported (A5). Only live rows,
which exist nowhere else, are written to new segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.channel.reader import PrefetchingReader
from penstock.channel.segment import SegmentWriter
from penstock.operators.base import Records
from penstock.protocol.report import InputReport


class LiveRows:
    """The rows of this epoch's micro-batch, as Spark delivers them: they can be read once."""

    def __init__(self, batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self._batches = batches
        self._schema = schema
        self._current: pa.RecordBatch | None = None
        self._offset = 0
        self.accepted = 0
        self.consumed = 0
        self.spilled = 0

    def peek(self) -> pa.RecordBatch | None:
        while self._current is None or self._offset == self._current.num_rows:
            batch = next(self._batches, None)
            if batch is None:
                self._current = None
                return None
            self._current = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
            self._offset = 0
            self.accepted += batch.num_rows
        return self._current.slice(self._offset)

    def advance(self, rows: int) -> None:
        self._skip(rows)
        self.consumed += rows

    def spill(self, writer: SegmentWriter) -> None:
        """Writes everything that was not consumed, to the end of the stream."""
        while (rest := self.peek()) is not None:
            writer.write(rest)
            self._skip(rest.num_rows)
            self.spilled += rest.num_rows

    def _skip(self, rows: int) -> None:
        assert self._current is not None
        assert self._offset + rows <= self._current.num_rows
        self._offset += rows


class Channel:
    """What one subtask reads of one edge."""

    def __init__(self, edge: str, recovered: PrefetchingReader, live: LiveRows | None) -> None:
        self.edge = edge
        self._recovered = recovered
        self._live = live
        self._recovering = True

    def peek(self) -> pa.RecordBatch | None:
        if self._recovering:
            batch = self._recovered.peek()
            if batch is not None:
                return batch
            self._recovering = False
        return None if self._live is None else self._live.peek()

    def take(self, rows: int) -> pa.RecordBatch | None:
        batch = self.peek()
        if batch is None:
            return None
        batch = batch.slice(0, rows)
        source = self._recovered if self._recovering else self._live
        assert source is not None
        source.advance(batch.num_rows)
        return batch

    def spill(self, writer: SegmentWriter) -> InputReport:
        """Ends the epoch for this channel: live rows behind the barrier go to `writer`."""
        live = self._live
        if live is not None:
            live.spill(writer)
        segments = tuple(writer.close())
        return InputReport(
            edge=self.edge,
            live_accepted=0 if live is None else live.accepted,
            live_consumed=0 if live is None else live.consumed,
            spilled=segments,
            spans=tuple(self._recovered.progress()),
        )

    def close(self) -> None:
        self._recovered.close()


@dataclass(frozen=True, slots=True)
class Taken:
    """A slice, and the number of the input it came from."""

    port: int
    records: Records


class Gate:
    """All inputs of a subtask; each gets its turn, so that a backlog on one never starves another."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        self.channels = tuple(channels)
        self._turn = 0

    def take(self, rows: int) -> Taken | None:
        """Up to `rows` rows of the next input that has any; None when all are used up."""
        for _ in self.channels:
            port = self._turn
            self._turn = (self._turn + 1) % len(self.channels)
            batch = self.channels[port].take(rows)
            if batch is not None:
                return Taken(port, split_hash(batch))
        return None

    def used_up(self) -> bool:
        return all(channel.peek() is None for channel in self.channels)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


def split_hash(batch: pa.RecordBatch) -> Records:
    """Takes the hidden hash, always the last column, off the user's columns."""
    last = batch.num_columns - 1
    hashes = batch.column(last).to_numpy(zero_copy_only=True)
    user = pa.RecordBatch.from_arrays(batch.columns[:last], schema=batch.schema.remove(last))
    return Records(user, hashes)
