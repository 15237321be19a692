"""What one subtask attempt did, as one small value. All of it enters a checkpoint, or nothing."""

from __future__ import annotations

import msgspec

from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Committable, Segment, StateFile
from penstock.protocol.reads import SpanReport

TRIED, FAILED = "tried", "dead_letters"
"""Counters of an operator that sends failing records to dead letters: records it was given, records that failed."""


class ErrorReport(msgspec.Struct, frozen=True):
    """An error as plain values, so that a subtask can hand it to the driver."""

    code: str
    seen: str
    cause: str
    next_step: str
    fields: dict[str, str] = {}


class InputReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One input edge: live rows are accepted here; rows of segments were accepted when they were written.

    Rows that an operator took and gave back are among `spilled`; they are no new ones and not consumed.
    """

    edge: str
    live_accepted: int = 0
    live_consumed: int = 0
    put_back: int = 0
    max_event_time: int | None = None
    event_times: dict[str, int] = {}
    """By part of the source, the largest; empty where the source has one watermark for all."""
    spilled: tuple[Segment, ...] = ()
    spans: tuple[SpanReport, ...] = ()

    @property
    def consumed(self) -> int:
        rows = self.live_consumed - self.put_back
        for span in self.spans:  # asked for thousands of reports, several times: half the time of a generator
            rows += span.consumed
        return rows


class OutputReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rows handed to another stage: `rows` as the operator counted them, `segments` as they were written."""

    edge: str
    rows: int
    segments: tuple[Segment, ...]


class StateReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One table of state: at most one new file, and the key groups in which it supersedes others, by their paths."""

    table: str
    added: StateFile | None
    replaced: dict[str, tuple[KeyGroupRange, ...]]


class SinkReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was written for one sink."""

    sink: str
    rows: int
    committables: tuple[Committable, ...]


class DueReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When one operator has something to do without input."""

    operator: str
    event_time: int | None = None
    processing_time: int | None = None
    last: int | None = None
    """Of event time: when everything that waits now will have come out."""


class Timing(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Measured in the subtask, by its own monotonic clock: the whole attempt, and its steps alone."""

    elapsed_s: float
    stepped_s: float
    barrier_fired: bool
    barrier_delay_s: float = 0.0
    row_cost_s: float | None = None
    """What a row takes on a machine with a free core."""
    broadcast_row_cost_s: float | None = None
    worked_s: float = 0.0
    """In operators, by the clock; the other part of `stepped_s` went into reading rows and waiting for them."""
    cpu_s: float | None = None
    """Of `worked_s`, the time on a core; None where it was not measured."""
    delayed_s: float = 0.0
    """Of `worked_s`, the time of waiting for a core."""
    opened_s: float = 0.0
    """Before the first step: state, readers, writers."""
    waited_s: float = 0.0
    """Of the steps, for rows that Spark had to deliver."""
    bytes_in: int = 0
    """That Spark delivered, as Arrow."""
    memory_bytes: int = 0
    """Of the worker, at the end."""


class SubtaskReport(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The result of one subtask attempt: either `failure` or everything else."""

    stage: str
    subtask: int
    checkpoint: CheckpointId
    attempt: str
    inputs: tuple[InputReport, ...] = ()
    delivered: dict[str, int] = {}
    """By edge: live rows handed to the attempt, counted outside of the code that reads them."""
    outputs: tuple[OutputReport, ...] = ()
    state: tuple[StateReport, ...] = ()
    sinks: tuple[SinkReport, ...] = ()
    watermark: int | None = None
    """Everything up to here was done in all key groups of the subtask."""
    due: tuple[DueReport, ...] = ()
    counters: dict[str, int] = {}
    samples: dict[str, str] = {}
    """By operator: one of the records that became dead letters, for the message of an error."""
    timing: Timing | None = None
    failure: ErrorReport | None = None

    def files(self) -> tuple[str, ...]:
        """What the attempt wrote into the checkpoint's folder."""
        spilled = (segment.path for part in self.inputs for segment in part.spilled)
        handed_on = (segment.path for part in self.outputs for segment in part.segments)
        state = (part.added.path for part in self.state if part.added is not None)
        return (*spilled, *handed_on, *state)
