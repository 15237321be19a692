"""Reports of a sink about its commits: events for the history, and the call that is running."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from penstock.engine.history import utc_now
from penstock.errors import PenstockError
from penstock.observe.events import CommitRetried, CommitSlow, Committed
from penstock.protocol.commit import LandedCommit
from penstock.protocol.ids import CheckpointId


@dataclass(frozen=True, slots=True)
class CommitCall:
    """A call of a sink that has not returned: what it is for, for which checkpoints, and since when."""

    sink: str
    what: str
    first: CheckpointId
    last: CheckpointId
    since_s: float


@dataclass(frozen=True, slots=True)
class CommitEvents:
    """Callbacks of a sink: for events, and for giving up."""

    committed: Callable[[Committed], None]
    retried: Callable[[CommitRetried], None]
    failed: Callable[[PenstockError], None]


def committed_event(sink: str, landed: LandedCommit, duration_s: float | None) -> Committed:
    """A commit is in the table; `duration_s` counts only if this driver's call made it."""
    return Committed(
        at=utc_now(),
        sink=sink,
        first=landed.first,
        last=landed.last,
        snapshot=landed.receipt.snapshot,
        rows=landed.rows,
        files=landed.receipt.files,
        watermark=landed.watermark,
        duration_s=None if landed.found else duration_s,
        found=landed.found,
    )


def slow_event(call: CommitCall, waited_s: float) -> CommitSlow:
    return CommitSlow(at=utc_now(), sink=call.sink, what=call.what, first=call.first, last=call.last, waited_s=waited_s)
