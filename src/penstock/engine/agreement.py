"""Before a sink commits: checks that its table agrees with the checkpoint, and that files to commit still exist."""

from __future__ import annotations

import logging
from typing import assert_never

from penstock.errors import TableMismatch, TablePositionMismatch
from penstock.protocol.commit import (
    Agreed,
    HistoryGone,
    SinkStanding,
    TableAhead,
    TableBehind,
    answered,
    committables_of,
    floor_of,
    judge_table,
    proven,
    reconcile,
)
from penstock.protocol.manifest import SinkState, TableMark
from penstock.sinks.base import Committer, files_missing

_log = logging.getLogger("penstock")


def agree(name: str, sink: SinkState, committer: Committer, *, restored: bool = False) -> SinkStanding:
    """Where a sink's commits stand when a driver starts. Changes nothing; what landed is acknowledged later.

    `restored`: the user asked for an older checkpoint, or for one from another folder.

    Raises: `TablePositionMismatch`; `MissingFile` when a file that is still to be committed is gone.
    """
    agreed = ask_table(name, sink, committer, restored=restored)
    if agreed.unread is not None and sink.committed is not None and not agreed.landed:
        _log.warning(
            "sink %s: table snapshot %s expired before this query saw it; nothing was waiting to be committed,"
            " so the query goes on",
            name,
            agreed.unread,
        )
    landed = agreed.landed[-1].last if agreed.landed else -1
    left = [pending for pending in sink.pending if pending.checkpoint > landed]
    for pending in left:
        missing = committer.missing_files(pending.committables)
        if missing:
            raise files_missing(f"sink {name}: ", pending.checkpoint, missing)
    assert committables_of(left) or not left
    return answered(SinkStanding(sink), agreed)


def ask_table(name: str, sink: SinkState, committer: Committer, *, restored: bool = False) -> Agreed:
    """Asks the table which pending checkpoints of a sink it holds.

    Raises: `TablePositionMismatch` when table and checkpoint contradict each other, or the table cannot tell.
    """
    history = committer.commits(sink.snapshot, max(1, len(sink.pending)), floor_of(sink))
    match reconcile(sink, history, restored=restored):
        case Agreed() as agreed:
            return agreed
        case TableBehind(wanted, found):
            raise TablePositionMismatch(
                f"sink {name}: the checkpoint knows that checkpoint {wanted} was committed, "
                f"the table's newest commit of ours is {found if found is not None else 'missing'}",
                cause="the sink was pointed to another table; or the table was rolled back, or another engine overwrote"
                " a snapshot",
                next_step=f"for another table, give the sink another name, or reset=[{name!r}] with restore=N; else"
                " restore the checkpoint that fits the table (restore=N)",
                wanted=wanted,
                found=found,
            )
        case TableAhead(found, None):
            raise TablePositionMismatch(
                f"sink {name}: the table holds checkpoint {found} of ours, this checkpoint knows of none",
                cause="a sink of this name wrote to the table before, and was left out or reset since; or a checkpoint"
                " from before it wrote, or an old copy of the folder, is being restored",
                next_step="for a sink that comes back, give it a name that it did not have; else restore a newer"
                " checkpoint, roll the table back to before that checkpoint, or write to a new table",
                found=found,
                newest_known=None,
            )
        case TableAhead(found, newest):
            raise TablePositionMismatch(
                f"sink {name}: the table holds checkpoint {found} of ours, this checkpoint knows only of {newest}",
                cause="an older checkpoint or an old copy of the folder is being restored, so what it would write again"
                " is already in the table; or two copies of the folder, which are one commit user, write to it",
                next_step=f"roll the table back to the snapshot of checkpoint {newest}, restore a newer checkpoint, or"
                " write to a new table",
                found=found,
                newest_known=newest,
            )
        case HistoryGone(snapshot):
            # What the newest snapshot lists was committed. What it does not list may have been compacted away. After an
            # older checkpoint more may have been committed, which this cannot tell.
            if sink.pending and not restored and committer.holds(sink.pending[-1].committables):
                return proven(sink, history)
            raise _untold(name, sink, snapshot)
        case verdict:
            assert_never(verdict)


def _untold(name: str, sink: SinkState, snapshot: int) -> TablePositionMismatch:
    if sink.pending:
        waiting = ", ".join(str(pending.checkpoint) for pending in sink.pending)
        question = f"whether it held checkpoint {waiting}, which the query had not seen arrive"
    else:
        question = f"whether more than checkpoint {sink.committed or 'none'} was committed"
    return TablePositionMismatch(
        f"sink {name}: snapshot {snapshot} is gone, so the table cannot tell {question}; nothing was committed",
        cause="another engine expired snapshots while the query did not run",
        next_step="look for the rows of that checkpoint in the table; if they are missing, write them by hand. Then go"
        " on with a new checkpoint folder. To avoid this, keep more snapshots (snapshot.num-retained.min)",
        snapshot=snapshot,
    )


def require_same_table(name: str, sink: SinkState, there: TableMark | None, description: str) -> None:
    """Before anything is made: a sink goes on with the table that its checkpoint wrote to.

    Raises: `TableMismatch`.
    """
    other = judge_table(sink, there)
    if other is None:
        return
    wrote = "a table" if other.wrote_to is None else f"table {other.wrote_to.name}"
    if other.there is None:
        seen = f"the checkpoint has written to {wrote}; the sink points to {description}, which does not exist"
    elif other.wrote_to is not None and other.wrote_to.name == other.there.name:
        seen = f"the checkpoint has written to {wrote}; {description} was made later, so it is another one"
    else:
        seen = f"the checkpoint has written to {wrote}; the sink points to {description}, which is another one"
    raise TableMismatch(
        f"sink {name}: {seen}",
        cause="the sink's table or warehouse was changed in the program, or the table was dropped and made again",
        next_step="point the sink to the table it wrote to; to write to another table from now on, give the sink"
        f" another name, or reset=[{name!r}] with restore=N",
        sink=name,
    )
