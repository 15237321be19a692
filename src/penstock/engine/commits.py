"""The commit coordinator: commits published checkpoints to their tables, off the epochs' critical path (C2).

One background per sink, so that sinks do not wait for each other. It decides nothing by itself:
`protocol.commit` says what to commit. An exception from a commit means *unknown outcome*: the table is asked before
anything else happens.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.engine.background import AT_ONCE, WHEN_WOKEN, Background, Pause, Spawn
from penstock.errors import CommitFailed, Fenced, PenstockError, TablePositionMismatch
from penstock.protocol.commit import (
    Agreed,
    CommitBatch,
    CommitReceipt,
    TableAhead,
    TableBehind,
    acknowledged,
    next_commit,
    reconcile,
    with_pending,
)
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, SinkState
from penstock.sinks.base import Committer

_log = logging.getLogger("penstock")

TRIES = 5
FIRST_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that succeeded, for events."""

    sink: str
    batch: CommitBatch
    receipt: CommitReceipt
    duration_s: float


@dataclass(frozen=True, slots=True)
class Retry:
    """A commit of unknown outcome, for events."""

    sink: str
    batch: CommitBatch
    attempt: int
    message: str


def agree(name: str, state: SinkState, committer: Committer) -> SinkState:
    """The sink's state after asking its table.

    Raises: `TablePositionMismatch` when table and checkpoint cannot both be right.
    """
    return _agreed(name, state, committer.committed_up_to(state.snapshot))


def _agreed(name: str, state: SinkState, table: CommitReceipt | None) -> SinkState:
    match reconcile(state, table):
        case Agreed(sink):
            return sink
        case TableBehind(wanted, found):
            raise TablePositionMismatch(
                f"sink {name}: the checkpoint knows that checkpoint {wanted} was committed, "
                f"the table's newest commit of ours is {found if found is not None else 'missing'}",
                cause="the table was rolled back, dropped and made again, or its snapshots expired",
                next_step="restore the checkpoint that fits the table (restore=N), or write to a new table from a new"
                " checkpoint folder",
            )
        case TableAhead(found, newest):
            raise TablePositionMismatch(
                f"sink {name}: the table holds checkpoint {found} of ours, this checkpoint knows only of {newest}",
                cause="an older checkpoint or an old copy of the folder is being restored; what it would write again"
                " is already in the table",
                next_step=f"roll the table back to the snapshot of checkpoint {newest}, restore a newer checkpoint, or"
                " write to a new table",
            )


class SinkCommits:
    """Commits of one sink, in order, in the background."""

    def __init__(
        self,
        name: str,
        state: SinkState,
        committer: Committer,
        *,
        generation: Generation,
        still_leader: Callable[[], bool],
        on_commit: Callable[[Commit], None],
        on_retry: Callable[[Retry], None],
        on_failure: Callable[[PenstockError], None],
        spawn: Spawn,
        clock: Callable[[], float],
    ) -> None:
        self._name, self._state, self._committer = name, state, committer
        self._generation, self._still_leader = generation, still_leader
        self._on_commit, self._on_retry, self._on_failure = on_commit, on_retry, on_failure
        self._clock = clock
        self._lock = threading.Lock()
        self._ending = False
        self._failures = 0
        self._ask_at: float | None = None
        self._discarded: tuple[Committable, ...] = ()
        self._background: Background = spawn(f"penstock-commit-{name}", self.step, self._die)

    def start(self) -> None:
        self._background.start()

    @property
    def state(self) -> SinkState:
        with self._lock:
            return self._state

    def published(self, checkpoint: CheckpointId, committables: tuple[Committable, ...]) -> None:
        with self._lock:
            self._state = with_pending(self._state, checkpoint, committables)
        self._background.wake()

    def discard(self, committables: tuple[Committable, ...]) -> None:
        """Has the files of committables removed that no checkpoint holds and none ever will (C5)."""
        with self._lock:
            self._discarded += committables
        self._background.wake()

    def finish(self) -> None:
        """Commits what is pending, then ends. What failed has already ended."""
        with self._lock:
            self._ending = True
        self._background.wake()
        self._background.join()
        self._committer.close()

    def step(self) -> Pause:
        """At most one try to commit, or one question to the table, or one removal."""
        try:
            return self._act()
        except PenstockError as error:
            self._on_failure(error)
        except Exception as error:  # nothing dies in silence (B12)
            self._on_failure(_failed(self._name, error))
        return None

    def _die(self, error: BaseException) -> None:
        self._on_failure(_failed(self._name, error))

    def _act(self) -> Pause:
        if self._ask_at is not None:
            pause_s = self._ask_at - self._clock()
            if pause_s > 0 and not self._ending:
                return pause_s
            self._ask_again()
        match self._next():
            case CommitBatch() as batch:
                self._commit(batch)
            case None:
                return None if self._ending else WHEN_WOKEN
            case discarded:
                self._remove(discarded)
        return AT_ONCE

    def _next(self) -> CommitBatch | tuple[Committable, ...] | None:
        with self._lock:
            if (batch := next_commit(self._state, self._generation)) is not None:
                return batch
            discarded, self._discarded = self._discarded, ()
            return discarded or None

    def _ask_again(self) -> None:
        """After a commit of unknown outcome: the table says what it holds."""
        table = self._committer.committed_up_to(self.state.snapshot)
        with self._lock:
            # The state of now, not that of the question: checkpoints may have been published meanwhile.
            self._state = _agreed(self._name, self._state, table)
        self._ask_at = None

    def _remove(self, committables: tuple[Committable, ...]) -> None:
        try:
            self._committer.abort(committables)
        except Exception as error:  # files that nobody names are harmless
            _log.warning("sink %s: files of a failed epoch could not be removed: %s", self._name, error)

    def _commit(self, batch: CommitBatch) -> None:
        """Commits a batch, or what the table turns out to miss of it; gives up after too many tries in a row."""
        start = self._clock()
        try:
            receipt = self._committer.commit(
                batch.permit,
                batch.committables,
                properties={"penstock.checkpoint": str(batch.permit.checkpoint)},
                still_leader=self._still_leader,
            )
        except Fenced:
            raise
        except Exception as error:  # unknown outcome, whatever it was: ask the table, then decide anew
            self._recover(batch, error)
            return
        self._failures = 0
        with self._lock:
            self._state = acknowledged(self._state, receipt)
        self._on_commit(Commit(self._name, batch, receipt, self._clock() - start))

    def _recover(self, batch: CommitBatch, error: Exception) -> None:
        self._failures += 1
        if self._failures == TRIES:
            raise _failed(self._name, error) from error
        self._on_retry(Retry(self._name, batch, self._failures, str(error)))
        self._ask_at = self._clock() + FIRST_PAUSE_S * 2**self._failures


def _failed(sink: str, error: BaseException) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return CommitFailed(
        f"sink {sink}: {type(error).__name__}: {error}",
        cause="the table's storage or catalog refused the commit several times",
        next_step="fix it and start again: the committables are in the checkpoint and will be committed first",
        sink=sink,
    )


class CommitCoordinator:
    """All sinks of a query; each commits independently and has its own position."""

    def __init__(self, sinks: Mapping[str, SinkCommits]) -> None:
        self._sinks = dict(sinks)

    def start(self) -> None:
        for sink in self._sinks.values():
            sink.start()

    def states(self) -> dict[str, SinkState]:
        return {name: sink.state for name, sink in self._sinks.items()}

    def published(self, checkpoint: CheckpointId, committables: Mapping[str, tuple[Committable, ...]]) -> None:
        for name, sink in self._sinks.items():
            sink.published(checkpoint, committables.get(name, ()))

    def discard(self, committables: Mapping[str, tuple[Committable, ...]]) -> None:
        for name, unwanted in committables.items():
            self._sinks[name].discard(unwanted)

    def uncommitted(self) -> int:
        """Checkpoints that wait at the slowest sink."""
        return max((len(state.pending) for state in self.states().values()), default=0)

    def finish(self) -> None:
        for sink in self._sinks.values():
            sink.finish()
