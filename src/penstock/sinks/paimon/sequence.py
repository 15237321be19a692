"""Sequence numbers of rows: which of two rows of one key is the newer one.

A number is made of the checkpoint and the row's place in its writer. So it grows from epoch to epoch, whatever was
committed meanwhile, whoever runs the driver and however many subtasks there are. Within an epoch rows of one key meet
in one writer. Where a table holds larger numbers already, of another query or engine, ours are moved above those.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from penstock.errors import TableRefused
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import Committable
from penstock.sinks.paimon import private

ROW_BITS = 32
"""Rows that one writer can number within an epoch, as a power of two; the rest of 63 bits counts checkpoints."""

_CHECKPOINTS_MAX = 1 << 30


def first_number(checkpoint: CheckpointId, shift: int) -> int:
    """The number of a writer's first row in the epoch of this checkpoint."""
    return (checkpoint + shift) << ROW_BITS


def shift_above(checkpoint: CheckpointId, numbers: Iterable[int]) -> int:
    """What to add to every checkpoint from `checkpoint` on, so that new numbers are above all `numbers`.

    Raises: `TableRefused` when there is no room above them.

    >>> shift_above(CheckpointId(7), [3 << ROW_BITS]), shift_above(CheckpointId(1), [9 << ROW_BITS])
    (0, 9)
    """
    highest = max(numbers, default=0)
    shift = max(0, (highest >> ROW_BITS) + 1 - checkpoint)
    if checkpoint + shift >= _CHECKPOINTS_MAX:
        raise TableRefused(
            f"the table holds sequence number {highest}; there is no room for numbers above it",
            cause="another engine numbered rows by a clock or at random",
            next_step="copy the rows into a new table and write to that",
            highest=highest,
        )
    return shift


def known_sequences(table: private.Table, pending: Sequence[Committable]) -> Iterator[int]:
    """The largest sequence numbers of what the table holds, and of what was published but may not be in it yet."""
    yield private.highest_sequence(table)
    for committable in pending:
        for file in private.decode(table, committable.payload).new_files:
            yield int(file.max_sequence_number)
