"""The commit coordinator: commits published checkpoints to their tables, off the epochs' critical path.

One background per sink, so that sinks do not wait for each other. It decides nothing by itself: `protocol.commit` says
what to do, one action per step. An exception from a commit means *unknown outcome*: the table is asked before anything
else happens. What is known to be in the table is written to the commit log and told to listeners before it is
acknowledged, so a crash at any point repeats these and never leaves them out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import NoReturn, assert_never

from penstock.engine.agreement import ask_table
from penstock.engine.attempts import AttemptFiles
from penstock.engine.background import AT_ONCE, WHEN_WOKEN, Background, Pause, Spawn
from penstock.engine.commitevents import CommitCall, CommitEvents, committed_event
from penstock.engine.history import utc_now
from penstock.errors import CommitFailed, Fenced, ListenerFailed, MissingFile, PenstockError, TablePositionMismatch
from penstock.observe.events import CommitRetried
from penstock.protocol import commit as protocol
from penstock.protocol.commit import Ask, CommitBatch, LandedCommit, Rest, SinkStanding, Tell, next_action
from penstock.protocol.ids import NO_CHECKPOINT, CheckpointId, Generation
from penstock.protocol.manifest import Committable, Manifest, SinkState
from penstock.sinks.base import Committer
from penstock.sinks.listeners import CommitInfo, CommitListener, SinkTime

_log = logging.getLogger("penstock")

JOIN_S = 0.2
"""How often a thread that waits for the last commit looks whether it gets on."""
PROGRESS_EVERY_S = 5.0
"""Between two calls of `CommitListener.on_progress` while nothing happens."""


def _wall_ms() -> int:
    return int(time.time() * 1000)


class SinkCommits:
    """Commits of one sink, in order, in the background."""

    def __init__(
        self,
        name: str,
        standing: SinkStanding,
        committer: Committer,
        *,
        generation: Generation,
        still_leader: Callable[[], bool],
        events: CommitEvents,
        spawn: Spawn,
        listeners: tuple[CommitListener, ...] = (),
        attempts: AttemptFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = _wall_ms,
    ) -> None:
        self._name, self._standing, self._committer = name, standing, committer
        self._generation, self._still_leader, self._events = generation, still_leader, events
        self._listeners, self._attempts = listeners, attempts
        self._clock, self._wall_ms = clock, wall_ms
        self._lock = threading.Lock()
        self._ending = False
        self.busy: CommitCall | None = None
        """What another thread finds it waiting for."""
        self._discarded: tuple[Committable, ...] = ()
        self._duration_s: float | None = None
        self._listens_to_time = any(type(one).on_progress is not CommitListener.on_progress for one in listeners)
        self._told_time: tuple[int | None, float] | None = None
        self._background: Background = spawn(f"penstock-commit-{name}", self.step, self._die)

    def start(self) -> None:
        self._background.start()

    @property
    def state(self) -> SinkState:
        """The state of this sink for a manifest that is published now."""
        with self._lock:
            return self._standing.sink

    def published(self, checkpoint: CheckpointId, manifest: SinkState, winners: frozenset[str]) -> None:
        """A manifest is published; `winners` are the attempts whose reports are in it."""
        if self._attempts is not None:
            self._attempts.published(checkpoint, winners)
        self._change(lambda standing: protocol.published(standing, checkpoint, manifest))
        self._background.wake()

    def discard(self, committables: tuple[Committable, ...]) -> None:
        """Removes files of committables that no checkpoint holds or will hold."""
        with self._lock:
            self._discarded += committables
        self._background.wake()

    def finish(self, limit_s: float | None = None) -> CommitCall | None:
        """Commits what is pending, then ends. What failed has already ended.

        Returns the running call if it takes longer than `limit_s`.
        """
        with self._lock:
            self._ending = True
        self._background.wake()
        while not self._background.join(JOIN_S):
            busy = self.busy
            if busy is not None and limit_s is not None and self._clock() - busy.since_s > limit_s:
                return busy
        self._committer.close()
        return None

    # -- one step --------------------------------------------------------------------------------------------------

    def step(self) -> Pause:
        """One action: at most one try to commit, one question, one round of listeners, or one removal."""
        try:
            return self._act()
        except PenstockError as error:
            self._events.failed(error)
        except Exception as error:  # no thread dies unnoticed
            self._events.failed(_failed(self._name, error))
        return None

    def _die(self, error: BaseException) -> None:
        self._events.failed(_failed(self._name, error))

    def _act(self) -> Pause:
        now_s = self._clock()
        with self._lock:
            action, ending = next_action(self._standing, self._generation, now_s), self._ending
        try:
            match action:
                case Tell(landed):
                    self.busy = CommitCall(self._name, "listeners of the commit", landed.first, landed.last, now_s)
                    self._tell(landed)
                case Ask():
                    pending = self.state.pending
                    self.busy = CommitCall(
                        self._name, "answer of the table", pending[0].checkpoint, pending[-1].checkpoint, now_s
                    )
                    self._ask()
                case CommitBatch() as batch:
                    first, last = batch.pending[0].checkpoint, batch.permit.checkpoint
                    self.busy = CommitCall(self._name, "commit", first, last, now_s)
                    self._commit(batch)
                case Rest(float() as until_s):
                    return until_s - now_s
                case Rest():
                    return self._rest(now_s, ending=ending)
                case _:
                    assert_never(action)
        finally:
            self.busy = None
        return AT_ONCE

    def _rest(self, now_s: float, *, ending: bool) -> Pause:
        self.busy = CommitCall(self._name, "removal of files of failed attempts", NO_CHECKPOINT, NO_CHECKPOINT, now_s)
        if self._tidy():
            return AT_ONCE
        self.busy = CommitCall(self._name, "listeners of the time", NO_CHECKPOINT, NO_CHECKPOINT, now_s)
        pause = self._tell_time(now_s)
        return None if ending else pause

    def _commit(self, batch: CommitBatch) -> None:
        start = self._clock()
        try:
            receipt = self._committer.commit(
                batch.permit,
                batch.committables,
                watermark=batch.watermark,
                properties=self._properties(batch),
                still_leader=self._still_leader,
            )
        except Fenced:
            raise
        except MissingFile as error:  # nothing was committed, and trying again does not bring the file back
            self._raise_unless_replaced(error)
        except Exception as error:  # unknown outcome, whatever it was: ask the table, then decide anew
            self._again(protocol.in_doubt, batch.pending[0].checkpoint, batch.permit.checkpoint, error)
            return
        self._duration_s = self._clock() - start
        self._change(lambda standing: protocol.committed(standing, batch, receipt))

    def _properties(self, batch: CommitBatch) -> dict[str, str]:
        """Properties of the table snapshot, for readers who see only the table."""
        properties = {"penstock.checkpoint": str(batch.permit.checkpoint)}
        if batch.watermark is not None:
            properties["penstock.watermark"] = str(batch.watermark)
        states = self.state.listeners
        for listener in self._listeners:
            properties |= listener.properties(states.get(listener.name, b""))
        return properties

    def _ask(self) -> None:
        sink = self.state
        try:
            agreed = ask_table(self._name, sink, self._committer)
        except TablePositionMismatch as error:
            self._raise_unless_replaced(error)
        except Exception as error:
            self._again(protocol.in_doubt, sink.pending[0].checkpoint, sink.pending[-1].checkpoint, error)
            return
        self._change(lambda standing: protocol.answered(standing, agreed))

    def _raise_unless_replaced(self, error: PenstockError) -> NoReturn:
        """Raises the error; if a newer driver took over, which may have caused it, `Fenced` instead."""
        if not self._still_leader():
            raise Fenced(
                f"sink {self._name}: {error.seen}",
                cause="a newer driver took over and commits to the table",
                next_step="let the newer one run; this one has stopped",
            ) from error
        raise error

    def _tell(self, landed: LandedCommit) -> None:
        """Tells the listeners, writes the log, acknowledges; in this order, so that a crash leaves nothing out."""
        states = self.state.listeners
        try:
            told = self._told(landed, states)
        except Exception as error:
            self._again(protocol.failed, landed.first, landed.last, error)
            return
        self._events.committed(committed_event(self._name, landed, self._duration_s))
        self._change(lambda standing: protocol.told(standing, told))
        self._told_time = None  # what was waiting for this commit may be due now

    def _told(self, landed: LandedCommit, states: Mapping[str, bytes]) -> dict[str, bytes]:
        if not self._listeners:
            return {}
        info = _info(self._name, landed, self._committer.partitions(landed.committables))
        return self._call(lambda listener, state: listener.on_commit(info, state), states)

    def _call(self, call: Callable[[CommitListener, bytes], bytes], states: Mapping[str, bytes]) -> dict[str, bytes]:
        told: dict[str, bytes] = {}
        for listener in self._listeners:
            try:
                told[listener.name] = call(listener, states.get(listener.name, b""))
            except Exception as error:
                raise _listener_failed(self._name, listener, error) from error
        return told

    def _again(
        self,
        outcome: Callable[[SinkStanding, float], SinkStanding],
        first: CheckpointId,
        last: CheckpointId,
        error: Exception,
    ) -> None:
        self._change(lambda standing: outcome(standing, self._clock()))
        failures = self._standing.failures
        if failures >= protocol.TRIES:
            raise _failed(self._name, error) from error
        self._events.retried(
            CommitRetried(at=utc_now(), sink=self._name, first=first, last=last, attempt=failures, message=str(error))
        )

    def _change(self, change: Callable[[SinkStanding], SinkStanding]) -> None:
        """Checkpoints are published meanwhile, so every change is made to the newest standing."""
        with self._lock:
            self._standing = change(self._standing)

    # -- when nothing waits ----------------------------------------------------------------------------------------

    def _tidy(self) -> bool:
        """Removes files that no checkpoint will ever name; says whether it did something."""
        with self._lock:
            discarded, self._discarded = self._discarded, ()
        try:
            if discarded:
                self._committer.abort(discarded)
            swept = self._attempts is not None and self._attempts.sweep(self._committer.remove)
        except Exception as error:  # files that no checkpoint names are harmless
            _log.warning("sink %s: files of failed attempts could not be removed: %s", self._name, error)
            return False
        return bool(discarded) or swept

    def _tell_time(self, now_s: float) -> Pause:
        """Lets listeners know that time passes, when it did."""
        if not self._listens_to_time:
            return WHEN_WOKEN
        sink = self.state
        if self._told_time is not None:
            watermark, told_s = self._told_time
            if watermark == sink.watermark and now_s < told_s + PROGRESS_EVERY_S:
                return told_s + PROGRESS_EVERY_S - now_s
        self._told_time = (sink.watermark, now_s)
        passed = SinkTime(sink.watermark, self._wall_ms())
        try:
            told = self._call(lambda listener, state: listener.on_progress(passed, state), sink.listeners)
        except ListenerFailed as error:  # it is asked again soon; a commit would insist
            _log.warning("%s", error)
        else:
            self._change(lambda standing: protocol.listened(standing, told))
        return PROGRESS_EVERY_S


def _info(sink: str, landed: LandedCommit, partitions: tuple[str, ...]) -> CommitInfo:
    return CommitInfo(
        sink=sink,
        first=landed.first,
        last=landed.last,
        snapshot=landed.receipt.snapshot,
        rows=landed.rows,
        files=landed.receipt.files,
        watermark=landed.watermark,
        committed_at_ms=landed.receipt.committed_at_ms,
        partitions=partitions,
    )


def _failed(sink: str, error: BaseException) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return CommitFailed(
        f"sink {sink}: {type(error).__name__}: {error}",
        cause="the table's storage or catalog refused the commit several times",
        next_step="fix it and start again: the committables are in the checkpoint and will be committed first",
        sink=sink,
    )


def _listener_failed(sink: str, listener: CommitListener, error: Exception) -> ListenerFailed:
    return ListenerFailed(
        f"sink {sink}, listener {listener.name}: {type(error).__name__}: {error}",
        cause="the listener's code raised, or what it calls cannot be reached",
        next_step="fix it and start again: the commit is in the table, and the listener will be told of it once more",
        sink=sink,
        listener=listener.name,
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

    def published(self, manifest: Manifest, winners: frozenset[str]) -> None:
        """A manifest is published; `winners` are the attempts whose reports are in it."""
        for name, sink in self._sinks.items():
            sink.published(manifest.checkpoint, manifest.sinks[name], winners)

    def discard(self, committables: Mapping[str, tuple[Committable, ...]]) -> None:
        for name, unwanted in committables.items():
            self._sinks[name].discard(unwanted)

    def waiting(self, sink: str) -> tuple[Committable, ...]:
        """Everything of one sink whose commit is not known to have arrived."""
        return tuple(c for pending in self._sinks[sink].state.pending for c in pending.committables)

    def uncommitted(self) -> int:
        """Checkpoints that wait at the slowest sink."""
        return max((len(state.pending) for state in self.states().values()), default=0)

    def busy(self) -> list[CommitCall]:
        """The running calls of all sinks."""
        return [busy for sink in self._sinks.values() if (busy := sink.busy) is not None]

    def finish(self, limit_s: float | None = None) -> list[CommitCall]:
        """Ends all sinks once everything is committed. Returns the calls that were given up because they did not
        return."""
        return [busy for sink in self._sinks.values() if (busy := sink.finish(limit_s)) is not None]
