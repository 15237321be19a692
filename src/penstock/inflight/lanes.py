"""Lanes: what rows of an unkeyed edge have in place of a key hash.

If order matters downstream, a row keeps the lane of its Spark partition or of the subtask that made it. If not, rows
that go to segments are dealt out over all lanes in small blocks, so that any number of subtasks can share them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.inflight.segment import HASH_COLUMN, ExchangeWriter
from penstock.protocol.manifest import Segment

BLOCK_ROWS = 16
"""Rows per block: few enough that a small backlog is shared, too."""


def spread(count: int) -> list[int]:
    """The numbers 0 to `count` - 1 in an order in which the first n, for any n, are spread evenly.

    >>> spread(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    bits = max(1, (count - 1).bit_length())
    reversed_bits = (int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits))
    return [number for number in reversed_bits if number < count]


@lru_cache
def spread_lanes(count: int) -> npt.NDArray[np.int64]:
    """`spread` as an array, made once."""
    return np.array(spread(count), np.int64)


class Dealer:
    """Gives rows their lanes, block by block."""

    def __init__(self, max_parallelism: int, first: int = 0) -> None:
        self._lanes, self._next_row = spread_lanes(max_parallelism), first * BLOCK_ROWS

    def deal(self, rows: int) -> npt.NDArray[np.int64]:
        blocks = (self._next_row + np.arange(rows)) // BLOCK_ROWS
        self._next_row += rows
        lanes: npt.NDArray[np.int64] = self._lanes[blocks % len(self._lanes)]
        return lanes


class DealingWriter:
    """Writes live rows behind the barrier so that any number of subtasks can share them."""

    def __init__(self, writer: ExchangeWriter, dealer: Dealer) -> None:
        self._writer, self._dealer = writer, dealer

    def write(self, batch: pa.RecordBatch) -> None:
        last = batch.num_columns - 1
        assert batch.schema.field(last).name == HASH_COLUMN
        lanes = pa.array(self._dealer.deal(batch.num_rows))
        self._writer.write(pa.RecordBatch.from_arrays([*batch.columns[:last], lanes], schema=batch.schema))

    def close(self) -> list[Segment]:
        return self._writer.close()

    def abort(self) -> None:
        self._writer.abort()
