"""What happened to a query, as typed events: one JSON line each in ``events.jsonl``.

The history is for people, CLI and dashboard; recovery never reads it. So reading is lenient: a line that a crash
tore apart, and an event of a newer Penstock, are left out; fields that are not known are ignored.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from penstock.protocol.ids import BatchId, CheckpointId, EdgeName, Generation, SinkName, StageName
from penstock.protocol.report import ErrorReport

EpochKind: TypeAlias = Literal["ingest", "drain", "takeover"]
StopReason: TypeAlias = Literal["stopped", "drained", "finished", "failed", "fenced"]


class BytesWritten(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint cost on storage (A5: independent of the backlog)."""

    segments: int = 0
    state: int = 0
    manifest: int = 0

    @property
    def total(self) -> int:
        return self.segments + self.state + self.manifest


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """`at`: when, in UTC, as ISO 8601."""

    at: str


class QueryStarted(_Event, frozen=True, kw_only=True):
    """A driver claimed a generation; `restored` is the checkpoint it goes on from, None for a new query.

    `origin` is the folder that checkpoint was brought from, if it is another one.
    """

    name: str
    generation: Generation
    restored: CheckpointId | None
    parallelism: dict[StageName, int]
    max_parallelism: int
    version: str
    origin: str | None = None


class EpochPublished(_Event, frozen=True, kw_only=True):
    """An epoch ended in a checkpoint."""

    checkpoint: CheckpointId
    kind: EpochKind
    batch_id: BatchId | None
    rows_in: int
    rows_processed: int
    rows_out: int
    rows_in_flight: int
    bytes_in_flight: int
    segments_in_flight: int
    duration_s: float
    job_s: float
    publish_s: float
    barrier_fired: bool
    barrier_delay_s: float
    """How long after the barrier the last subtask stopped; 0 if none had to be stopped."""
    bytes_written: BytesWritten
    parallelism: dict[StageName, int]
    committed: CheckpointId | None
    """Up to here every sink was known to be committed when this checkpoint was published."""
    watermarks: dict[StageName, str] = {}
    """Up to where the results of each stage with event time are complete, as ISO 8601."""
    counters: dict[str, int] = {}
    """What operators counted since the checkpoint began, as ``operator.name``."""
    scaling: dict[StageName, str] = {}
    """What autoscaling makes of this epoch, for stages of which it has something to say."""


class EpochFailed(_Event, frozen=True, kw_only=True):
    """An attempt at an epoch published nothing."""

    checkpoint: CheckpointId
    attempt: int
    code: str
    message: str


class Committed(_Event, frozen=True, kw_only=True):
    """A table took over the checkpoints `first` to `last` in one snapshot (C3, C12).

    `found`: the driver learnt of it by asking the table, after a crash or an unknown outcome; how long the commit took
    is not known then. The same commit may be told twice, before and after a crash.
    """

    sink: SinkName
    first: CheckpointId
    last: CheckpointId
    snapshot: int | None
    rows: int
    files: int
    duration_s: float | None
    watermark: int | None = None
    found: bool = False


class CommitRetried(_Event, frozen=True, kw_only=True):
    """A commit's outcome is unknown, or a listener failed; the table will be asked, or the listener told, again."""

    sink: SinkName
    first: CheckpointId
    last: CheckpointId
    attempt: int
    message: str


class CommitSlow(_Event, frozen=True, kw_only=True):
    """A commit, or what belongs to it, has not returned within `commit_timeout`. It still runs; epochs go on."""

    sink: SinkName
    what: str
    first: CheckpointId
    last: CheckpointId
    waited_s: float


class StorageRetried(_Event, frozen=True, kw_only=True):
    """The checkpoint's storage refused something that the driver needs; it is tried again, and nothing is lost."""

    what: str
    attempt: int
    message: str


class Rescaled(_Event, frozen=True, kw_only=True):
    """A stage runs with another number of subtasks from the next epoch on (B2)."""

    stage: StageName
    old: int
    new: int
    reason: str | None = None
    """Why autoscaling did it; None when the user asked for it."""


class InFlightDropped(_Event, frozen=True, kw_only=True):
    """Records in flight were thrown away because the user asked for it at the start (B15)."""

    edge: EdgeName
    checkpoint: CheckpointId
    """The restored checkpoint in which they were in flight."""
    rows: int
    bytes: int


class SavepointTaken(_Event, frozen=True, kw_only=True):
    """A copy of a checkpoint was finished elsewhere (B14)."""

    path: str
    checkpoint: CheckpointId
    rows_in_flight: int
    files: int
    bytes: int
    duration_s: float


class SavepointFailed(_Event, frozen=True, kw_only=True):
    """A savepoint could not be written; nothing of it is under its name."""

    path: str
    checkpoint: CheckpointId
    error: ErrorReport


class TableKept(_Event, frozen=True, kw_only=True):
    """Upkeep changed a table, or has something to say about it. Rows are the same as before."""

    sink: SinkName
    manifests_merged: int
    files_compacted: int
    files_written: int
    snapshots_expired: int
    orphans_removed: int
    bytes_removed: int
    held_by: str | None
    """Who keeps snapshots from expiring that are old enough: a commit user or a consumer."""
    notes: list[str]
    duration_s: float


class UpkeepFailed(_Event, frozen=True, kw_only=True):
    """Upkeep of a table failed and will be tried again; the query goes on."""

    sink: SinkName
    attempt: int
    message: str


class QueryStopped(_Event, frozen=True, kw_only=True):
    """The driver ended; `error` tells why if it did not mean to."""

    reason: StopReason
    error: ErrorReport | None = None


Event: TypeAlias = (
    QueryStarted
    | EpochPublished
    | EpochFailed
    | Committed
    | CommitRetried
    | CommitSlow
    | StorageRetried
    | Rescaled
    | InFlightDropped
    | SavepointTaken
    | SavepointFailed
    | TableKept
    | UpkeepFailed
    | QueryStopped
)

_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
# Every event begins with its tag, and inside JSON strings quotes are escaped: nothing else looks like this.
_BEGIN = b'{"event":'


def encode_event(event: Event) -> bytes:
    """One line, with its line break."""
    line = _ENCODER.encode(event) + b"\n"
    assert line.startswith(_BEGIN)
    return line


def decode_events(data: bytes) -> list[Event]:
    """All whole events in a history.

    After a crash in the middle of a line the next driver's first event stands on the same line; it is found.
    """
    events: list[Event] = []
    for line in data.split(b"\n"):
        try:
            events.append(_DECODER.decode(line[max(0, line.rfind(_BEGIN)) :]))
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    return events
