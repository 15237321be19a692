"""Keeps the first row of each key, and says until when later ones are its duplicates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.operators.base import OperatorContext
from penstock.operators.columns import micros
from penstock.operators.grouping import group_rows
from penstock.protocol.keygroups import regrouped
from penstock.records import LATE, Emitted, Records, Side
from penstock.state.keys import Flags, Rows, normalise_keys

if TYPE_CHECKING:
    from penstock.operators.deduplicate.deduplicate import Deduplicate

UNTIL = "until"


class DeduplicateOperator:
    """Keeps the first rows of one subtask attempt."""

    def __init__(self, spec: Deduplicate, context: OperatorContext) -> None:
        self._spec, self._state = spec, context.state
        self._max_parallelism = context.max_parallelism
        self._watermarks: npt.NDArray[np.int64] | None = None
        self._late = 0

    def process(self, records: Records) -> Iterator[Emitted]:
        if self._spec.within_us is None:
            times = np.zeros(records.rows, np.int64)
        else:
            records, times, late = self._in_time(records)
            if late.num_rows:
                self._late += late.num_rows
                yield Side(LATE, late)
        if records.rows:
            yield records.batch.take(pa.array(self._first(records, times)))

    def finish(self) -> Iterator[Emitted]:
        if self._spec.within_us is not None and self._watermarks is not None:
            self._state.expire(UNTIL, self._watermarks)
        return iter(())

    def counters(self) -> Mapping[str, int]:
        return {"late": self._late}

    def _in_time(self, records: Records) -> tuple[Records, npt.NDArray[np.int64], pa.RecordBatch]:
        """The rows at or after their watermark, with their event times, and the others."""
        assert self._spec.event_time is not None
        assert records.time is not None
        self._watermarks = records.time.watermarks
        times, known = micros(records.batch.column(self._spec.event_time))
        good = known & (times >= records.time.watermark_of(records.hashes))
        if good.all():
            return records, times, records.batch.slice(0, 0)
        rows, others = np.flatnonzero(good), np.flatnonzero(~good)
        kept = Records(records.batch.take(pa.array(rows)), records.hashes[rows], records.port, records.time)
        return kept, times[rows], records.batch.take(pa.array(others))

    def _first(self, records: Records, times: npt.NDArray[np.int64]) -> Rows:
        """The rows to keep, in the order of arrival."""
        columns = self._spec.columns
        keys = normalise_keys(records.batch.select(list(columns)), columns)
        hashes = records.hashes
        if columns != self._spec.keys:
            hashes = regrouped(hash_columns(keys.columns), hashes, self._max_parallelism)
        grouping = group_rows(hashes, keys)
        hashes, keys = hashes[grouping.firsts], keys.take(pa.array(grouping.firsts))
        values, found = self._state.lookup(hashes, keys)
        if self._spec.within_us is None:
            kept = np.flatnonzero(~found)
            rows, until = grouping.firsts[kept], np.zeros(len(kept), np.int64)
        else:
            until = np.where(found, values.column(0).fill_null(0).to_numpy(), np.iinfo(np.int64).min)
            before = until.copy()
            rows = _kept_within(grouping.order, grouping.starts, times, until, self._spec.within_us)
            kept = np.flatnonzero(until != before)
            until = until[kept]
        if len(kept):
            stored = pa.RecordBatch.from_arrays([pa.array(until)], [UNTIL])
            self._state.update(hashes[kept], keys.take(pa.array(kept)), stored)
        return np.sort(rows)


def _kept_within(
    order: Rows, starts: Rows, times: npt.NDArray[np.int64], until: npt.NDArray[np.int64], within_us: int
) -> Rows:
    """The rows to keep; changes `until`, for each key the end of the span of its last kept row, in place.

    Each round keeps one more row of every key that has one, so there are as many rounds as rows are kept of one key.
    """
    stops = np.append(starts[1:], len(order))
    key_of = np.repeat(np.arange(len(starts)), stops - starts)
    ordered = times[order]
    after = starts.copy()  # earlier positions are decided
    kept: list[Rows] = []
    positions = np.arange(len(order))
    while True:
        fits: Flags = ordered[positions] > until[key_of[positions]]
        fits &= positions >= after[key_of[positions]]
        positions = positions[fits]
        if not len(positions):
            return order[np.concatenate(kept)] if kept else np.empty(0, np.int64)
        keys = key_of[positions]
        first = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        chosen = positions[first]
        kept.append(chosen)
        until[keys[first]] = ordered[chosen] + within_us
        after[keys[first]] = chosen + 1
