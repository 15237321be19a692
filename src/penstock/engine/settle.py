"""Before a sink commits anything: does its table fit the checkpoint, and is what is left to commit still there (C4)."""

from __future__ import annotations

from penstock.errors import MissingFile, TablePositionMismatch
from penstock.protocol.commit import Agreed, SinkProgress, TableAhead, TableBehind, committables_of, reconcile
from penstock.protocol.manifest import SinkState
from penstock.sinks.base import Committer


def settle(name: str, sink: SinkState, committer: Committer) -> SinkProgress:
    """Where a sink's commits stand when a driver starts. Changes nothing; what landed is acknowledged later.

    Raises: `TablePositionMismatch`; `MissingFile` when a file that is still to be committed is gone.
    """
    agreed = ask_table(name, sink, committer)
    held = agreed.landed[-1].last if agreed.landed else -1
    left = [pending for pending in sink.pending if pending.checkpoint > held]
    for pending in left:
        missing = committer.missing_files(pending.committables)
        if missing:
            raise MissingFile(
                f"sink {name}: {missing[0]}, which checkpoint {pending.checkpoint} is to commit, does not exist"
                + (f" ({len(missing)} files are missing)" if len(missing) > 1 else ""),
                cause="files that the table did not list yet were deleted by hand or by another engine's cleanup",
                next_step="put the file back, or restore an older checkpoint (restore=N): its rows are written again",
                path=missing[0],
            )
    assert committables_of(left) or not left
    return SinkProgress(sink, landed=agreed.landed)


def ask_table(name: str, sink: SinkState, committer: Committer) -> Agreed:
    """What of a sink's pending checkpoints its table holds.

    Raises: `TablePositionMismatch` when table and checkpoint cannot both be right.
    """
    receipts = committer.commits(sink.snapshot, max(1, len(sink.pending)))
    match reconcile(sink, receipts):
        case Agreed() as agreed:
            return agreed
        case TableBehind(wanted, found):
            raise TablePositionMismatch(
                f"sink {name}: the checkpoint knows that checkpoint {wanted} was committed, "
                f"the table's newest commit of ours is {found if found is not None else 'missing'}",
                cause="the table was rolled back, dropped and made again, or its snapshots expired",
                next_step="restore the checkpoint that fits the table (restore=N), or write to a new table from a new"
                " checkpoint folder",
                wanted=wanted,
                found=found,
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
