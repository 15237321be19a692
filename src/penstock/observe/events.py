"""What happened to a query, as typed events: one JSON line each in ``events.jsonl``.

The history is for people, CLI and dashboard. A restart does not read it, except that a program without one of its
sinks asks which results of that sink are in their table. So reading is lenient: a line that a crash
tore apart, and an event of a newer Penstock, are left out; fields that are not known are ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

from penstock.observe.figures import BytesWritten, Count, EdgeFigures, Int64, Seconds, StageFigures
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.report import ErrorReport
from penstock.text import redacted_json

EpochKind: TypeAlias = Literal["ingest", "drain", "takeover"]
StopReason: TypeAlias = Literal["stopped", "drained", "finished", "failed", "fenced"]


# A history may come from anywhere, so numbers are limited to those that can be printed.
Checkpoint: TypeAlias = Annotated[CheckpointId, msgspec.Meta(ge=0, le=2**63 - 1)]
Run: TypeAlias = Annotated[Generation, msgspec.Meta(ge=0, le=2**63 - 1)]
Batch: TypeAlias = Annotated[BatchId, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """`at`: when, in UTC, as ISO 8601."""

    at: str


class DriverProcess(msgspec.Struct, frozen=True, kw_only=True):
    """Which process of which machine runs a query, so that a reader of its folder on that machine can tell if it lives.

    `began` and `space` tell it from a later process of the same number, and from one of another container.
    """

    host: str
    pid: Count
    began: str = ""
    space: str = ""


class SourceProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What Structured Streaming tells about one source; offsets in the source's own words."""

    source: str
    rows_per_s: Seconds | None = None
    processed_per_s: Seconds | None = None
    end: str = ""
    latest: str = ""
    behind: Count | None = None
    """Offsets that the source has and the query has not read yet, at most of all partitions."""


class QueryStarted(_Event, frozen=True, kw_only=True):
    """A driver claimed a generation; `restored` is the checkpoint it goes on from, None for a new query.

    `origin` is the folder that checkpoint was brought from, if it is another one.
    """

    name: str
    generation: Run
    restored: Checkpoint | None
    parallelism: dict[str, Count]
    max_parallelism: Count
    version: str
    origin: str | None = None
    process: DriverProcess | None = None
    links: tuple[tuple[str, str], ...] = ()
    """The pipeline as a graph: from a source or operator to an operator or sink, by name."""


class Alive(_Event, frozen=True, kw_only=True):
    """The driver lives, and what it does right now. The next one follows within `every_s`, until `QueryStopped`."""

    generation: Run
    every_s: Seconds
    waiting_for: str | None = None
    """Why no epoch runs, if none does."""
    stage: str | None = None
    """Whose job runs."""
    running_s: Seconds = 0.0
    memory_bytes: Count = 0
    """Of the driver's Python process."""
    sources: tuple[SourceProgress, ...] = ()


class StartRefused(_Event, frozen=True, kw_only=True):
    """A program wanted to go on from this folder and was refused; nothing was changed."""

    error: ErrorReport


class LongerEpoch(msgspec.Struct, frozen=True, kw_only=True):
    """An epoch was planned to be longer than asked for, and why."""

    asked_s: Seconds
    got_s: Seconds
    because: str


class EpochPublished(_Event, frozen=True, kw_only=True):
    """An epoch ended in a checkpoint."""

    checkpoint: Checkpoint
    kind: EpochKind
    batch_id: Batch | None
    rows_in: Count
    rows_processed: Count
    rows_out: Count
    rows_in_flight: Count
    bytes_in_flight: Count
    segments_in_flight: Count
    duration_s: Seconds
    job_s: Seconds
    publish_s: Seconds
    barrier_fired: bool
    barrier_delay_s: Seconds
    """How long after the barrier the last subtask stopped; 0 if none had to be stopped."""
    bytes_written: BytesWritten
    parallelism: dict[str, Count]
    committed: Checkpoint | None
    """Up to here every sink was known to be committed when this checkpoint was published."""
    uncommitted: Count = 0
    """Checkpoints that waited for their commit then, this one included, of the sink that had most."""
    watermarks: dict[str, str] = {}
    """Up to where the results of each stage with event time are complete, as ISO 8601."""
    counters: dict[str, Int64] = {}
    """What operators counted since the checkpoint began, as ``operator.name``."""
    scaling: dict[str, str] = {}
    """What autoscaling makes of this epoch, for stages of which it has something to say."""
    waited_s: Seconds = 0.0
    """Between the last epoch and this one: for input, or for commits."""
    state_rows: Count = 0
    state_bytes: Count = 0
    stages: dict[str, StageFigures] = {}
    edges: dict[str, EdgeFigures] = {}
    cadence: LongerEpoch | None = None
    """When the epoch had to be longer than asked for."""
    backlog_s: Seconds = 0.0
    """How long it takes to process what is in flight, by the measured cost of rows."""


class _BriefEpoch(_Event, frozen=True, kw_only=True, tag="EpochPublished"):
    """An epoch without its figures per stage and edge, which take most of the time to decode."""

    checkpoint: Checkpoint
    kind: EpochKind
    batch_id: Batch | None
    rows_in: Count
    rows_processed: Count
    rows_out: Count
    rows_in_flight: Count
    bytes_in_flight: Count
    segments_in_flight: Count
    duration_s: Seconds
    job_s: Seconds
    publish_s: Seconds
    barrier_fired: bool
    barrier_delay_s: Seconds
    bytes_written: BytesWritten
    parallelism: dict[str, Count]
    committed: Checkpoint | None
    watermarks: dict[str, str] = {}
    counters: dict[str, Int64] = {}
    waited_s: Seconds = 0.0
    state_rows: Count = 0
    state_bytes: Count = 0


class EpochsSummed(_Event, frozen=True, kw_only=True):
    """Several epochs of an older part of the history in one: sums, and the largest of what does not add up.

    `at` is the end of the last one, `since` that of the first.
    """

    since: str
    first: Checkpoint
    last: Checkpoint
    epochs: Count
    rows_in: Count = 0
    rows_processed: Count = 0
    rows_out: Count = 0
    duration_s: Seconds = 0.0
    waited_s: Seconds = 0.0
    publish_s: Seconds = 0.0
    duration_s_max: Seconds = 0.0
    barrier_delay_s_max: Seconds = 0.0
    barriers_fired: Count = 0
    rows_in_flight_max: Count = 0
    bytes_in_flight_max: Count = 0
    bytes_written: Count = 0
    state_bytes: Count = 0
    """At the end."""
    watermarks: dict[str, str] = {}
    """At the end."""
    counters: dict[str, Int64] = {}
    """At the end."""


class CommitsSummed(_Event, frozen=True, kw_only=True):
    """Several commits to one table of an older part of the history in one."""

    since: str
    sink: str
    first: Checkpoint
    last: Checkpoint
    commits: Count
    snapshot: Int64 | None = None
    """The last one."""
    rows: Count = 0
    files: Count = 0
    duration_s: Seconds = 0.0
    duration_s_max: Seconds = 0.0


class EpochFailed(_Event, frozen=True, kw_only=True):
    """An attempt at an epoch published nothing."""

    checkpoint: Checkpoint
    attempt: Count
    code: str
    message: str


class Committed(_Event, frozen=True, kw_only=True):
    """A table took over the checkpoints `first` to `last` in one snapshot.

    `found`: the driver learnt of it by asking the table, after a crash or an unknown outcome; how long the commit took
    is not known then. The same commit may be told twice, before and after a crash.
    """

    sink: str
    first: Checkpoint
    last: Checkpoint
    snapshot: Int64 | None
    rows: Count
    files: Count
    duration_s: Seconds | None
    watermark: Int64 | None = None
    found: bool = False


class CommitRetried(_Event, frozen=True, kw_only=True):
    """A commit's outcome is unknown, or a listener failed; the table will be asked, or the listener told, again."""

    sink: str
    first: Checkpoint
    last: Checkpoint
    attempt: Count
    message: str


class CommitSlow(_Event, frozen=True, kw_only=True):
    """A commit, or what belongs to it, has not returned within `commit_timeout`. It still runs; epochs go on."""

    sink: str
    what: str
    first: Checkpoint
    last: Checkpoint
    waited_s: Seconds


class SourceSlow(_Event, frozen=True, kw_only=True):
    """A source has not answered within `source_timeout`. It is still asked; epochs go on with what is in flight. `what`
    is what it was asked, in Spark's words. `answered`: it has answered in the end, after `waited_s`."""

    source: str
    what: str
    waited_s: Seconds
    answered: bool = False


class SourceLost(_Event, frozen=True, kw_only=True):
    """A source had deleted records before they were read, and was told to go on without them. `offsets` is how many,
    None where the source cannot tell. `what` says which, at most of the first partitions.

    The event follows the checkpoint that has the rest of the micro-batch. A driver that dies between the two tells
    nothing, and its successor does not read that micro-batch again. So the sum of `offsets` is too small by at most
    the first micro-batch after each start, also if all records of that one were deleted."""

    source: str
    what: str
    offsets: Count | None = None


class StorageRetried(_Event, frozen=True, kw_only=True):
    """The checkpoint's storage refused something that the driver needs; it is tried again, and nothing is lost."""

    what: str
    attempt: Count
    message: str


class Rescaled(_Event, frozen=True, kw_only=True):
    """A stage runs with another number of subtasks from the next epoch on."""

    stage: str
    old: Count
    new: Count
    reason: str | None = None
    """Why autoscaling did it; None when the user asked for it."""


class InFlightDropped(_Event, frozen=True, kw_only=True):
    """Records in flight were thrown away because the user asked for it at the start."""

    edge: str
    checkpoint: Checkpoint
    """The restored checkpoint in which they were in flight."""
    rows: Count
    bytes: Count


class StateMigrated(_Event, frozen=True, kw_only=True):
    """A function of the user made a table of state anew: `checkpoint` has the old rows, `bytes` are of new files."""

    table: str
    checkpoint: Checkpoint
    rows: Count
    bytes: Count
    duration_s: float


class SavepointTaken(_Event, frozen=True, kw_only=True):
    """A copy of a checkpoint was finished elsewhere."""

    path: str
    checkpoint: Checkpoint
    rows_in_flight: Count
    files: Count
    bytes: Count
    duration_s: Seconds


class SavepointFailed(_Event, frozen=True, kw_only=True):
    """A savepoint could not be written; nothing of it is under its name."""

    path: str
    checkpoint: Checkpoint
    error: ErrorReport


class TableKept(_Event, frozen=True, kw_only=True):
    """Upkeep changed a table, or has something to say about it. Rows are the same as before."""

    sink: str
    manifests_merged: Count
    files_compacted: Count
    files_written: Count
    snapshots_expired: Count
    orphans_removed: Count
    bytes_removed: Count
    held_by: str | None
    """The commit user or consumer that keeps old snapshots from expiring."""
    notes: list[str]
    duration_s: Seconds
    bytes_compacted: Count = 0
    """Bytes of data files that were rewritten."""


class UpkeepFailed(_Event, frozen=True, kw_only=True):
    """Upkeep of a table failed and will be tried again; the query goes on."""

    sink: str
    attempt: Count
    message: str


class QueryStopped(_Event, frozen=True, kw_only=True):
    """The driver ended; `error` tells why if it did not mean to, `by` who asked for it if it did."""

    reason: StopReason
    error: ErrorReport | None = None
    generation: Run | None = None
    by: str | None = None


Event: TypeAlias = (
    QueryStarted
    | StartRefused
    | Alive
    | EpochPublished
    | EpochsSummed
    | EpochFailed
    | Committed
    | CommitsSummed
    | CommitRetried
    | CommitSlow
    | SourceLost
    | SourceSlow
    | StorageRetried
    | Rescaled
    | InFlightDropped
    | StateMigrated
    | SavepointTaken
    | SavepointFailed
    | TableKept
    | UpkeepFailed
    | QueryStopped
)

LINE_BYTES_MAX = 4 << 20
"""The longest line to decode: no event is longer, and a forged line may cost many times its length."""
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)
_EPOCH_DECODER = msgspec.json.Decoder(_BriefEpoch)
# Every event begins with its tag, and inside JSON strings quotes are escaped: nothing else looks like this.
_BEGIN = b'{"event":'
EPOCH_TAG = _BEGIN + b'"EpochPublished"'
"""With this the line of an epoch begins."""


def encode_event(event: Event) -> bytes:
    """One line, with its line break, without secrets of URLs and messages."""
    line = redacted_json(_ENCODER.encode(event).decode()).encode() + b"\n"
    assert line.startswith(_BEGIN)
    return line


def decode_events(data: bytes, *, brief: bool = False) -> list[Event]:
    """All whole events in a history. With `brief`, epochs have no figures per stage and edge.

    After a crash in the middle of a line the next driver's first event stands on the same line; it is found.
    """
    events: list[Event] = []
    for line in data.split(b"\n"):
        begin = max(0, line.rfind(_BEGIN))
        if len(line) - begin > LINE_BYTES_MAX:
            continue
        try:
            if brief and line.startswith(EPOCH_TAG, begin):
                known = _EPOCH_DECODER.decode(line[begin:])
                events.append(EpochPublished(**{name: getattr(known, name) for name in _BriefEpoch.__struct_fields__}))
            else:
                events.append(_DECODER.decode(line[begin:]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return events
