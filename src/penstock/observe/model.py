"""What a checkpoint folder tells about its query at one moment: plain frozen values for every face that shows them.

Command line, page, notebook and metrics show these; none of them reads a folder by itself. Texts are cut and counts
are bounded where the folder is read (`observe/folder.py`), because a folder may come from anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from penstock.observe.events import (
    Alive,
    CommitsSummed,
    Committed,
    EpochPublished,
    EpochsSummed,
    InFlightDropped,
    QueryStarted,
    QueryStopped,
    Rescaled,
    SavepointTaken,
    TableKept,
)
from penstock.observe.figures import EdgeFigures, StageFigures
from penstock.observe.verdict import RunVerdict
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the query: a generation."""

    generation: Generation
    host: str = ""
    pid: int = 0
    library: str = ""
    claimed_at: str | None = None
    started: QueryStarted | None = None
    """None: it died before it took over, or its part of the history is gone."""
    stopped: QueryStopped | None = None
    """None: it runs, or died without a word."""
    first: CheckpointId | None = None
    last: CheckpointId | None = None
    """The checkpoints it published, as far as the history goes back."""
    epochs: int = 0


@dataclass(frozen=True, slots=True)
class SourceView:
    """A source and its event time; moments in microseconds."""

    name: str
    columns: tuple[tuple[str, str], ...]
    max_event_time: int | None
    watermark: int | None
    watermark_lag_s: float | None
    """How far the watermark was behind the clock when the newest checkpoint was made."""
    active_at: int | None


@dataclass(frozen=True, slots=True)
class StateTableView:
    """One table of state of one operator."""

    name: str
    """As checkpoints name it."""
    columns: tuple[tuple[str, str], ...]
    rows: int
    """In its files; a key that was changed lately may be in several."""
    bytes: int
    files: int


@dataclass(frozen=True, slots=True)
class OperatorView:
    """An operator and its state."""

    name: str
    kind: str
    stage: str
    columns: tuple[tuple[str, str], ...]
    state: tuple[StateTableView, ...]


@dataclass(frozen=True, slots=True)
class StageView:
    """What runs in one subtask, and its figures in the last epoch in which it had work."""

    name: str
    operators: tuple[str, ...]
    parallelism: int
    watermark: int | None
    watermark_lag_s: float | None
    timers: int
    """Ranges of key groups that wait for time to pass."""
    last: StageFigures | None
    rows_per_s: float | None
    """Processed, over the last epochs."""


@dataclass(frozen=True, slots=True)
class EdgeView:
    """An edge and what is in flight on it. `backlog_s` is how long that takes at the rate of the last epochs."""

    name: str
    producer: str
    consumer: str
    """A stage."""
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    broadcast: bool
    from_source: bool
    accepted: int
    consumed: int
    dropped: int
    rows_in_flight: int
    bytes_in_flight: int
    segments: int
    backlog_s: float | None
    """None: unknown, because nothing was processed lately."""
    watermark: int | None
    watermark_lag_s: float | None
    last: EdgeFigures | None


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink: what its table holds, and what waits for its commit."""

    name: str
    table: str | None
    committed: CheckpointId | None
    snapshot: int | None
    watermark_ms: int | None
    pending: tuple[CheckpointId, ...]
    pending_rows: int
    pending_bytes: int
    last_commit: Committed | None


@dataclass(frozen=True, slots=True)
class CheckpointView:
    """A retained checkpoint in short; `Manifest` has the rest."""

    checkpoint: CheckpointId
    parent: CheckpointId | None
    generation: Generation
    created_at: str
    batch_id: BatchId | None
    parallelism: Mapping[str, int]
    rows_in_flight: int
    bytes_in_flight: int
    segments_in_flight: int
    state_files: Mapping[str, int]
    state_bytes: int
    uncommitted: Mapping[str, tuple[CheckpointId, ...]]


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that is there and cannot be read as what its name says."""

    path: str
    code: str
    why: str


FailureKind = Literal["query", "start", "epoch", "commit", "source", "storage", "savepoint", "upkeep"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Something that went wrong, whether it ended the query or was overcome."""

    at: str
    kind: FailureKind
    where: str
    """The checkpoint, sink or source."""
    code: str | None
    seen: str
    cause: str = ""
    next_step: str = ""
    attempt: int | None = None
    fatal: bool = False
    """Whether it ended the run."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of the last epochs of the newest run; None where there were none."""

    cadence_s: float | None = None
    """Between two checkpoints: the median."""
    cadence_s_max: float | None = None
    rows_in_per_s: float | None = None
    rows_processed_per_s: float | None = None
    rows_out_per_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Where the time went, by phase, as shares of 1; in the order in which phases follow each other."""


@dataclass(frozen=True, slots=True)
class QueryView:
    """Everything that a folder tells."""

    folder: str
    looked_at: str
    """When this was read, UTC, ISO 8601."""
    name: str
    identity: str | None
    library: str | None
    verdict: RunVerdict
    alive: Alive | None
    """The last sign of life."""
    runs: tuple[Run, ...]
    sources: tuple[SourceView, ...]
    stages: tuple[StageView, ...]
    operators: tuple[OperatorView, ...]
    edges: tuple[EdgeView, ...]
    sinks: tuple[SinkView, ...]
    links: tuple[tuple[str, str], ...]
    """The graph: from a source or operator to an operator or sink, by name."""
    checkpoints: tuple[CheckpointView, ...]
    """Those retained, oldest first; at most the newest `folder.CHECKPOINTS_MAX`."""
    checkpoint_ids: tuple[CheckpointId, ...]
    """All of them."""
    newest: Manifest | None
    unreadable: tuple[UnreadableFile, ...]
    epochs: tuple[EpochPublished, ...]
    """Oldest first; takeovers are among them."""
    older_epochs: tuple[EpochsSummed, ...]
    commits: tuple[Committed, ...]
    older_commits: tuple[CommitsSummed, ...]
    rescales: tuple[Rescaled, ...]
    dropped: tuple[InFlightDropped, ...]
    savepoints: tuple[SavepointTaken, ...]
    upkeep: tuple[TableKept, ...]
    failures: tuple[Failure, ...]
    rates: Rates
    counters: Mapping[str, int]
    """What operators counted since the checkpoint began, as ``operator.name``."""

    @property
    def rows_in_flight(self) -> int:
        return sum(edge.rows_in_flight for edge in self.edges)

    @property
    def bytes_in_flight(self) -> int:
        return sum(edge.bytes_in_flight for edge in self.edges)

    @property
    def backlog_s(self) -> float | None:
        """Of the edge that takes longest; None if it is unknown for some edge."""
        worst = 0.0
        for edge in self.edges:
            if edge.backlog_s is None:
                return None
            worst = max(worst, edge.backlog_s)
        return worst

    @property
    def uncommitted(self) -> int:
        """Checkpoints that wait for a commit, of the sink that has most."""
        return max((len(sink.pending) for sink in self.sinks), default=0)

    @property
    def late_rows(self) -> int:
        return sum(count for name, count in self.counters.items() if name.endswith(".late"))
