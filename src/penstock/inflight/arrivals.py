"""Output on one edge, separated by arrival: rows that the source delivered in different epochs go to different
segments.

Where nothing was in flight there is one arrival, and so one writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pyarrow as pa

from penstock.inflight.segment import Apart, ExchangeWriter
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Segment


class ArrivalWriters:
    """A writer for each arrival, opened when there are such rows. Without an `epoch` arrivals do not matter, and there
    is one for all rows."""

    def __init__(self, open_writer: Callable[[Apart], ExchangeWriter], epoch: CheckpointId | None) -> None:
        self._open_writer, self._epoch = open_writer, epoch
        self._numbers = itertools.count()
        self._writers: dict[int | None, ExchangeWriter] = {}

    def write(self, batch: pa.RecordBatch, arrival: CheckpointId | None) -> None:
        """Adds rows; `batch` has the edge's schema, hidden column included. No arrival: they arrive now."""
        if self._epoch is None or arrival == self._epoch:
            arrival = None
        writer = self._writers.get(arrival)
        if writer is None:
            # Most inputs are past the other arrivals now, so their gathered rows would only take memory.
            for other in self._writers.values():
                other.flush()
            writer = self._writers[arrival] = self._open_writer(Apart(arrival, self._numbers))
        writer.write(batch)

    def close(self) -> list[Segment]:
        """The segments written, durable; empty when there were no rows."""
        return [segment for writer in self._writers.values() for segment in writer.close()]
