"""One subtask's inputs: rows in segments first, live rows last, each edge in the order of arrival.

Positions are only numbers: at the barrier no segment is copied, the cursor in it is reported. Only live rows,
which exist nowhere else, are written to new segments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.inflight.live import LiveRows
from penstock.inflight.reader import Mark, PrefetchingReader
from penstock.inflight.watermarks import ChannelWatermarks
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.report import InputReport
from penstock.records import NO_WATERMARK, Records, Time


@dataclass(frozen=True, slots=True)
class TakenSlice:
    """A slice that was taken and may come back, with the reader's position before it; None for live rows."""

    batch: pa.RecordBatch
    mark: Mark | None
    arrival: CheckpointId | None = None


class Channel:
    """What one subtask reads of one edge. Of a broadcast edge all subtasks take the same rows, barrier or not: all, or
    the first `rows_max`."""

    def __init__(
        self,
        edge: str,
        segments: PrefetchingReader,
        live: LiveRows | None,
        watermarks: ChannelWatermarks | None = None,
        *,
        broadcast: bool = False,
        rows_max: int | None = None,
    ) -> None:
        self.edge = edge
        self.arrival: CheckpointId | None = None
        """The arrival of the rows that were taken last; None for live rows, which arrive now."""
        self._broadcast = broadcast
        self.watermarks = watermarks
        self._segments = segments
        self._live = live
        self._in_segments = True
        self._rows_left = rows_max

    def peek(self) -> pa.RecordBatch | None:
        batch = self.look_ahead()
        if batch is not None:
            return batch
        return None if self._live is None else self._live.peek()

    def look_ahead(self) -> pa.RecordBatch | None:
        """The next rows of segments, if any. Sets the watermarks to those in effect for the next rows."""
        if not self._in_segments:
            return None
        batch = self._segments.peek()
        if self.watermarks is not None:
            self.watermarks.passed(self._segments.spans_done)
        self._in_segments = batch is not None
        return batch

    def come_up(self) -> None:
        """Says that this input may be taken now. Once its segments are used up, live rows go to the operator
        directly."""
        if self._live is not None and not self._live.in_turn:
            self.look_ahead()
            self._live.in_turn = not self._in_segments

    @property
    def held_back(self) -> bool:
        """Whether there are rows that may not be taken in this epoch."""
        return self._left_behind or (self._rows_left == 0 and self.peek() is not None)

    @property
    def used_up(self) -> bool:
        """Whether nothing is left, neither in this epoch nor for the next one."""
        return self.peek() is None and not self._left_behind

    @property
    def _left_behind(self) -> bool:
        return self._live is not None and self._live.left_behind

    @property
    def obliged(self) -> bool:
        """Whether there are rows that must be taken in this epoch."""
        return self._broadcast and self._rows_left != 0 and self.peek() is not None

    def take(self, rows: int) -> pa.RecordBatch | None:
        if self._rows_left is not None:
            rows = min(rows, self._rows_left)
        batch = self.peek() if rows else None
        if batch is None:
            return None
        batch = batch.slice(0, rows)
        source = self._segments if self._in_segments else self._live
        assert source is not None
        self.arrival = self._segments.arrival if self._in_segments else None
        source.advance(batch.num_rows)
        if self._rows_left is not None:
            self._rows_left -= batch.num_rows
        return batch

    def take_returnable(self, rows: int) -> TakenSlice | None:
        """As `take`, for rows that may come back."""
        mark = self._segments.mark()
        batch = self.take(rows)
        return None if batch is None else TakenSlice(batch, mark if self._in_segments else None, self.arrival)

    def rewind(self, taken: Sequence[TakenSlice]) -> None:
        """Takes back the slices that were taken last: the reader's cursors go back, live rows will be spilled."""
        assert self._live is not None
        if taken and taken[0].mark is not None:
            self._segments.rewind(taken[0].mark)
        self._live.give_back([part.batch for part in taken if part.mark is None], self._live.watermark)

    def put_back(self, batches: Sequence[pa.RecordBatch], watermark: int | None) -> None:
        """Takes back some of the rows that were taken. They go to a segment behind all others, so their order is
        lost."""
        assert self._live is not None
        self._live.give_back(batches, watermark)

    def spill(self) -> InputReport:
        """Ends the epoch for this channel, after the stream of live rows was drained, and closes its segments."""
        live = self._live
        spilled = [] if live is None else live.spill()
        return InputReport(
            edge=self.edge,
            live_accepted=0 if live is None else live.accepted,
            live_consumed=0 if live is None else live.consumed,
            put_back=0 if live is None else live.put_back,
            max_event_time=None if live is None else live.times.newest,
            event_times={} if live is None else live.times.parts,
            spilled=tuple(spilled),
            spans=tuple(self._segments.report()),
        )

    def close(self) -> None:
        self._segments.close()


@dataclass(frozen=True, slots=True)
class Taken:
    """A slice, the number of the input it came from, and when it arrived, as in `Records`."""

    port: int
    batch: pa.RecordBatch
    arrival: CheckpointId | None = None


class Gate:
    """All inputs of a subtask. Inputs of one rank take turns, so that a backlog on one never starves another; an input
    of a higher rank is held back while one of a lower rank has rows."""

    def __init__(self, channels: Sequence[Channel], ranks: Sequence[int] = ()) -> None:
        self.channels = tuple(channels)
        ranks = ranks or [0] * len(channels)
        assert len(ranks) == len(channels)
        self._ranks = [[port for port, rank in enumerate(ranks) if rank == level] for level in sorted(set(ranks))]
        self._turns = [0] * len(self._ranks)

    def take(self, rows: Callable[[int], int]) -> Taken | None:
        """Up to `rows(port)` rows of the next input that has any and may be read; None when there is none."""
        for level, ports in enumerate(self._ranks):
            for port in ports:
                self.channels[port].come_up()
            # An input whose live rows stop the others from being read on is one of these, so it is taken here.
            for _ in ports:
                port = ports[self._turns[level]]
                self._turns[level] = (self._turns[level] + 1) % len(ports)
                batch = self.channels[port].take(rows(port))
                if batch is not None:
                    return Taken(port, batch, self.channels[port].arrival)
            if any(self.channels[port].held_back for port in ports):
                return None
        return None

    def look_ahead(self) -> None:
        """Brings the watermarks up to the rows that come next; live rows are not asked for."""
        for channel in self.channels:
            channel.look_ahead()

    def obliged(self) -> bool:
        """Whether the epoch cannot end yet."""
        return any(channel.obliged for channel in self.channels)

    def used_up(self) -> bool:
        return all(channel.used_up for channel in self.channels)

    def watermarks(self, groups: KeyGroupRange) -> npt.NDArray[np.int64]:
        """For each key group the lowest of all inputs that have event time."""
        timed = [channel.watermarks.now for channel in self.channels if channel.watermarks is not None]
        if not timed:
            return np.full(len(groups), NO_WATERMARK, np.int64)
        return np.minimum.reduce(timed)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


def as_records(taken: Taken, time: Time) -> Records:
    """Takes the hidden hash, always the last column, off the user's columns."""
    batch = taken.batch
    last = batch.num_columns - 1
    hashes = batch.column(last).to_numpy(zero_copy_only=True)
    user = pa.RecordBatch.from_arrays(batch.columns[:last], schema=batch.schema.remove(last))
    return Records(user, hashes, taken.port, time, taken.arrival)
