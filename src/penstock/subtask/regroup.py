"""Writes state and rows in flight for another number of key groups.

Where a row of state stands follows from its key and from the number of key groups, in a way that depends on the kind of
table. The places for the old number are computed first and compared with those in the file: a table whose rule is not
known is refused, never written wrongly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import SavepointRefused
from penstock.hashing import hash_columns
from penstock.inflight.segment import Apart, SegmentFiles, SegmentOrigin, hashes_of
from penstock.operators.join.join_buffer import places_in_buffer
from penstock.operators.process.timers import places_in_time, places_of_names
from penstock.operators.window.pane_clock import CLOCK_STATE
from penstock.operators.window.panes import PaneIndex
from penstock.protocol.keygroups import KeyGroupRange, groups_of, order_of, regrouped
from penstock.protocol.manifest import Segment, StateFile
from penstock.records import MAIN_STATE, Regrouped, RegroupTask
from penstock.state.compact import merged_chunks
from penstock.state.files import FileRun
from penstock.state.layout import STATE_KIND, file_schema, groups_of_orders, to_batch
from penstock.state.runs import SortedRun
from penstock.state.tiers import sections
from penstock.store.arrowfile import ArrowFile, ArrowFileWriter
from penstock.store.base import Store

Hashes = npt.NDArray[np.int64]
_BATCH_ROWS = 1 << 16
_NEVER = np.iinfo(np.int64).max


def regroup(task: RegroupTask, origin: Store, target: Store) -> Regrouped:
    """Raises: `SavepointRefused` for a table whose rows cannot be placed; `MissingFile`, `CorruptFile`."""
    if task.segment is not None:
        return Regrouped(task.name, segment=_segment(task, task.segment, origin, target))
    if task.part == CLOCK_STATE:
        return Regrouped(task.name, _clock(task, origin, target))
    files = [_write(task, number, run, target) for number, run in enumerate(_moved(task, origin))]
    return Regrouped(task.name, tuple(files))


# -- rows in flight ----------------------------------------------------------------------------------------------------


def _segment(task: RegroupTask, segment: Segment, origin: Store, target: Store) -> Segment | None:
    """Its unread rows, in their order."""
    cursors = np.full(task.old, _NEVER, np.int64)
    for span in segment.spans:
        for part in span.ranges:
            cursors[part.lo : part.hi] = span.cursor
    numbers = iter([segment.sequence])
    where = SegmentOrigin(segment.epoch, segment.producer, segment.watermark, task.new, Apart(segment.arrived, numbers))
    with ArrowFile(origin, segment.path, segment.checksum) as file:
        writer = SegmentFiles(
            target,
            lambda _: task.paths.format(0),
            file.schema,
            origin=where,
            groups=KeyGroupRange(0, task.new),
            target_bytes=1 << 62,
        )
        try:
            first = 0
            for number in range(len(file.batches)):
                batch = file.read_batch(number)
                waiting = np.arange(first, first + batch.num_rows) >= cursors[groups_of(hashes_of(batch), task.old)]
                first += batch.num_rows
                if waiting.any():
                    kept = batch if waiting.all() else batch.filter(pa.array(waiting))
                    writer.write(kept, groups_of(hashes_of(kept), task.new))
            made = writer.close()
        except BaseException:
            writer.abort()
            raise
    return made[0] if made else None


# -- state -------------------------------------------------------------------------------------------------------------


def _moved(task: RegroupTask, origin: Store) -> Iterator[SortedRun]:
    """The live rows of a section after the other, in their new order."""
    for run in _sections(task, origin):
        if not np.array_equal(order_of(_places(task, run, task.old), task.old), run.orders):
            raise _unknown(task)
        orders = order_of(_places(task, run, task.new), task.new)
        rows = np.argsort(orders, kind="stable")
        indices = pa.array(rows)
        yield SortedRun(orders[rows], [column.take(indices) for column in run.columns], run.key_count)


def _sections(task: RegroupTask, origin: Store) -> Iterator[SortedRun]:
    assert task.schema is not None
    with ExitStack() as opened:
        files = [
            opened.enter_context(closing(FileRun.open(origin, file, task.groups, task.schema, task.old)))
            for file in reversed(task.files)
            if any(part.intersect(task.groups) for part in file.ranges)
        ]
        rows = sum(file.rows for file in files)
        row_bytes = max(1, sum(file.bytes for file in files) // max(1, rows))
        for section in sections(task.groups, rows, row_bytes):
            levels = [level for file in files if (level := file.restricted(section)).rows]
            parts = list(merged_chunks(levels, drop_deleted=True)) if levels else []
            if parts:
                yield _joined(parts)


def _joined(parts: Sequence[SortedRun]) -> SortedRun:
    columns = [pa.concat_arrays(found) for found in zip(*(part.columns for part in parts), strict=True)]
    return SortedRun(np.concatenate([part.orders for part in parts]), columns, parts[0].key_count)


def _places(task: RegroupTask, run: SortedRun, groups: int) -> Hashes:
    """Hashes that stand for the places of rows, as the operator computes them for so many key groups."""
    family, _, rest = task.kind.partition("/")
    keys, values = run.columns[: run.key_count], run.columns[run.key_count :]
    begin, count = task.user_key
    if task.part.endswith(("event_timers", "processing_timers", "_deadlines")):
        return places_in_time(_numbers(values[0]), _numbers(keys[0]), groups)
    if family == "join":
        return places_in_buffer(
            _numbers(values[0]), _numbers(keys[-2]), _numbers(keys[-1]), int(rest.partition("/")[0]), groups
        )
    if family == "session_window" and task.part == "timers":
        return PaneIndex(groups).hashes(_numbers(values[1]), _numbers(keys[-1]))
    hashes = hash_columns(list(keys[begin : begin + count]))
    if task.part == "timers":
        return places_of_names(hashes, keys[-1], groups)
    if family in {"tumbling_window", "sliding_window"} and task.part == MAIN_STATE:
        return PaneIndex(groups).hashes(hashes, _numbers(keys[-1]))
    if count < len(keys):
        return regrouped(hash_columns(list(keys)), hashes, groups)
    return hashes


def _numbers(column: pa.Array) -> Hashes:
    found: Hashes = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _clock(task: RegroupTask, origin: Store, target: Store) -> tuple[StateFile, ...]:
    """How far windows are closed: must be the same everywhere, for keys of several key groups come together."""
    runs = list(_sections(task, origin))
    if not runs:
        return ()
    run = _joined(runs)
    first, last, done, towards, _ = (_numbers(column) for column in run.columns[1:])
    if not np.array_equal(order_of(_numbers(run.columns[0]), task.old), run.orders):
        raise _unknown(task)
    if len(np.unique(done)) > 1 or (towards > done).any():
        raise SavepointRefused(
            f"state {task.name}: windows are closed up to different moments in different key groups",
            cause="rows in flight hold some key groups back",
            next_step="let the query drain first: query.stop(drain=True), then take the savepoint",
        )
    groups = np.arange(task.new, dtype=np.int64)
    made = [first.min(), last.max(), done[0], towards.max(), 0]
    columns = [pa.array(groups.astype(np.int32)), *(pa.array(np.full(task.new, value, np.int64)) for value in made)]
    orders = order_of(groups, task.new)
    rows = np.argsort(orders, kind="stable")
    taken = [column.take(pa.array(rows)) for column in columns]
    return (_write(task, 0, SortedRun(orders[rows], taken, 1), target),)


def _write(task: RegroupTask, number: int, run: SortedRun, target: Store) -> StateFile:
    assert task.schema is not None
    schema = file_schema(task.schema, with_deleted=False)
    writer = ArrowFileWriter(target, task.paths.format(number), schema, kind=STATE_KIND, compression=None, meta={})
    try:
        groups = groups_of_orders(run.orders, task.new)
        for begin in range(0, run.rows, _BATCH_ROWS):
            part = run.slice(begin, min(run.rows, begin + _BATCH_ROWS))
            writer.write(to_batch(part, schema), groups[begin : begin + part.rows])
        info = writer.close()
    except BaseException:
        writer.abort()
        raise
    everywhere = (KeyGroupRange(0, task.new),)
    return StateFile(path=info.path, rows=info.rows, bytes=info.bytes, checksum=info.checksum, ranges=everywhere)


def _unknown(task: RegroupTask) -> SavepointRefused:
    return SavepointRefused(
        f"state {task.name}: rows stand where {task.kind} does not look for them with {task.old} key groups",
        cause="this kind of state cannot be written for another number of key groups, or the file is damaged",
        next_step="keep max_parallelism, or begin the operator anew in a new checkpoint folder",
    )
