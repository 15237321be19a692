"""What the epoch loop does next, from what it sees now."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

NO_INPUT = "no input"


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

    @property
    def over_limit(self) -> bool:
        return self.bytes_in_flight > self.max_bytes_in_flight or self.segments_in_flight > self.max_segments_in_flight


@dataclass(frozen=True, slots=True)
class Ingest:
    """Run an epoch with the offered micro-batch."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Run an epoch on in-flight data alone."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes."""

    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop."""


Next = Ingest | Drain | Wait | Stop


def decide(facts: Facts) -> Next:
    """The next action.

    A batch that was offered is taken as soon as in-flight data is below its limits; until then the backlog drains,
    and checkpoints go on. Too many uncommitted checkpoints stop everything that would add another one.
    """
    backlog = facts.rows_in_flight > 0 or facts.anything_due
    if facts.stopping is Stopping.NOW:
        return Stop()
    if facts.stopping is Stopping.DRAINED and not backlog:
        return Stop()
    if facts.source_ended and not facts.batch_offered and not backlog:
        return Stop()
    if facts.uncommitted >= facts.max_uncommitted:
        return Wait(f"{facts.uncommitted} checkpoints wait for their commit (max_uncommitted={facts.max_uncommitted})")
    if facts.batch_offered and facts.stopping is Stopping.NO and not (backlog and facts.over_limit):
        return Ingest()
    if backlog:
        return Drain()
    return Wait(NO_INPUT)
