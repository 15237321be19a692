"""The values a checkpoint consists of. A manifest is complete, small, and names files by relative paths only.

FORMAT.md describes every field for other readers; `FORMAT_VERSION` changes when the bytes change meaning.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec

from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.keygroups import MAX_PARALLELISM_LIMIT, KeyGroupRange, shared

FORMAT_VERSION = 1

# What a decoder accepts: a manifest may come from anywhere, and code behind it counts and allocates by these numbers.
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_NUMBER = msgspec.Meta(ge=0, le=9_999_999_999)
"""File names have ten digits for it."""
Version = Annotated[int, _NUMBER]
Checkpoint = Annotated[CheckpointId, _NUMBER]
Run = Annotated[Generation, _NUMBER]
Batch = Annotated[BatchId, msgspec.Meta(ge=0, lt=1 << 53)]
Subtasks = Annotated[int, msgspec.Meta(ge=1, le=MAX_PARALLELISM_LIMIT)]

Payload = bytes
"""Bytes of a sink; encoded in base64 where a manifest is JSON."""


class _Value(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all stored values: immutable, unknown fields refused.

    Those of which a manifest has thousands have ``gc=False``: nothing in them can lead back to them, and Python's
    collector would look at all of them again and again.
    """


class Span(_Value, frozen=True, array_like=True, kw_only=True, gc=False):
    """For some key groups of a segment: rows before `cursor` are consumed, `rows_left` at or after it are not.

    Usually one range. Several where readers in the middle of a range went ahead of those on both sides: how the
    rest's rows divide between the sides is not known without reading them, nor needed.
    """

    ranges: tuple[KeyGroupRange, ...]
    cursor: Count
    rows_left: Count

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "ranges", shared(self.ranges))


class Segment(_Value, frozen=True, kw_only=True, gc=False):
    """An immutable file of in-flight records of one edge, with how far each range of key groups was read."""

    path: str
    epoch: Checkpoint
    producer: Count
    sequence: Count
    rows: Count
    bytes: Count
    checksum: str
    watermark: Int64 | None = None
    """In effect when these rows arrived, so before their own event times count."""
    spans: tuple[Span, ...]
    arrival: Checkpoint | msgspec.UnsetType = msgspec.UNSET
    """The epoch whose micro-batch these rows came with, where it is not `epoch`: see `arrived`."""

    @property
    def arrived(self) -> CheckpointId:
        """The epoch in which the source delivered these rows, or in which an operator that acts on time made them."""
        return self.epoch if isinstance(self.arrival, msgspec.UnsetType) else self.arrival

    @property
    def age(self) -> tuple[int, int, int, int]:
        """Readers go through an edge's segments in this order."""
        arrival = self.arrival
        return (self.epoch if arrival is msgspec.UNSET else arrival, self.epoch, self.producer, self.sequence)

    @property
    def rows_left(self) -> int:
        spans = self.spans
        return spans[0].rows_left if len(spans) == 1 else sum(span.rows_left for span in spans)


class EdgeState(_Value, frozen=True, kw_only=True, dict=True):
    """Totals since the checkpoint began, and what is in flight: ``accepted == consumed + dropped + in flight``.

    `dropped` are records that a user had thrown away when a checkpoint was restored. `watermark` is in effect
    once all segments are consumed; until then the lowest watermark of the unread ones is.
    """

    accepted: Count = 0
    consumed: Count = 0
    dropped: Count = 0
    segments: tuple[Segment, ...] = ()
    watermark: Int64 | None = None

    @cached_property
    def _in_flight(self) -> tuple[int, int]:
        """Rows and bytes, counted together: there may be thousands of segments, and each look at one costs."""
        rows = size = 0
        for segment in self.segments:
            spans = segment.spans
            left = spans[0].rows_left if len(spans) == 1 else segment.rows_left
            rows += left
            size += segment.bytes * left // segment.rows if segment.rows else 0
        return rows, size

    @property
    def rows_in_flight(self) -> int:
        return self._in_flight[0]

    @property
    def bytes_in_flight(self) -> int:
        return self._in_flight[1]


class StateFile(_Value, frozen=True, kw_only=True, gc=False):
    """An immutable sorted file of keyed state; valid for `ranges`, replaced by newer files elsewhere."""

    path: str
    rows: Count
    bytes: Count
    checksum: str
    ranges: tuple[KeyGroupRange, ...]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "ranges", shared(self.ranges))


class Committable(_Value, frozen=True, gc=False):
    """What one writer wrote in one epoch, in the sink's own bytes (never a pickle)."""

    payload: Payload
    rows: Count
    bytes: Count


class PendingCommit(_Value, frozen=True, kw_only=True):
    """The committables of one published checkpoint that the table is not known to hold yet.

    `watermark`: the minimum over the sink's active writers, in milliseconds, frozen when it was published.
    """

    checkpoint: Checkpoint
    committables: tuple[Committable, ...]
    watermark: Int64 | None = None

    @property
    def rows(self) -> int:
        return sum([committable.rows for committable in self.committables])


class TableMark(_Value, frozen=True, kw_only=True):
    """Which table a sink writes to: its name, and when it was made, if the table tells."""

    name: str
    made_at_ms: Int64 | None = None


class SinkState(_Value, frozen=True, kw_only=True):
    """Position of one sink: the newest checkpoint known to be in the table, and what still has to go there.

    Checkpoints without committables are never pending and never counted: `committed` names the last that wrote rows.
    `listeners` are the states that commit listeners had when `committed` was their last news.
    """

    committed: Checkpoint | None = None
    snapshot: Count | None = None
    watermark: Int64 | None = None
    pending: tuple[PendingCommit, ...] = ()
    listeners: dict[str, Payload] = {}
    floor: Count | msgspec.UnsetType = msgspec.UNSET
    """Every commit of ours in a table snapshot up to this one is acknowledged, so what is pending can only be in later
    ones; `snapshot` says the same where there is none."""
    table: TableMark | msgspec.UnsetType = msgspec.UNSET
    """The table that was written to; older checkpoints do not have it."""


class SourceRewrite(_Value, frozen=True, kw_only=True):
    """Entries of Spark's offset log that are to be there before anything is read: texts by micro-batch."""

    entries: dict[str, str]


class SourcePosition(_Value, frozen=True, kw_only=True):
    """The last micro-batch ingested, and enough to notice a source checkpoint that does not fit."""

    batch_id: Batch | None = None
    offsets_digest: str | None = None
    query_id: str | None = None
    rewind: bool = False
    """The source's own checkpoint may be ahead, because an older checkpoint was restored on purpose."""
    names: dict[str, tuple[str, ...]] | msgspec.UnsetType = msgspec.UNSET
    """By source, what Spark's offset log calls the sources that it is made of; older checkpoints know their places."""
    parked: dict[str, dict[str, str | None]] | msgspec.UnsetType = msgspec.UNSET
    """Sources that earlier pipelines read: up to where, in Spark's words, by the name that Spark's log had for it."""
    rewrite: SourceRewrite | msgspec.UnsetType = msgspec.UNSET
    """After a change of sources, until the next micro-batch is ingested."""


class PartClock(_Value, frozen=True, array_like=True, kw_only=True):
    """Event time of one part of a source, such as a partition of a topic: the largest seen, and when rows arrived."""

    max_event_time: Int64
    active_at: Int64


class SourceClock(_Value, frozen=True, kw_only=True):
    """Event time of one source: the largest seen, the watermark made of it, and when rows last arrived."""

    max_event_time: Int64 | None = None
    watermark: Int64 | None = None
    active_at: Int64 | None = None
    parts: dict[str, PartClock] | msgspec.UnsetType = msgspec.UNSET
    """Of a source whose watermark is that of its slowest part: the parts that are not idle."""


class Timer(_Value, frozen=True, kw_only=True, gc=False):
    """The earliest moments at which an operator has something to do without input, for some key groups."""

    groups: KeyGroupRange
    event_time: Int64 | None = None
    processing_time: Int64 | None = None
    last: Int64 | msgspec.UnsetType | None = msgspec.UNSET
    """The watermark at which everything that waits for event time has come out; None: nothing would; left out: as
    `event_time`."""

    @property
    def flushed_at(self) -> int | None:
        return self.event_time if isinstance(self.last, msgspec.UnsetType) else self.last


class StageClock(_Value, frozen=True, kw_only=True):
    """Event time of one stage: up to where its results are complete, and what waits for time to pass."""

    watermark: Int64 | None = None
    timers: dict[str, tuple[Timer, ...]] = {}
    rescaled: Checkpoint | msgspec.UnsetType = msgspec.UNSET
    """The last checkpoint at which its parallelism changed while rows were in flight: see `protocol.order`."""


class OutputName(_Value, frozen=True, array_like=True):
    """An output: of a source, of an operator, or a side output of an operator."""

    producer: str
    side: str = ""


class InputName(_Value, frozen=True, array_like=True):
    """An input of an operator, by its number; or a sink, which has one input."""

    consumer: str
    port: Count = 0


class Rerouted(_Value, frozen=True, kw_only=True):
    """Rows that an earlier pipeline left in flight, which go once more through this one, as output of `output`."""

    output: OutputName
    to: tuple[InputName, ...]
    """Who gets them; others behind the same output had them, or begin after them."""


class OperatorShape(_Value, frozen=True, kw_only=True):
    """What of an operator must stay the same for its checkpoint to fit."""

    kind: str
    stage: str
    output: tuple[tuple[str, str], ...]
    state: dict[str, tuple[tuple[str, str], ...]] = {}
    """Columns by table of state."""
    computed: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """By output column, what its state means, where types do not tell; older checkpoints do not have it."""
    inputs: tuple[OutputName, ...] | msgspec.UnsetType = msgspec.UNSET
    """Whose output comes in, by input; older checkpoints do not have it."""
    gone: dict[str, tuple[str, ...]] | msgspec.UnsetType = msgspec.UNSET
    """By table of state, columns that were forgotten and that older files may still have."""


class EdgeShape(_Value, frozen=True, kw_only=True):
    """What of an edge must stay the same: its ends, its keys, its columns."""

    producer: str
    consumer: str
    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    broadcast: bool = False
    rerouted: Rerouted | msgspec.UnsetType = msgspec.UNSET
    """Of an edge that only an earlier pipeline had: what becomes of the rows that are left on it."""
    gone: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Columns that rows in flight may still have, though the pipeline does not have them any more."""


class PipelineShape(_Value, frozen=True, kw_only=True):
    """The fingerprint of a pipeline."""

    sources: dict[str, tuple[tuple[str, str], ...]]
    operators: dict[str, OperatorShape]
    edges: dict[str, EdgeShape]
    sinks: tuple[str, ...]
    written: dict[str, tuple[OutputName, ...]] | msgspec.UnsetType = msgspec.UNSET
    """By sink, which outputs go there; older checkpoints do not have it."""


class Manifest(_Value, frozen=True, kw_only=True):
    """One checkpoint."""

    format: Version
    library: str
    identity: str
    checkpoint: Checkpoint
    parent: Checkpoint | None
    generation: Run
    created_at: str
    max_parallelism: Subtasks
    parallelism: dict[str, Subtasks]
    shape: PipelineShape
    source: SourcePosition
    edges: dict[str, EdgeState]
    state: dict[str, tuple[StateFile, ...]]
    sinks: dict[str, SinkState]
    now: Int64 = 0
    """Processing time of the epoch, in microseconds; never goes back."""
    sources: dict[str, SourceClock] = {}
    stages: dict[str, StageClock] = {}
    counters: dict[str, Int64] = {}
    """What operators counted since the checkpoint began, as ``operator.name``."""

    @property
    def rows_in_flight(self) -> int:
        return sum(edge.rows_in_flight for edge in self.edges.values())

    @property
    def bytes_in_flight(self) -> int:
        return sum(edge.bytes_in_flight for edge in self.edges.values())

    @property
    def segments_in_flight(self) -> int:
        return sum(len(edge.segments) for edge in self.edges.values())

    def entries(self) -> tuple[Segment | StateFile, ...]:
        """Every file this checkpoint needs, with its size and checksum."""
        segments = [segment for edge in self.edges.values() for segment in edge.segments]
        state = [file for files in self.state.values() for file in files]
        return (*segments, *state)

    def files(self) -> frozenset[str]:
        """The paths of every file this checkpoint needs."""
        return frozenset([entry.path for entry in self.entries()])
