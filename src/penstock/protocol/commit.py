"""Commit decisions of one sink: what the table and the checkpoint agree on, and what to do next.

Pending checkpoints are committed in order, several in one table snapshot when commits lag, under the id of the last of
them. The table's newest commit of our commit user therefore says exactly how far we are. A commit *landed* when the
table holds it; it is acknowledged, and leaves the checkpoint, only when the listeners were told.

Everything here is a value: `SinkStanding` is where a sink stands, `next_action` says what to do, and one function per
outcome gives the next standing.

A commit has one shape at each border that it crosses:

| border | shape | what it says |
|---|---|---|
| subtask to driver | `manifest.Committable` | what one writer wrote |
| manifest (a file) | `manifest.PendingCommit` | what one checkpoint has to commit |
| driver to table | `CommitBatch` with its `CommitPermit` | commit these checkpoints, in one snapshot |
| table to driver | `CommitReceipt` | what the table says about a snapshot of ours |
| within the driver | `LandedCommit` | these checkpoints are in that snapshot; listeners do not know yet |
| driver to listeners (public) | `sinks.listeners.CommitInfo` | one commit, equal whenever it is told again |
| driver to history (public) | `observe.events.Committed` | one commit, with when it was seen and how long it took |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import msgspec

from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, PendingCommit, SinkState, TableMark

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
class LandedCommit:
    """Checkpoints that one table snapshot holds; `found` when that was learnt by asking the table.

    `floor` where that snapshot expired: all commits of ours up to this one are these and those before them.
    """

    pending: tuple[PendingCommit, ...]
    receipt: CommitReceipt
    found: bool = False
    floor: int | None = None

    @property
    def first(self) -> CheckpointId:
        return self.pending[0].checkpoint

    @property
    def last(self) -> CheckpointId:
        return self.pending[-1].checkpoint

    @property
    def rows(self) -> int:
        return sum(pending.rows for pending in self.pending)

    @property
    def committables(self) -> tuple[Committable, ...]:
        return committables_of(self.pending)

    @property
    def watermark(self) -> int | None:
        """Each checkpoint's is a minimum over its writers and none is below its predecessor's."""
        return self.pending[-1].watermark


# -- table and checkpoint ------------------------------------------------------------------------------------------


class Remembered(Enum):
    """What became of the table snapshot that a manifest names: of the last commit that was acknowledged."""

    NOTHING = "no snapshot was remembered"
    PRESENT = "the table has it, and it is ours"
    EXPIRED = "it is gone, and newer ones are there"
    LOST = "the table is shorter than that, or has another one in its place"


@dataclass(frozen=True, slots=True)
class TableHistory:
    """What a table shows of one commit user, and how far back it can be trusted to show everything.

    `commits` come oldest first. `latest` is the newest snapshot of all users, 0 for an empty table, None for a table
    without snapshots. `gone` is a snapshot that is missing although it might hold a commit newer than the last of
    `commits`: the table cannot tell.
    """

    commits: tuple[CommitReceipt, ...] = ()
    latest: int | None = None
    gone: int | None = None
    remembered: Remembered = Remembered.NOTHING


@dataclass(frozen=True, slots=True)
class Agreed:
    """Table and checkpoint fit; `landed` are the pending checkpoints that the table holds, snapshot by snapshot.

    Every commit of ours up to snapshot `floor` is in `landed`, or acknowledged. `unread` is a snapshot that expired
    unread and does not matter.
    """

    landed: tuple[LandedCommit, ...]
    floor: int | None = None
    unread: int | None = None


@dataclass(frozen=True, slots=True)
class TableBehind:
    """The table lost a commit that the checkpoint knows of: rolled back, or another table."""

    wanted: int
    found: int | None


@dataclass(frozen=True, slots=True)
class TableAhead:
    """The table holds a commit of ours that the checkpoint knows nothing of: an older or copied checkpoint."""

    found: CheckpointId
    newest_known: CheckpointId | None


@dataclass(frozen=True, slots=True)
class HistoryGone:
    """A snapshot expired that may have held a pending checkpoint, or one that an older checkpoint knows nothing of."""

    snapshot: int


Verdict = Agreed | TableBehind | TableAhead | HistoryGone


def reconcile(sink: SinkState, table: TableHistory, *, restored: bool = False) -> Verdict:
    """Compares a sink's position with what the table shows of our commit user.

    Where older commits are missing (their snapshots expired), their checkpoints are taken to have landed with the next
    one that is there. A snapshot that could not be read matters if something is pending, or if the checkpoint is
    `restored`: an older one, after which more may have been committed.
    """
    assert [receipt.checkpoint for receipt in table.commits] == sorted({r.checkpoint for r in table.commits})
    found = int(table.commits[-1].checkpoint) if table.commits else None
    if sink.committed is not None and _lost(sink, table, found):
        return TableBehind(sink.committed, found)
    known = {sink.committed, *(pending.checkpoint for pending in sink.pending)} - {None}
    newer = [receipt for receipt in table.commits if sink.committed is None or receipt.checkpoint > sink.committed]
    for receipt in newer:
        if receipt.checkpoint not in known:
            return TableAhead(receipt.checkpoint, max((k for k in known if k is not None), default=None))
    landed, rest = [], sink.pending
    for receipt in newer:
        mine = tuple(pending for pending in rest if pending.checkpoint <= receipt.checkpoint)
        rest = rest[len(mine) :]
        landed.append(LandedCommit(mine, receipt, found=True))
    if table.gone is not None and (rest or restored):
        return HistoryGone(table.gone)
    return Agreed(tuple(landed), None if landed else table.latest, table.gone)


def _lost(sink: SinkState, table: TableHistory, found: int | None) -> bool:
    """Whether the table lacks the commit that was acknowledged last. An expired snapshot is no loss: its rows stay."""
    assert sink.committed is not None
    if table.remembered is Remembered.LOST:
        return True
    if found is not None:
        return found < sink.committed
    if sink.snapshot is None and sink.floor is not msgspec.UNSET:
        # Its snapshot expired before it was acknowledged; see `proven`.
        return table.latest is None or table.latest < sink.floor
    return table.remembered is not Remembered.EXPIRED


def proven(sink: SinkState, table: TableHistory) -> Agreed:
    """Everything pending is in the table, though no snapshot tells: its newest one lists files of the last of it."""
    assert sink.pending
    checkpoint = sink.pending[-1].checkpoint
    rows, files = sum(pending.rows for pending in sink.pending), len(committables_of(sink.pending))
    landed = LandedCommit(sink.pending, CommitReceipt(checkpoint, None, rows, files), found=True, floor=table.latest)
    return Agreed((landed,), None, table.gone)


def with_floor(sink: SinkState, floor: int | None) -> SinkState:
    """Remembers up to which table snapshot all commits of ours are acknowledged; see `SinkState.floor`.

    It may go back: a table that was rolled back numbers its next snapshots again.
    """
    if floor is None or floor == sink.snapshot:
        return msgspec.structs.replace(sink, floor=msgspec.UNSET)
    return msgspec.structs.replace(sink, floor=floor)


def floor_of(sink: SinkState) -> int:
    return 0 if sink.floor is msgspec.UNSET else sink.floor


def trusted(floor: int, latest: int) -> int:
    """A floor as far as it counts. A table that is shorter was rolled back since: it numbers its snapshots anew."""
    return floor if floor <= latest else 0


def marked(sink: SinkState, table: TableMark | None) -> SinkState:
    """Remembers which table is written to, where it can be told from others."""
    known = table is not None and table.made_at_ms is not None
    return msgspec.structs.replace(sink, table=table if table is not None and known else msgspec.UNSET)


@dataclass(frozen=True, slots=True)
class OtherTable:
    """What was committed, or is to be, belongs to another table; `there` is None where there is none."""

    wrote_to: TableMark | None
    there: TableMark | None


def judge_table(sink: SinkState, there: TableMark | None) -> OtherTable | None:
    """Whether a sink points to another table than the one it wrote to, before anything is made or changed.

    `there` is the table, None where there is none. A table keeps its time of making when it is renamed or moved. A sink
    that has written nothing may go to any table.
    """
    if sink.committed is None and not sink.pending:
        return None
    wrote_to = None if sink.table is msgspec.UNSET else sink.table
    if there is None:
        return OtherTable(wrote_to, None)
    if wrote_to is None or None in {wrote_to.made_at_ms, there.made_at_ms}:
        return None  # not known: what the table holds must tell
    return OtherTable(wrote_to, there) if wrote_to.made_at_ms != there.made_at_ms else None


def acknowledged(sink: SinkState, receipt: CommitReceipt, listeners: Mapping[str, bytes] | None = None) -> SinkState:
    """The sink's state once the table holds everything up to the receipt's checkpoint and listeners know it."""
    # A commit's own snapshot says as much as a floor.
    floor = sink.floor if receipt.snapshot is None else msgspec.UNSET
    return msgspec.structs.replace(
        sink,
        committed=receipt.checkpoint,
        snapshot=receipt.snapshot if receipt.snapshot is not None else sink.snapshot,
        floor=floor,
        pending=tuple(pending for pending in sink.pending if pending.checkpoint > receipt.checkpoint),
        listeners=sink.listeners if listeners is None else dict(listeners),
    )


def with_pending(
    sink: SinkState, checkpoint: CheckpointId, committables: tuple[Committable, ...], watermark: int | None = None
) -> SinkState:
    """Adds a new checkpoint's committables behind those that still wait; nothing to commit adds nothing.

    `watermark` is the minimum over the sink's active writers; a sink's watermark never goes back.
    """
    marks = [mark for mark in (sink.watermark, watermark) if mark is not None]
    sink = msgspec.structs.replace(sink, watermark=max(marks, default=None))
    if not committables:
        return sink
    assert all(pending.checkpoint < checkpoint for pending in sink.pending)
    added = PendingCommit(checkpoint=checkpoint, committables=committables, watermark=sink.watermark)
    return msgspec.structs.replace(sink, pending=(*sink.pending, added))


def committables_of(pending: Sequence[PendingCommit]) -> tuple[Committable, ...]:
    return tuple([committable for one in pending for committable in one.committables])


# -- what to do next -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SinkStanding:
    """Where the commits of one sink stand.

    `sink` is what a manifest may hold at any time: position, pending checkpoints and listener states that belong
    together. `in_doubt`: a commit was sent and its outcome is unknown. `failures` are counted in a row.
    """

    sink: SinkState
    landed: tuple[LandedCommit, ...] = ()
    in_doubt: bool = False
    failures: int = 0
    retry_at_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Tell:
    """Tell the listeners about a commit."""

    landed: LandedCommit


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
        """As of `LandedCommit`."""
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
    return CommitBatch(CommitPermit(generation, sink.pending[-1].checkpoint), sink.pending)


def next_action(standing: SinkStanding, generation: Generation, now_s: float) -> Action:
    """What to do now. Listeners come first, then doubts, then commits: nothing overtakes."""
    if standing.failures and now_s < standing.retry_at_s:
        return Rest(standing.retry_at_s)
    if standing.landed:
        return Tell(standing.landed[0])
    if standing.in_doubt:
        return Ask()
    return next_commit(standing.sink, generation) or Rest(None)


# -- what came of it -----------------------------------------------------------------------------------------------


def published(standing: SinkStanding, checkpoint: CheckpointId, manifest: SinkState) -> SinkStanding:
    """A manifest was published; `manifest` is what it holds of the sink."""
    new = [pending for pending in manifest.pending if pending.checkpoint == checkpoint]
    committables = committables_of(new)
    return replace(standing, sink=with_pending(standing.sink, checkpoint, committables, manifest.watermark))


def committed(standing: SinkStanding, batch: CommitBatch, receipt: CommitReceipt) -> SinkStanding:
    """A commit was answered. A table that answers with a later checkpoint must be asked what happened."""
    if receipt.checkpoint != batch.permit.checkpoint:
        return replace(standing, in_doubt=True)
    return replace(standing, landed=(LandedCommit(batch.pending, receipt),), failures=0)


def in_doubt(standing: SinkStanding, now_s: float) -> SinkStanding:
    """A commit or a question was not answered: its outcome is unknown, whatever the exception was."""
    return replace(failed(standing, now_s), in_doubt=True)


def failed(standing: SinkStanding, now_s: float) -> SinkStanding:
    """Something failed that may be tried again."""
    failures = standing.failures + 1
    return replace(standing, failures=failures, retry_at_s=now_s + pause_s(failures))


def answered(standing: SinkStanding, agreed: Agreed) -> SinkStanding:
    """The table said what it holds. Failures still count: only a commit or a listener shows that things work."""
    sink = standing.sink if agreed.landed else with_floor(standing.sink, agreed.floor)
    return replace(standing, sink=sink, landed=agreed.landed, in_doubt=False, retry_at_s=0.0)


def told(standing: SinkStanding, listeners: Mapping[str, bytes]) -> SinkStanding:
    """The listeners know of the oldest landed commit; `listeners` are their states after it."""
    first, *rest = standing.landed
    sink = acknowledged(standing.sink, first.receipt, listeners)
    if first.floor is not None:
        sink = with_floor(msgspec.structs.replace(sink, snapshot=None), first.floor)
    return replace(standing, sink=sink, landed=tuple(rest), failures=0)


def listened(standing: SinkStanding, listeners: Mapping[str, bytes]) -> SinkStanding:
    """Listeners were told that time passed; nothing else changed."""
    return replace(standing, sink=msgspec.structs.replace(standing.sink, listeners=dict(listeners)))
