"""Older parts of a history, made short: epochs and commits of one stretch of time become one line each.

Starts, ends, failures, rescales and savepoints stay as they are. Signs of life go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from penstock.observe.events import (
    Alive,
    CommitsSummed,
    Committed,
    EpochPublished,
    EpochsSummed,
    Event,
    TableKept,
    decode_events,
    encode_event,
)

STRETCHES_S = (60.0, 600.0, 3600.0, 6 * 3600.0, 24 * 3600.0)
"""A minute first. What has become too long is summed over longer stretches, its older half first."""


def condense(lines: bytes, bytes_max: int) -> bytes:
    """A piece of a history as sums, no longer than `bytes_max`: if nothing else helps, the oldest events go."""
    events = list(summed(decode_events(lines), STRETCHES_S[0]))
    encoded = [encode_event(event) for event in events]
    for stretch_s in STRETCHES_S[1:]:
        if _length(encoded) <= bytes_max:
            break
        half = len(events) // 2
        events = [*summed(events[:half], stretch_s), *events[half:]]
        encoded = [encode_event(event) for event in events]
    while encoded and _length(encoded) > bytes_max:
        encoded = encoded[len(encoded) // 8 + 1 :]
    return b"".join(encoded)


def summed(events: Iterable[Event], stretch_s: float) -> Iterator[Event]:
    """Events in their order, where epochs and commits of one stretch of time are one event each."""
    epochs: EpochsSummed | None = None
    commits: dict[str, CommitsSummed] = {}
    for event in events:
        match event:
            case EpochPublished() | EpochsSummed():
                one = _of_epoch(event) if isinstance(event, EpochPublished) else event
                if epochs is not None and not _together(epochs.since, one.at, stretch_s):
                    yield epochs
                    epochs = None
                epochs = one if epochs is None else _plus_epochs(epochs, one)
            case Committed() | CommitsSummed():
                more = _of_commit(event) if isinstance(event, Committed) else event
                known = commits.pop(more.sink, None)
                if known is not None and not _together(known.since, more.at, stretch_s):
                    yield known
                    known = None
                commits[more.sink] = more if known is None else _plus_commits(known, more)
            case Alive() | TableKept():
                continue
            case _:
                # What happened stands between the epochs before and after it.
                if epochs is not None:
                    yield epochs
                    epochs = None
                yield event
    if epochs is not None:
        yield epochs
    yield from commits.values()


def _together(since: str, at: str, stretch_s: float) -> bool:
    """Whether both are in one stretch of the clock; times that are none are never together."""
    first, second = seconds_of(since), seconds_of(at)
    return first is not None and second is not None and first // stretch_s == second // stretch_s


def seconds_of(at: str) -> float | None:
    """A time of an event in seconds since 1970; None for what is none: a history may come from anywhere.

    >>> seconds_of("1970-01-01T00:01:00.500+00:00"), seconds_of("yesterday")
    (60.5, None)
    """
    try:
        return datetime.fromisoformat(at).timestamp()
    except (ValueError, OverflowError):
        return None


def _of_epoch(event: EpochPublished) -> EpochsSummed:
    return EpochsSummed(
        at=event.at,
        since=event.at,
        first=event.checkpoint,
        last=event.checkpoint,
        epochs=1,
        rows_in=event.rows_in,
        rows_processed=event.rows_processed,
        rows_out=event.rows_out,
        duration_s=event.duration_s,
        waited_s=event.waited_s,
        publish_s=event.publish_s,
        duration_s_max=event.duration_s,
        barrier_delay_s_max=event.barrier_delay_s,
        barriers_fired=int(event.barrier_fired),
        rows_in_flight_max=event.rows_in_flight,
        bytes_in_flight_max=event.bytes_in_flight,
        bytes_written=event.bytes_written.total,
        state_bytes=event.state_bytes,
        watermarks=event.watermarks,
        counters=event.counters,
    )


def _of_commit(event: Committed) -> CommitsSummed:
    return CommitsSummed(
        at=event.at,
        since=event.at,
        sink=event.sink,
        first=event.first,
        last=event.last,
        commits=1,
        snapshot=event.snapshot,
        rows=event.rows,
        files=event.files,
        duration_s=event.duration_s or 0.0,
        duration_s_max=event.duration_s or 0.0,
    )


_EPOCH_SUMS = (
    "epochs",
    "rows_in",
    "rows_processed",
    "rows_out",
    "duration_s",
    "waited_s",
    "publish_s",
    "barriers_fired",
    "bytes_written",
)
_EPOCH_LARGEST = ("duration_s_max", "barrier_delay_s_max", "rows_in_flight_max", "bytes_in_flight_max", "last")
_COMMIT_SUMS = ("commits", "rows", "files", "duration_s")
_COUNT_MAX = 2**63 - 1


def _plus_epochs(one: EpochsSummed, more: EpochsSummed) -> EpochsSummed:
    return msgspec.structs.replace(
        more,
        since=one.since,
        first=min(one.first, more.first),
        **{name: min(_COUNT_MAX, getattr(one, name) + getattr(more, name)) for name in _EPOCH_SUMS},
        **{name: max(getattr(one, name), getattr(more, name)) for name in _EPOCH_LARGEST},
    )


def _plus_commits(one: CommitsSummed, more: CommitsSummed) -> CommitsSummed:
    return msgspec.structs.replace(
        more,
        since=one.since,
        first=min(one.first, more.first),
        last=max(one.last, more.last),
        duration_s_max=max(one.duration_s_max, more.duration_s_max),
        **{name: min(_COUNT_MAX, getattr(one, name) + getattr(more, name)) for name in _COMMIT_SUMS},
    )


def _length(encoded: list[bytes]) -> int:
    return sum(map(len, encoded))
