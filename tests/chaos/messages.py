"""What a driver process is told and what it tells: one JSON line each."""

from __future__ import annotations

from typing import Literal

import msgspec


class Start(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """Start a query; answered by `Started` or `Refused`, later by `Epoch`s and one `Ended`."""

    shape: str
    folder: str
    cost_s: float
    parallelism: int | dict[str, int]
    epoch_s: float
    finish: bool
    """Run until everything that is there was processed, or until told to stop."""
    clock_s: float = 0.0
    """By how much the driver's wall clock is wrong."""
    restore: int | None = None


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Stop the query after its running epoch."""

    drain: bool = False


class Rescale(msgspec.Struct, frozen=True, tag="rescale"):
    """Change the parallelism of the running query."""

    parallelism: int | dict[str, int]


class Jump(msgspec.Struct, frozen=True, tag="jump"):
    """Set the driver's wall clock wrong by so much."""

    clock_s: float


class CancelJobs(msgspec.Struct, frozen=True, tag="cancel"):
    """Fail whatever Spark runs right now."""


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Collect garbage in the JVM and tell how much is left; answered by `Measured`."""


Order = Start | Stop | Rescale | Jump | CancelJobs | Measure


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """Spark is up and has run a query."""


class Started(msgspec.Struct, frozen=True, tag="started"):
    """The query took over its checkpoint."""

    generation: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The query did not start; the code is empty if that was no PenstockError."""

    code: str
    message: str


class Epoch(msgspec.Struct, frozen=True, tag="epoch"):
    """A checkpoint was published."""

    checkpoint: int
    kind: str
    rows_in: int
    in_flight: int
    duration_s: float
    manifest_bytes: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """An epoch, a commit or upkeep failed and is tried again."""

    what: Literal["epoch", "commit", "upkeep"]
    message: str


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """The query is over; without a code it ended as it was meant to."""

    code: str = ""
    message: str = ""
    in_flight: int = 0


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """What is left in the JVM after a collection of garbage."""

    heap_bytes: int
    threads: int


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """The process has closed its pipe. Nobody sends this: whoever reads finds it at the end."""


Told = Ready | Started | Refused | Epoch | Failed | Ended | Measured | Gone

_ENCODER = msgspec.json.Encoder()
_ORDERS: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_TOLD: msgspec.json.Decoder[Told] = msgspec.json.Decoder(Told)


def encode(message: Order | Told) -> bytes:
    return _ENCODER.encode(message) + b"\n"


def decode_order(line: bytes) -> Order:
    return _ORDERS.decode(line)


def decode_told(line: bytes) -> Told:
    return _TOLD.decode(line)
