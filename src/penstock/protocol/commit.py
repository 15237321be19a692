"""Commit decisions: what the table and the checkpoint agree on, and what to commit next (C3, C4).

A sink's pending checkpoints are committed in order, several in one table snapshot when commits lag, under the id of
the last of them. The table's newest commit of our commit user therefore says exactly how far we are.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, PendingCommit, SinkState


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to commit up to one checkpoint; made only by `next_commit`, for the generation that asks."""

    generation: Generation
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """What a table says about a commit: its snapshot, and how many rows and files it added."""

    checkpoint: CheckpointId
    snapshot: int | None
    rows: int
    files: int


@dataclass(frozen=True, slots=True)
class Agreed:
    """Table and checkpoint fit; `sink` is the sink's state with everything the table holds marked as committed."""

    sink: SinkState


@dataclass(frozen=True, slots=True)
class TableBehind:
    """The table lost a commit that the checkpoint knows of: rolled back, expired, or another table."""

    wanted: int
    found: int | None


@dataclass(frozen=True, slots=True)
class TableAhead:
    """The table holds a commit of ours that the checkpoint knows nothing of: an older or copied checkpoint."""

    found: int
    newest_known: int | None


def reconcile(sink: SinkState, table: CommitReceipt | None) -> Agreed | TableBehind | TableAhead:
    """Compares a sink's position with what the table says our commit user committed last."""
    found = None if table is None else int(table.checkpoint)
    if sink.committed is not None and (found is None or found < sink.committed):
        return TableBehind(sink.committed, found)
    known = {sink.committed, *(pending.checkpoint for pending in sink.pending)}
    if found is not None and found not in known:
        return TableAhead(found, max((k for k in known if k is not None), default=None))
    if table is None or found is None:
        return Agreed(sink)
    return Agreed(acknowledged(sink, table))


def acknowledged(sink: SinkState, receipt: CommitReceipt) -> SinkState:
    """The sink's state once the table holds everything up to the receipt's checkpoint."""
    return SinkState(
        committed=int(receipt.checkpoint),
        snapshot=receipt.snapshot if receipt.snapshot is not None else sink.snapshot,
        pending=tuple(pending for pending in sink.pending if pending.checkpoint > receipt.checkpoint),
    )


def with_pending(sink: SinkState, checkpoint: CheckpointId, committables: tuple[Committable, ...]) -> SinkState:
    """Adds a new checkpoint's committables behind those that still wait; nothing to commit adds nothing."""
    if not committables:
        return sink
    assert all(pending.checkpoint < checkpoint for pending in sink.pending)
    pending = (*sink.pending, PendingCommit(checkpoint=checkpoint, committables=committables))
    return SinkState(committed=sink.committed, snapshot=sink.snapshot, pending=pending)


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Commit all of `pending` in one table snapshot."""

    permit: CommitPermit
    pending: tuple[PendingCommit, ...]

    @property
    def committables(self) -> tuple[Committable, ...]:
        return tuple(committable for pending in self.pending for committable in pending.committables)


def next_commit(sink: SinkState, generation: Generation) -> CommitBatch | None:
    """Everything that waits, in order and without gaps; None when nothing does."""
    if not sink.pending:
        return None
    return CommitBatch(CommitPermit(generation, CheckpointId(sink.pending[-1].checkpoint)), sink.pending)
