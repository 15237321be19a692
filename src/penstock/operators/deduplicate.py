"""The first row of each key, at once; later ones are dropped, for ever or within a span of event time.

With a span the rule is about event times alone: a row is a duplicate if its key has a kept row before it in the order
of arrival whose event time plus the span is not before its own. Rows behind the watermark cannot be judged any more and
leave as late ones. So forgetting a key once the watermark has passed its span changes no result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.hashing import hash_columns
from penstock.operators.base import KeyedSpec, Operator, OperatorContext
from penstock.operators.columns import key_schema
from penstock.operators.grouping import group_rows
from penstock.protocol.keygroups import regrouped
from penstock.records import MAIN_STATE, Emitted, Records, Side, StateSchema
from penstock.state.keys import Flags, Rows, normalise_keys

LATE = "late"
_UNTIL = "until"


@dataclass(frozen=True)
class Deduplicate(KeyedSpec):
    """Rows in, the first of each key out. `columns` are the keys, and what else tells records apart."""

    name: str
    output_schema: pa.Schema
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    event_time: str | None = None
    within_us: int | None = None

    @property
    def kind(self) -> str:
        """A checkpoint must know whether keys are kept for ever: what is stored means something else without a span.

        Another span fits: keys that are there keep the span they were stored with.
        """
        return "deduplicate" if self.within_us is None else "deduplicate/within"

    @property
    def hands_on(self) -> bool:
        return True

    @property
    def side_outputs(self) -> Mapping[str, pa.Schema]:
        return MappingProxyType({LATE: self.output_schema} if self.within_us is not None else {})

    @property
    def state_tables(self) -> Mapping[str, StateSchema]:
        values = pa.schema([(_UNTIL, pa.int64())])
        return {MAIN_STATE: StateSchema(key_schema(self.name, self.output_schema, self.columns), values)}

    def build(self, context: OperatorContext) -> Operator:
        return _Deduplicator(self, context)


class _Deduplicator:
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
            self._state.expire(_UNTIL, self._watermarks)
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
            stored = pa.RecordBatch.from_arrays([pa.array(until)], [_UNTIL])
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
    after = starts.copy()  # positions before are decided
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


def micros(column: pa.Array) -> tuple[npt.NDArray[np.int64], Flags]:
    """A timestamp column as microseconds since 1970, cut where it is finer, and where there is one."""
    kind = column.type
    if kind.unit != "us":
        column = column.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns")
    known = ~column.is_null().to_numpy(zero_copy_only=False)
    numbers = column.view(pa.int64())
    return (numbers.fill_null(0) if column.null_count else numbers).to_numpy(), known
