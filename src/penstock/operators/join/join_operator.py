"""One subtask attempt of an interval join: each slice looks for matches among the rows of the other side that came
before it, then waits itself for those that come after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.base import OperatorContext
from penstock.operators.columns import micros
from penstock.operators.grouping import group_rows
from penstock.operators.join.join_buffer import Buffered, JoinBuffer
from penstock.protocol.eventtime import highest
from penstock.records import NO_WATERMARK, Due, Emitted, Records, Side, Time
from penstock.state.keys import Rows, normalise

if TYPE_CHECKING:
    from penstock.operators.join.join import Join, JoinSide

PAIRS_PER_BATCH = 1 << 16
OVERDUE_PER_YIELD = 1 << 13

Numbers = npt.NDArray[np.int64]


class Pairs(NamedTuple):
    """Row numbers of a slice and of what it was compared with."""

    mine: Rows
    others: Rows


class JoinOperator:
    """Both buffers, and what goes out."""

    def __init__(self, spec: Join, context: OperatorContext) -> None:
        self._spec = spec
        self._sides = (spec.left, spec.right)
        tables = spec.state_tables
        self._buffers = [
            JoinBuffer(
                context.states[label],
                context.states.get(f"{label}_deadlines"),
                tables[label],
                context,
                spec.upper - spec.lower,
            )
            for label in ("left", "right")
        ]
        # Only distinguishes rows of one key and moment, so another attempt may choose other numbers.
        self._random = np.random.default_rng()
        self._time: Time | None = None
        self._all_emitted = True
        self._late = 0

    def process(self, records: Records) -> Iterator[Emitted]:
        assert records.time is not None
        self._time = records.time
        port, side = records.port, self._sides[records.port]
        times, known = micros(records.batch.column(side.event_time))
        late = ~known | (times < records.time.watermark_of(records.hashes))
        if late.any():
            rows = np.flatnonzero(late)
            self._late += len(rows)
            yield Side(("late_left", "late_right")[port], records.batch.take(pa.array(rows)))
        new = self._incoming(records, side, times, ~late)
        if not len(new.ids):
            return
        matched, pairs, others = self._matches(port, new)
        for start in range(0, len(pairs.mine), PAIRS_PER_BATCH):
            stop = start + PAIRS_PER_BATCH
            mine = new.take(pairs.mine[start:stop])
            assert others is not None
            match = others.take(pairs.others[start:stop])
            yield self._batch(port, mine.rows, match.rows, np.maximum(mine.times, match.times))
        yield from self._wait(port, new._replace(matched=matched), records.time)

    def finish(self) -> Iterator[Emitted]:
        if self._time is not None:
            for buffer, (_, last) in zip(self._buffers, self._spec.spans, strict=True):
                marks = self._time.watermarks
                buffer.expire(np.where(marks == NO_WATERMARK, NO_WATERMARK, marks - last))
        return iter(())

    def advance(self, time: Time) -> Iterator[Emitted]:
        """Emits rows that can no longer find a match."""
        self._time, self._all_emitted = time, False
        for port, outer in enumerate(self._spec.outer):
            if outer:
                for alone in self._buffers[port].overdue(time.watermarks, OVERDUE_PER_YIELD):
                    yield self._alone(port, alone)
        self._all_emitted = True

    def next_due(self) -> Due:
        if self._time is None:
            return Due()
        if not self._all_emitted:
            return Due(event_time=NO_WATERMARK + 1, last=self._last_deadline())
        watermarks = self._time.watermarks
        found = [buffer.next_deadline(watermarks) for buffer in self._buffers]
        earliest = min((moment for moment in found if moment is not None), default=None)
        return Due(event_time=earliest, last=self._last_deadline())

    def _last_deadline(self) -> int | None:
        return highest(buffer.last_deadline() for buffer in self._buffers)

    def counters(self) -> Mapping[str, int]:
        return {"late": self._late}

    def _incoming(self, records: Records, side: JoinSide, times: Numbers, in_time: npt.NDArray[np.bool_]) -> Buffered:
        keys = pa.RecordBatch.from_arrays(
            [normalise(records.batch.column(key)) for key in side.keys], [str(k) for k in range(len(side.keys))]
        )
        ids = self._random.integers(0, np.iinfo(np.int64).max, records.rows, dtype=np.int64)
        unmatched = np.zeros(records.rows, np.bool_)
        new = Buffered(keys, records.hashes, times, ids, unmatched, records.batch)
        return new if in_time.all() else new.take(np.flatnonzero(in_time))

    def _matches(self, port: int, new: Buffered) -> tuple[npt.NDArray[np.bool_], Pairs, Buffered | None]:
        first, last = self._spec.spans[port]
        near = self._buffers[1 - port].near(new.hashes, new.times + first, new.times + last)
        matched = np.zeros(len(new.ids), np.bool_)
        if near is None:
            return matched, Pairs(np.empty(0, np.int64), np.empty(0, np.int64)), None
        pairs = _pairs(new, near, first, last)
        matched[pairs.mine] = True
        if self._spec.outer[1 - port] and len(pairs.others):
            met = np.zeros(len(near.ids), np.bool_)
            met[pairs.others] = True
            newly = np.flatnonzero(met & ~near.matched)
            if len(newly):
                self._buffers[1 - port].mark_matched(near.take(newly))
        return matched, pairs, near

    def _wait(self, port: int, new: Buffered, time: Time) -> Iterator[Emitted]:
        """Keeps rows that may match later ones, and emits those that cannot."""
        deadlines = new.times + self._spec.spans[port][1] + 1
        stays = ~_any_null(new.keys) & (deadlines > time.watermark_of(new.hashes))
        rows = np.flatnonzero(stays)
        if len(rows):
            self._buffers[port].add(new.take(rows), deadlines[rows])
        if self._spec.outer[port] and len(alone := np.flatnonzero(~stays & ~new.matched)):
            yield self._alone(port, new.take(alone))

    # -- output --------------------------------------------------------------------------------------------------

    def _alone(self, port: int, rows: Buffered) -> pa.RecordBatch:
        """Rows with nothing on the other side; their event time is the last at which they could have matched."""
        last = self._spec.spans[port][1]
        nothing = pa.RecordBatch.from_arrays(
            [pa.nulls(len(rows.ids), kind) for kind in self._sides[1 - port].schema.types],
            self._sides[1 - port].schema.names,
        )
        return self._batch(port, rows.rows, nothing, rows.times + max(last, 0))

    def _batch(self, port: int, mine: pa.RecordBatch, others: pa.RecordBatch, times: Numbers) -> pa.RecordBatch:
        sides = (mine, others) if port == 0 else (others, mine)
        columns = [
            column
            for side, batch in zip(self._sides, sides, strict=True)
            for name, column in zip(side.names, batch.columns, strict=True)
            if name
        ]
        if self._spec.output_keys and port == 1:
            # The key has the same name on both sides, so rows of either side have it.
            for key in self._spec.output_keys:
                columns[self._spec.left.schema.get_field_index(key)] = mine.column(mine.schema.get_field_index(key))
        if self._spec.event_time_column is not None:
            kind = self._spec.output_schema.field(self._spec.event_time_column).type
            columns.append(pa.array(times).cast(pa.timestamp("us", kind.tz)).cast(kind))
        return pa.RecordBatch.from_arrays(columns, schema=self._spec.output_schema)


def _any_null(keys: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    nulls = np.zeros(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.null_count:
            nulls |= column.is_null().to_numpy(zero_copy_only=False)
    return nulls


def _pairs(new: Buffered, near: Buffered, first: int, last: int) -> Pairs:
    """Rows with equal keys of which `near` is between `first` and `last` from `new`."""
    mine, others = len(new.ids), len(near.ids)
    names = near.keys.schema.names
    together = pa.RecordBatch.from_arrays(
        [pa.concat_arrays(parts) for parts in zip(new.keys.columns, near.keys.columns, strict=True)], names
    )
    ids = group_rows(np.concatenate([new.hashes, near.hashes]), together).ids
    moments, ranks = np.unique(near.times, return_inverse=True)
    width = len(moments) + 1
    places = ids[mine:] * width + ranks
    order = np.argsort(places, kind="stable")
    places = places[order]
    usable = ~_any_null(new.keys)
    begins = np.searchsorted(places, ids[:mine] * width + np.searchsorted(moments, new.times + first))
    ends = np.searchsorted(places, ids[:mine] * width + np.searchsorted(moments, new.times + last, side="right"))
    counts = np.where(usable, ends - begins, 0)
    assert others == len(order)
    total = int(counts.sum())
    starts = np.repeat(begins - (np.cumsum(counts) - counts), counts)
    return Pairs(np.repeat(np.arange(mine), counts), order[starts + np.arange(total)])
