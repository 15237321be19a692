"""Lists of what a folder holds and of what happened, as Arrow: checkpoints, epochs, commits, files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.observe.commit_log import commit_log
from penstock.observe.events import Committed, EpochPublished, decode_events
from penstock.observe.journal import read_journal
from penstock.observe.tables.manifests import read_manifest
from penstock.observe.tables.readable import MOMENT
from penstock.observe.tables.scan import Scan
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Manifest, Segment
from penstock.store.base import Store

_ROWS = 10_000
"""Of one record batch."""
_COUNTS = pa.map_(pa.string(), pa.int64())
_RANGES = pa.list_(pa.struct([("lo", pa.int32()), ("hi", pa.int32())]))

Row: TypeAlias = tuple[Any, ...]

CHECKPOINTS = pa.schema(
    {
        "checkpoint": pa.int64(),
        "parent": pa.int64(),
        "generation": pa.int64(),
        "created_at": MOMENT,
        "batch_id": pa.int64(),
        "max_parallelism": pa.int32(),
        "parallelism": _COUNTS,
        "rows_in_flight": pa.int64(),
        "bytes_in_flight": pa.int64(),
        "segments_in_flight": pa.int64(),
        "state_rows": pa.int64(),
        "state_bytes": pa.int64(),
        "state_files": pa.int64(),
        "committed": _COUNTS,
        "uncommitted": _COUNTS,
        "library": pa.string(),
        "error": pa.string(),
    }
)
EPOCHS = pa.schema(
    {
        "checkpoint": pa.int64(),
        "at": MOMENT,
        "kind": pa.string(),
        "batch_id": pa.int64(),
        "rows_in": pa.int64(),
        "rows_processed": pa.int64(),
        "rows_out": pa.int64(),
        "rows_in_flight": pa.int64(),
        "bytes_in_flight": pa.int64(),
        "segments_in_flight": pa.int64(),
        "duration_s": pa.float64(),
        "waited_s": pa.float64(),
        "job_s": pa.float64(),
        "publish_s": pa.float64(),
        "barrier_fired": pa.bool_(),
        "barrier_delay_s": pa.float64(),
        "segment_bytes_written": pa.int64(),
        "state_bytes_written": pa.int64(),
        "manifest_bytes_written": pa.int64(),
        "state_rows": pa.int64(),
        "state_bytes": pa.int64(),
        "parallelism": _COUNTS,
        "committed": pa.int64(),
        "watermarks": pa.map_(pa.string(), MOMENT),
        "counters": _COUNTS,
    }
)
COMMITS = pa.schema(
    {
        "sink": pa.string(),
        "at": MOMENT,
        "first": pa.int64(),
        "last": pa.int64(),
        "snapshot": pa.int64(),
        "rows": pa.int64(),
        "files": pa.int64(),
        "duration_s": pa.float64(),
        "watermark": MOMENT,
        "found": pa.bool_(),
    }
)
FILES = pa.schema(
    {
        "path": pa.string(),
        "kind": pa.string(),
        "owner": pa.string(),
        "rows": pa.int64(),
        "rows_left": pa.int64(),
        "bytes": pa.int64(),
        "epoch": pa.int64(),
        "arrival": pa.int64(),
        "producer": pa.int64(),
        "watermark": MOMENT,
        "key_groups": _RANGES,
        "checksum": pa.string(),
    }
)


def checkpoint_list(store: Store, ids: Sequence[CheckpointId]) -> Scan:
    return _listed(CHECKPOINTS, lambda: (_checkpoint(store, number) for number in ids))


def epoch_list(store: Store) -> Scan:
    def rows() -> Iterator[Row]:
        events = decode_events(read_journal(store))
        return (_epoch(event) for event in events if isinstance(event, EpochPublished))

    return _listed(EPOCHS, rows)


def commit_list(store: Store) -> Scan:
    return _listed(COMMITS, lambda: map(_commit, commit_log(decode_events(read_journal(store)))))


def file_list(manifest: Manifest) -> Scan:
    return _listed(FILES, lambda: _files(manifest))


def _checkpoint(store: Store, number: CheckpointId) -> Row:
    try:
        manifest = read_manifest(store, number)
    except PenstockError as error:
        return (number, *[None] * (len(CHECKPOINTS) - 2), str(error)[:10_000])
    state = [file for files in manifest.state.values() for file in files]
    return (
        number,
        manifest.parent,
        manifest.generation,
        _moment(manifest.created_at),
        manifest.source.batch_id,
        manifest.max_parallelism,
        list(manifest.parallelism.items()),
        manifest.rows_in_flight,
        manifest.bytes_in_flight,
        manifest.segments_in_flight,
        sum(file.rows for file in state),
        sum(file.bytes for file in state),
        len(state),
        [(name, sink.committed) for name, sink in manifest.sinks.items()],
        [(name, len(sink.pending)) for name, sink in manifest.sinks.items()],
        manifest.library,
        None,
    )


def _epoch(event: EpochPublished) -> Row:
    written = event.bytes_written
    return (
        event.checkpoint,
        _moment(event.at),
        event.kind,
        event.batch_id,
        event.rows_in,
        event.rows_processed,
        event.rows_out,
        event.rows_in_flight,
        event.bytes_in_flight,
        event.segments_in_flight,
        event.duration_s,
        event.waited_s,
        event.job_s,
        event.publish_s,
        event.barrier_fired,
        event.barrier_delay_s,
        written.segments,
        written.state,
        written.manifest,
        event.state_rows,
        event.state_bytes,
        list(event.parallelism.items()),
        event.committed,
        [(stage, _moment(text)) for stage, text in event.watermarks.items()],
        list(event.counters.items()),
    )


def _commit(event: Committed) -> Row:
    watermark = None if event.watermark is None else event.watermark * 1000
    moment = watermark if watermark is not None and abs(watermark) < 1 << 62 else None
    return (
        event.sink,
        _moment(event.at),
        event.first,
        event.last,
        event.snapshot,
        event.rows,
        event.files,
        event.duration_s,
        moment,
        event.found,
    )


def _files(manifest: Manifest) -> Iterator[Row]:
    for edge, state in manifest.edges.items():
        for segment in sorted(state.segments, key=lambda part: part.age):
            yield _segment(edge, segment)
    for table, files in manifest.state.items():
        for file in files:
            ranges = [(part.lo, part.hi) for part in file.ranges]
            yield (
                *(file.path, "state", table, file.rows, None, file.bytes, None, None, None, None),
                *([{"lo": lo, "hi": hi} for lo, hi in ranges], file.checksum),
            )


def _segment(edge: str, segment: Segment) -> Row:
    ranges = sorted((part.lo, part.hi) for span in segment.spans for part in span.ranges)
    return (
        segment.path,
        "segment",
        edge,
        segment.rows,
        segment.rows_left,
        segment.bytes,
        segment.epoch,
        segment.arrived,
        segment.producer,
        segment.watermark,
        [{"lo": lo, "hi": hi} for lo, hi in ranges],
        segment.checksum,
    )


def _listed(schema: pa.Schema, rows: Callable[[], Iterable[Row]]) -> Scan:
    def batches() -> Iterator[pa.RecordBatch]:
        gathered: list[Row] = []
        for row in rows():
            gathered.append(row)
            if len(gathered) == _ROWS:
                yield _batch(schema, gathered)
                gathered = []
        if gathered:
            yield _batch(schema, gathered)

    return Scan(schema, batches)


def _batch(schema: pa.Schema, rows: Sequence[Row]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(list(column), field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _moment(text: str) -> datetime | None:
    """None for text that is no time: the folder may be a stranger's."""
    try:
        moment = datetime.fromisoformat(text[:40])
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC the first day of the calendar may be before it
        return None
