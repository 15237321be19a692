"""A history as it is read, event by event: bounded lists of what happened, and what is known of the newest run.

This holds a bounded number of events, however long the history is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TypeVar

from penstock.display import shortened
from penstock.observe.condense import seconds_of, summed
from penstock.observe.events import (
    Alive,
    CommitRetried,
    CommitSlow,
    CommitsSummed,
    Committed,
    EpochFailed,
    EpochPublished,
    EpochsSummed,
    Event,
    InFlightDropped,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SavepointFailed,
    SavepointTaken,
    SourceLost,
    SourceSlow,
    StartRefused,
    StateMigrated,
    StorageRetried,
    TableKept,
    UpkeepFailed,
)
from penstock.observe.model import Failure, FailureKind, Run
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.report import ErrorReport

T = TypeVar("T")

EPOCHS_MAX = 10_000
"""Those before are summed."""
SUMS_MAX = 50_000
OTHERS_MAX = 10_000
FAILURES_MAX = 1_000
RUNS_MAX = 1_000
TEXT_MAX = 4_000
"""Of a message; a name is shorter anyway."""


def _deque(length: int) -> deque[T]:
    return deque(maxlen=length)


@dataclass(slots=True)
class Troubles:
    """What does not answer or fails right now in the newest run."""

    source: SourceSlow | None = None
    commits: dict[str, CommitSlow] = field(default_factory=dict)
    storage: StorageRetried | None = None
    failed: EpochFailed | None = None


@dataclass(slots=True)
class Gathered:
    """Fed with events in the order of the history."""

    epochs: deque[EpochPublished] = field(default_factory=lambda: _deque(EPOCHS_MAX))
    older_epochs: deque[EpochsSummed] = field(default_factory=lambda: _deque(SUMS_MAX))
    commits: deque[Committed] = field(default_factory=lambda: _deque(OTHERS_MAX))
    older_commits: deque[CommitsSummed] = field(default_factory=lambda: _deque(SUMS_MAX))
    rescales: deque[Rescaled] = field(default_factory=lambda: _deque(OTHERS_MAX))
    dropped: deque[InFlightDropped] = field(default_factory=lambda: _deque(OTHERS_MAX))
    savepoints: deque[SavepointTaken] = field(default_factory=lambda: _deque(OTHERS_MAX))
    upkeep: deque[TableKept] = field(default_factory=lambda: _deque(OTHERS_MAX))
    failures: deque[Failure] = field(default_factory=lambda: _deque(FAILURES_MAX))
    runs: dict[Generation, Run] = field(default_factory=dict)
    started: QueryStarted | None = None
    stopped: QueryStopped | None = None
    """Of the newest run."""
    alive: Alive | None = None
    epoch: EpochPublished | None = None
    """The last one of the newest run that is no takeover."""
    heard: bool = False
    """Whether the last sign of life came after that epoch. The order of the history tells; a clock may be set back."""
    refused: StartRefused | None = None
    """The last start, if nothing was heard of the query since: one that is tried beside a query that runs, and
    refused, says nothing about that query's end."""
    last_sign: str | None = None
    troubles: Troubles = field(default_factory=Troubles)

    def add(self, event: Event) -> None:
        if not isinstance(event, StartRefused) and not self._of_older_run(event):
            self.last_sign = event.at
            if isinstance(event, Alive | EpochPublished | QueryStopped):
                self.refused = None
        match event:
            case QueryStarted():
                self._start(event)
            case QueryStopped():
                self._stop(event)
            case Alive():
                if not self._of_older_run(event):
                    self.alive, self.heard = event, True
            case StartRefused():
                self.refused = event
                self._fail(event.at, "start", "", event.error)
            case EpochPublished():
                self._epoch(event)
            case Committed():
                self.troubles.commits.pop(event.sink, None)
                self.commits.append(event)
            case EpochsSummed() | CommitsSummed() | Rescaled() | InFlightDropped() | SavepointTaken() | TableKept():
                self._keep(event)
            case StateMigrated():
                pass  # its count is in the manifest
            case _:
                self._trouble(event)

    def _keep(
        self, event: EpochsSummed | CommitsSummed | Rescaled | InFlightDropped | SavepointTaken | TableKept
    ) -> None:
        match event:
            case EpochsSummed():
                self.older_epochs.append(event)
            case CommitsSummed():
                self.older_commits.append(event)
            case Rescaled():
                self.rescales.append(event)
            case InFlightDropped():
                self.dropped.append(event)
            case SavepointTaken():
                self.savepoints.append(event)
            case TableKept():
                self.upkeep.append(event)

    def _of_older_run(self, event: Event) -> bool:
        """A driver that was replaced may have last words after the first ones of its successor."""
        if self.started is None or not isinstance(event, Alive | QueryStopped) or event.generation is None:
            return False
        return event.generation < self.started.generation

    def _start(self, event: QueryStarted) -> None:
        self.started, self.stopped, self.alive, self.epoch, self.refused = event, None, None, None, None
        self.heard, self.troubles = False, Troubles()
        host, pid = ("", 0) if event.process is None else (cut(event.process.host), event.process.pid)
        self.runs[event.generation] = Run(event.generation, host, pid, cut(event.version), event.at, event)
        if len(self.runs) > RUNS_MAX:
            del self.runs[min(self.runs)]

    def _stop(self, event: QueryStopped) -> None:
        generation = event.generation
        if generation is None and self.started is not None:
            generation = self.started.generation
        if generation is not None and generation in self.runs:
            self.runs[generation] = replace(self.runs[generation], stopped=event)
        if not self._of_older_run(event):
            self.stopped = event
        if event.error is not None:
            self._fail(event.at, "query", "" if generation is None else f"generation {generation}", event.error)

    def _epoch(self, event: EpochPublished) -> None:
        if len(self.epochs) == self.epochs.maxlen:
            self._sum(self.epochs.popleft())
        self.epochs.append(event)
        self.troubles.storage = self.troubles.failed = None
        started = self.started
        if event.kind != "takeover":
            self.epoch, self.heard = event, False
        if started is not None and started.generation in self.runs:
            run = self.runs[started.generation]
            first = event.checkpoint if run.first is None else run.first
            self.runs[started.generation] = replace(run, first=first, last=event.checkpoint, epochs=run.epochs + 1)

    def _sum(self, oldest: EpochPublished) -> None:
        known = [self.older_epochs.pop()] if self.older_epochs else []
        self.older_epochs.extend(part for part in summed([*known, oldest], 60.0) if isinstance(part, EpochsSummed))

    def _trouble(
        self,
        event: EpochFailed
        | CommitRetried
        | CommitSlow
        | SourceLost
        | SourceSlow
        | StorageRetried
        | SavepointFailed
        | UpkeepFailed,
    ) -> None:
        match event:
            case EpochFailed():
                self.troubles.failed = event
                self._note(
                    event.at, "epoch", f"checkpoint {event.checkpoint}", event.code, event.message, event.attempt
                )
            case CommitRetried():
                where = f"{event.sink}, checkpoints {event.first} to {event.last}"
                self._note(event.at, "commit", where, None, event.message, event.attempt)
            case CommitSlow():
                self.troubles.commits[event.sink] = event
                waited = f"the {event.what} has not returned for {event.waited_s:.0f} s"
                self._note(event.at, "commit", event.sink, None, waited)
            case SourceSlow():
                self.troubles.source = None if event.answered else event
                answered = "answered again after" if event.answered else "has not answered for"
                self._note(event.at, "source", event.source, None, f"{answered} {event.waited_s:.0f} s: {event.what}")
            case SourceLost():
                many = "records" if event.offsets is None else f"{event.offsets:,} offsets"
                self._note(event.at, "source", event.source, None, f"{many} lost: {event.what}")
            case StorageRetried():
                self.troubles.storage = event
                self._note(event.at, "storage", event.what, "PEN-032", event.message, event.attempt)
            case SavepointFailed():
                self._fail(event.at, "savepoint", event.path, event.error)
            case UpkeepFailed():
                self._note(event.at, "upkeep", event.sink, None, event.message, event.attempt)

    def _fail(self, at: str, kind: FailureKind, where: str, error: ErrorReport) -> None:
        seen, cause, next_step = (cut(text) for text in (error.seen, error.cause, error.next_step))
        fatal = kind in ("query", "start")
        self.failures.append(Failure(at, kind, cut(where), error.code, seen, cause, next_step, fatal=fatal))

    def _note(
        self, at: str, kind: FailureKind, where: str, code: str | None, seen: str, attempt: int | None = None
    ) -> None:
        self.failures.append(Failure(at, kind, cut(where), code, cut(seen), attempt=attempt))

    @property
    def last_sign_s(self) -> float | None:
        return None if self.last_sign is None else seconds_of(self.last_sign)

    @property
    def last_checkpoint(self) -> CheckpointId | None:
        return self.epochs[-1].checkpoint if self.epochs else None


def cut(text: str) -> str:
    """A text of unknown origin, cut to a length that people read."""
    return shortened(text, TEXT_MAX)
