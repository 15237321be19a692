"""What the epoch loop does next, from what it sees now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NO_INPUT = "no input"
USEFUL_TARGET = 0.6
"""The share of an epoch's time that is planned for processing when there is enough to do: what an epoch needs besides
varies, and half of its time at least should be processing. Cadence is a promise; progress is a duty."""
BACKLOG_EPOCHS = 3
"""However short `max_backlog` is, so many epochs of work may be in flight: less would leave slots empty."""


class Stopping(Enum):
    """How the query was asked to stop, if it was."""

    NO = "no"
    NOW = "now"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the loop sees between two epochs."""

    batch_offered: bool
    source_ended: bool
    rows_in_flight: int
    bytes_in_flight: int
    segments_in_flight: int
    max_bytes_in_flight: int
    max_segments_in_flight: int
    uncommitted: int
    max_uncommitted: int
    stopping: Stopping
    anything_due: bool = False
    """Time alone gives an operator something to do."""
    backlog_s: float = 0.0
    """How long what is in flight takes, as far as the cost of rows is known."""
    max_backlog_s: float | None = None
    flush_to: int | None = None
    """The watermark that brings out what waits for event time, if the user wants that at the end and something does."""

    @property
    def over_limit(self) -> bool:
        return (
            self.bytes_in_flight > self.max_bytes_in_flight
            or self.segments_in_flight > self.max_segments_in_flight
            or (self.max_backlog_s is not None and self.backlog_s > self.max_backlog_s)
        )


@dataclass(frozen=True, slots=True)
class Ingest:
    """Run an epoch with the offered micro-batch."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Run an epoch on in-flight data alone."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Run an epoch in which the watermark goes to `watermark`, though no row says so: the input has ended."""

    watermark: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes."""

    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop."""


Next = Ingest | Drain | Flush | Wait | Stop


def decide(facts: Facts) -> Next:
    """The next action.

    A batch that was offered is taken as soon as in-flight data is below its limits; until then the backlog drains,
    and checkpoints go on. Rows that wait in the source cost nothing; in flight they were read, shuffled and written.
    Too many uncommitted checkpoints stop everything that would add another one.
    """
    backlog = facts.rows_in_flight > 0 or facts.anything_due
    if facts.stopping is Stopping.NOW:
        return Stop()
    if facts.stopping is Stopping.DRAINED and not backlog:
        return Stop()
    ended = facts.source_ended and not facts.batch_offered and not backlog
    if ended and facts.flush_to is None:
        return Stop()
    if facts.uncommitted >= facts.max_uncommitted:
        return Wait(f"{facts.uncommitted} checkpoints wait for their commit (max_uncommitted={facts.max_uncommitted})")
    if facts.batch_offered and facts.stopping is Stopping.NO and not (backlog and facts.over_limit):
        return Ingest()
    if backlog:
        return Drain()
    if ended and facts.flush_to is not None:
        return Flush(facts.flush_to)
    return Wait(NO_INPUT)


@dataclass(frozen=True, slots=True)
class Cadence:
    """How long an epoch was asked to be, how long it is planned to be, and why that is longer, if it is."""

    asked_s: float
    planned_s: float
    because: str | None = None


def cadence(asked_s: float, fixed_s: float | None) -> Cadence:
    """The length of the next epoch. `fixed_s` is what epochs were seen to need besides processing, None while that is
    not known.

    An epoch grows when that would leave too little of it, and shrinks back with it.

    >>> cadence(1.0, 0.3).planned_s, round(cadence(1.0, 1.2).planned_s, 3)
    (1.0, 3.0)
    """
    needed_s = 0.0 if fixed_s is None else fixed_s / (1 - USEFUL_TARGET)
    if needed_s <= asked_s:
        return Cadence(asked_s, asked_s)
    return Cadence(asked_s, needed_s, f"an epoch needs {fixed_s:.2f} s besides processing")


def backlog_limit(max_backlog_s: float | None, planned_s: float | None) -> float | None:
    """Seconds of work in flight beyond which no micro-batch is taken; None: no limit.

    >>> backlog_limit(10.0, 1.0), backlog_limit(10.0, 60.0), backlog_limit(10.0, None)
    (10.0, 180.0, 10.0)
    """
    if max_backlog_s is None or planned_s is None:
        return max_backlog_s
    return max(max_backlog_s, BACKLOG_EPOCHS * planned_s)
