"""The history of a query: events go to its journal, to listeners, and into the handle's progress."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from penstock.engine.commitlog import read_commits
from penstock.engine.epochs import EpochResult
from penstock.engine.figures import epoch_figures, state_size
from penstock.engine.savepoint import SavepointJob
from penstock.observe.condense import condense
from penstock.observe.events import (
    Committed,
    EpochKind,
    EpochPublished,
    Event,
    LongerEpoch,
    SavepointFailed,
    SavepointTaken,
    encode_event,
)
from penstock.observe.figures import BytesWritten
from penstock.observe.journal import append_line, sum_up
from penstock.protocol.epoch import Cadence
from penstock.protocol.layout import EVENTS
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_log = logging.getLogger("penstock")

Listener: TypeAlias = Callable[[Event], None]
OnEvent: TypeAlias = Listener | Sequence[Listener]
"""One function or several, as users give them to `start`."""


def listeners_of(on_event: OnEvent) -> tuple[Listener, ...]:
    return (on_event,) if callable(on_event) else tuple(on_event)


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def iso(micros: int) -> str:
    """A moment of event time for people; one that no calendar has stays a number.

    >>> iso(0), iso(-(1 << 62))
    ('1970-01-01T00:00:00.000000+00:00', '-4611686018427387904 us')
    """
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")
    except OverflowError:
        return f"{micros} us"


class History:
    """Records events from any thread. A history that cannot be written never stops the stream."""

    def __init__(self, store: Store, listeners: tuple[Listener, ...] = ()) -> None:
        self._store, self._listeners = store, listeners
        self._lock = threading.RLock()  # a listener may rescale the query, which is an event too
        self._last: EpochPublished | None = None

    @property
    def last_epoch(self) -> EpochPublished | None:
        return self._last

    def commits(self) -> list[Committed]:
        return read_commits(self._store)

    def record(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, EpochPublished) and event.kind != "takeover":
                self._last = event
            self._write(event)
            for listener in self._listeners:
                try:
                    listener(event)
                except Exception:
                    _log.exception("a listener failed on %s", type(event).__name__)

    def _write(self, event: Event) -> None:
        try:
            append_line(self._store, encode_event(event))
        except Exception as error:
            _log.warning("%s: %s", EVENTS, error)

    def sum_up(self) -> None:
        """Makes room before the oldest part of the history is removed; not called on the way of an epoch."""
        with self._lock:
            try:
                sum_up(self._store, condense)
            except Exception as error:
                _log.warning("%s: older events could not be summed: %s", EVENTS, error)


def takeover_event(manifest: Manifest) -> EpochPublished:
    """The first checkpoint of a run: nothing was processed yet, but everything in flight is in it."""
    return epoch_event(EpochResult(manifest, (), None, 0.0, 0.0, 0), kind="takeover")


def epoch_event(result: EpochResult, kind: EpochKind | None = None) -> EpochPublished:
    manifest, figures = result.manifest, epoch_figures(result)
    fired = [timing.barrier_delay_s for timing in result.timings if timing.barrier_fired]
    rows, size = state_size(manifest.state)
    committed = [state.committed for state in manifest.sinks.values() if state.committed is not None]
    return EpochPublished(
        at=utc_now(),
        checkpoint=manifest.checkpoint,
        kind=kind or ("drain" if result.batch is None else "ingest"),
        batch_id=None if result.batch is None else result.batch.batch_id,
        rows_in=figures.rows_in,
        rows_processed=figures.rows_processed,
        rows_out=sum([rows for stage in figures.stages.values() for rows in stage.sinks.values()]),
        rows_in_flight=manifest.rows_in_flight,
        bytes_in_flight=manifest.bytes_in_flight,
        segments_in_flight=manifest.segments_in_flight,
        duration_s=result.duration_s,
        job_s=result.duration_s - result.publish_s,
        publish_s=result.publish_s,
        barrier_fired=bool(fired),
        barrier_delay_s=max(fired, default=0.0),
        bytes_written=BytesWritten(
            segments=sum([edge.bytes_spilled + edge.bytes_written for edge in figures.edges.values()]),
            state=figures.state_written,
            manifest=result.manifest_bytes,
        ),
        parallelism=dict(manifest.parallelism),
        committed=min(committed, default=None),
        uncommitted=max((len(sink.pending) for sink in manifest.sinks.values()), default=0),
        watermarks={
            stage: iso(clock.watermark) for stage, clock in manifest.stages.items() if clock.watermark is not None
        },
        counters=manifest.counters,
        cadence=_longer(result.cadence),
        backlog_s=result.backlog_s,
        waited_s=round(result.waited_s, 4),
        state_rows=rows,
        state_bytes=size,
        stages=figures.stages,
        edges=figures.edges,
    )


def _longer(cadence: Cadence | None) -> LongerEpoch | None:
    if cadence is None or cadence.because is None:
        return None
    return LongerEpoch(asked_s=cadence.asked_s, got_s=cadence.planned_s, because=cadence.because)


def savepoint_event(job: SavepointJob) -> SavepointTaken | SavepointFailed:
    checkpoint = job.checkpoint
    if job.error is not None:
        return SavepointFailed(at=utc_now(), path=job.path, checkpoint=checkpoint, error=job.error.to_report())
    assert job.savepoint is not None
    return SavepointTaken(
        at=utc_now(),
        path=job.path,
        checkpoint=checkpoint,
        rows_in_flight=job.savepoint.rows_in_flight,
        files=job.savepoint.files,
        bytes=job.savepoint.bytes,
        duration_s=job.savepoint.duration_s,
    )
