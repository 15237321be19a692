"""Emits once more what an earlier pipeline left in flight: in epochs in which a stage has such rows, it does only that.

So they keep their place before everything that the stage makes later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from penstock.graph.stages import Leftover
from penstock.inflight.gate import Channel
from penstock.protocol.ids import CheckpointId
from penstock.slices import Slicer
from penstock.subtask.barrier import Barrier


@dataclass(frozen=True, slots=True)
class LeftoverInput:
    """A leftover and what this subtask reads of it."""

    leftover: Leftover
    channel: Channel


def step_leftovers(
    inputs: Sequence[LeftoverInput],
    send: Callable[[Leftover, pa.RecordBatch, CheckpointId | None], None],
    barrier: Barrier,
    clock: Callable[[], float],
    row_cost_s: float | None,
) -> bool:
    """Emits until nothing is left or the barrier fires; True when it fired and something is left. The first slice is
    taken however late it is: every epoch makes progress."""
    slicer = Slicer(row_cost_s)
    for part in inputs:
        while (batch := part.channel.take(slicer.rows(barrier.left_s))) is not None:
            start = clock()
            send(part.leftover, without_hash(batch), part.channel.arrival)
            slicer.observe(batch.num_rows, clock() - start)
            if barrier.fired():
                return not all(other.channel.used_up for other in inputs)
    return False


def without_hash(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The user's columns."""
    last = batch.num_columns - 1
    return pa.RecordBatch.from_arrays(batch.columns[:last], schema=batch.schema.remove(last))
