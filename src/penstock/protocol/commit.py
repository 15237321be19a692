"""Commit decisions of one sink: what the table and the checkpoint agree on, and what to do next (C3, C4, C8).

Pending checkpoints are committed in order, several in one table snapshot when commits lag, under the id of the last of
them. The table's newest commit of our commit user therefore says exactly how far we are. A commit *landed* when the
table holds it; it is acknowledged, and leaves the checkpoint, only when the listeners were told.

Everything here is a value: `SinkProgress` is where a sink stands, `next_action` says what to do, and one function per
outcome gives the next progress.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, PendingCommit, SinkState

TRIES = 5
"""Failures in a row after which a sink gives up."""
FIRST_PAUSE_S = 0.2


def pause_s(failures: int) -> float:
    """How long to wait after so many failures in a row.

    >>> [pause_s(n) for n in (1, 2, 3)]
    [0.2, 0.4, 0.8]
    """
    assert failures >= 1
    return FIRST_PAUSE_S * 2.0 ** (failures - 1)


@dataclass(frozen=True, slots=True)
class CommitPermit:
    """The right to commit up to one checkpoint; made only by `next_commit`, for the generation that asks."""

    generation: Generation
    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """What a table says about a commit: its snapshot, the rows and files it added, watermark and time."""

    checkpoint: CheckpointId
    snapshot: int | None
    rows: int
    files: int
    watermark: int | None = None
    committed_at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """Checkpoints that one table snapshot holds; `found` when that was learnt by asking the table."""

    pending: tuple[PendingCommit, ...]
    receipt: CommitReceipt
    found: bool = False

    @property
    def first(self) -> CheckpointId:
        return CheckpointId(self.pending[0].checkpoint)

    @property
    def last(self) -> CheckpointId:
        return CheckpointId(self.pending[-1].checkpoint)

    @property
    def rows(self) -> int:
        return sum(pending.rows for pending in self.pending)

    @property
    def committables(self) -> tuple[Committable, ...]:
        return committables_of(self.pending)


# -- table and checkpoint ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreed:
    """Table and checkpoint fit; `landed` are the pending checkpoints that the table holds, snapshot by snapshot."""

    landed: tuple[Landed, ...]


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


def reconcile(sink: SinkState, table: Sequence[CommitReceipt]) -> Agreed | TableBehind | TableAhead:
    """Compares a sink's position with what the table says our commit user committed, oldest first.

    The newest commit must be among `table`. Where older ones are missing (their snapshots expired), their checkpoints
    are taken to have landed with the next one that is there.
    """
    assert [receipt.checkpoint for receipt in table] == sorted({receipt.checkpoint for receipt in table})
    found = int(table[-1].checkpoint) if table else None
    if sink.committed is not None and (found is None or found < sink.committed):
        return TableBehind(sink.committed, found)
    known = {sink.committed, *(pending.checkpoint for pending in sink.pending)} - {None}
    newer = [receipt for receipt in table if sink.committed is None or receipt.checkpoint > sink.committed]
    for receipt in newer:
        if receipt.checkpoint not in known:
            return TableAhead(int(receipt.checkpoint), max((k for k in known if k is not None), default=None))
    landed, rest = [], sink.pending
    for receipt in newer:
        mine = tuple(pending for pending in rest if pending.checkpoint <= receipt.checkpoint)
        rest = rest[len(mine) :]
        landed.append(Landed(mine, receipt, found=True))
    return Agreed(tuple(landed))


def acknowledged(sink: SinkState, receipt: CommitReceipt, listeners: Mapping[str, bytes] | None = None) -> SinkState:
    """The sink's state once the table holds everything up to the receipt's checkpoint and listeners know it."""
    return msgspec.structs.replace(
        sink,
        committed=int(receipt.checkpoint),
        snapshot=receipt.snapshot if receipt.snapshot is not None else sink.snapshot,
        pending=tuple(pending for pending in sink.pending if pending.checkpoint > receipt.checkpoint),
        listeners=sink.listeners if listeners is None else dict(listeners),
    )


def with_pending(
    sink: SinkState, checkpoint: CheckpointId, committables: tuple[Committable, ...], watermark: int | None = None
) -> SinkState:
    """Adds a new checkpoint's committables behind those that still wait; nothing to commit adds nothing.

    `watermark` is the minimum over the sink's active writers; a sink's watermark never goes back (C7).
    """
    marks = [mark for mark in (sink.watermark, watermark) if mark is not None]
    sink = msgspec.structs.replace(sink, watermark=max(marks, default=None))
    if not committables:
        return sink
    assert all(pending.checkpoint < checkpoint for pending in sink.pending)
    added = PendingCommit(checkpoint=checkpoint, committables=committables, watermark=sink.watermark)
    return msgspec.structs.replace(sink, pending=(*sink.pending, added))


def committables_of(pending: Sequence[PendingCommit]) -> tuple[Committable, ...]:
    return tuple(committable for one in pending for committable in one.committables)


# -- what to do next -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """Where the commits of one sink stand.

    `sink` is what a manifest may hold at any time: position, pending checkpoints and listener states that belong
    together. `in_doubt`: a commit was sent and its outcome is unknown. `failures` are counted in a row.
    """

    sink: SinkState
    landed: tuple[Landed, ...] = ()
    in_doubt: bool = False
    failures: int = 0
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the listeners about a commit."""

    landed: Landed


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the table what it holds before anything else happens."""


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """Commit all of `pending` in one table snapshot."""

    permit: CommitPermit
    pending: tuple[PendingCommit, ...]

    @property
    def committables(self) -> tuple[Committable, ...]:
        return committables_of(self.pending)

    @property
    def watermark(self) -> int | None:
        """Each checkpoint's is a minimum over its writers and none is below its predecessor's."""
        return self.pending[-1].watermark


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do until that time, or, without one, until something is published."""

    until_s: float | None


Action = Tell | Ask | CommitBatch | Rest


def next_commit(sink: SinkState, generation: Generation) -> CommitBatch | None:
    """Everything that waits, in order and without gaps; None when nothing does."""
    if not sink.pending:
        return None
    return CommitBatch(CommitPermit(generation, CheckpointId(sink.pending[-1].checkpoint)), sink.pending)


def next_action(progress: SinkProgress, generation: Generation, now_s: float) -> Action:
    """What to do now. Listeners come first, then doubts, then commits: nothing overtakes."""
    if progress.failures and now_s < progress.retry_at_s:
        return Rest(progress.retry_at_s)
    if progress.landed:
        return Tell(progress.landed[0])
    if progress.in_doubt:
        return Ask()
    return next_commit(progress.sink, generation) or Rest(None)


# -- what came of it -----------------------------------------------------------------------------------------------


def published(progress: SinkProgress, checkpoint: CheckpointId, manifest: SinkState) -> SinkProgress:
    """A manifest was published; `manifest` is what it holds of the sink."""
    new = [pending for pending in manifest.pending if pending.checkpoint == checkpoint]
    committables = committables_of(new)
    return replace(progress, sink=with_pending(progress.sink, checkpoint, committables, manifest.watermark))


def committed(progress: SinkProgress, batch: CommitBatch, receipt: CommitReceipt) -> SinkProgress:
    """A commit was answered. A table that answers with a later checkpoint must be asked what happened."""
    if receipt.checkpoint != batch.permit.checkpoint:
        return replace(progress, in_doubt=True)
    return replace(progress, landed=(Landed(batch.pending, receipt),), failures=0)


def in_doubt(progress: SinkProgress, now_s: float) -> SinkProgress:
    """A commit or a question was not answered: its outcome is unknown, whatever the exception was."""
    return replace(failed(progress, now_s), in_doubt=True)


def failed(progress: SinkProgress, now_s: float) -> SinkProgress:
    """Something failed that may be tried again."""
    failures = progress.failures + 1
    return replace(progress, failures=failures, retry_at_s=now_s + pause_s(failures))


def answered(progress: SinkProgress, agreed: Agreed) -> SinkProgress:
    """The table said what it holds. Failures still count: only a commit or a listener shows that things work."""
    return replace(progress, landed=agreed.landed, in_doubt=False, retry_at_s=0.0)


def told(progress: SinkProgress, listeners: Mapping[str, bytes]) -> SinkProgress:
    """The listeners know of the oldest landed commit; `listeners` are their states after it."""
    first, *rest = progress.landed
    sink = acknowledged(progress.sink, first.receipt, listeners)
    return replace(progress, sink=sink, landed=tuple(rest), failures=0)


def listened(progress: SinkProgress, listeners: Mapping[str, bytes]) -> SinkProgress:
    """Listeners were told that time passed; nothing else changed."""
    return replace(progress, sink=msgspec.structs.replace(progress.sink, listeners=dict(listeners)))
