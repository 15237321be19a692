"""Keeps the best rows of each key, and finds which ranks of a list changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.display import value_of
from penstock.operators.aggregate.parts import Pending, Reducer
from penstock.operators.base import OperatorContext, OperatorDefaults, TimedOperator
from penstock.operators.top_n.top_rows import TopAccumulator
from penstock.records import MAIN_STATE, Due, Emitted, Records, Side, Time
from penstock.state.keys import Flags, KeyColumn, Rows, equal_keys, normalise_keys

if TYPE_CHECKING:
    from penstock.operators.top_n.top_n import RunningTop, WindowTop

ROWS = "rows"


class RunningTopOperator(OperatorDefaults):
    """Keeps the epoch's best until `finish`."""

    def __init__(self, spec: RunningTop, context: OperatorContext) -> None:
        self._keys, self._schema = list(spec.keys), spec.output_schema
        self._state, self._values_schema = context.state, spec.state_tables[MAIN_STATE].values
        aggregates = {ROWS: spec.top}
        self._reducer = Reducer(spec.name, aggregates, {ROWS: TopAccumulator(spec.top)}, context.max_parallelism)
        self._pending = Pending(self._reducer)

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows:
            keys = normalise_keys(records.batch.select(self._keys), self._keys)
            self._pending.add(self._reducer.reduce(records.hashes, keys, records.batch))
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        part = self._pending.take()
        if part is None:
            return
        values, found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(values, found, part)
        before, after = values.column(0), part.states[0][0]
        owners, ranks, rows = _unpacked(after)
        changed = np.flatnonzero(_changed(before, owners, ranks, rows))
        if not len(changed):
            return
        touched = np.unique(owners[changed])
        indices = pa.array(touched)
        self._state.update(
            part.hashes[touched],
            part.keys.take(indices),
            pa.RecordBatch.from_arrays([after.take(indices)], schema=self._values_schema),
        )
        yield _output(self._schema, part.keys, owners[changed], ranks[changed], rows.take(pa.array(changed)))


def _unpacked(lists: pa.Array) -> tuple[Rows, Rows, pa.Array]:
    """For each item of the lists the list it is in, its rank from 1 on, and the item."""
    counts = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    owners = np.repeat(np.arange(len(lists)), counts)
    ranks = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts) + 1
    return owners, ranks, lists.flatten()


def _changed(before: pa.Array, owners: Rows, ranks: Rows, rows: pa.Array) -> Flags:
    """Whether the list `before` had another row, or none, at each place."""
    counts = before.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    starts = np.cumsum(counts) - counts
    there = np.flatnonzero(ranks <= counts[owners])
    changed = np.ones(len(owners), np.bool_)
    old, places = before.flatten(), starts[owners[there]] + ranks[there] - 1
    changed[there] = ~_equal_rows(old.take(pa.array(places)), rows.take(pa.array(there)))
    return changed


def _equal_rows(left: pa.Array, right: pa.Array) -> Flags:
    numbers = np.arange(len(left))
    equal = np.ones(len(left), np.bool_)
    for a, b in zip(left.flatten(), right.flatten(), strict=True):
        if pa.types.is_nested(a.type):
            # As text NaN equals NaN, however deep.
            pairs = zip(_texts(a), _texts(b), strict=True)
            equal &= np.fromiter((x == y for x, y in pairs), np.bool_, len(left))
        elif not pa.types.is_null(a.type):
            equal &= equal_keys((KeyColumn(a),), numbers, (KeyColumn(b),), numbers)
    return equal


def _texts(values: pa.Array) -> list[str]:
    """Text that differs for different values, also for values that Python cannot hold."""
    try:
        return list(map(repr, values.to_pylist()))
    except (OverflowError, ValueError):
        return [repr(value_of(value, "surrogateescape")) for value in values]


def _output(schema: pa.Schema, keys: pa.RecordBatch, owners: Rows, ranks: Rows, rows: pa.Array) -> pa.RecordBatch:
    columns = [*keys.take(pa.array(owners)).columns, pa.array(ranks.astype(np.int32)), *rows.flatten()]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class WindowTopOperator:
    """Unpacks what the windows emit."""

    def __init__(self, spec: WindowTop, lists: TimedOperator) -> None:
        self._schema, self._lists = spec.output_schema, lists

    def process(self, records: Records) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.process(records))

    def finish(self) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.finish())

    def advance(self, time: Time) -> Iterator[Emitted]:
        return map(self._unpack, self._lists.advance(time))

    def next_due(self) -> Due:
        return self._lists.next_due()

    def counters(self) -> Mapping[str, int]:
        return self._lists.counters()

    def _unpack(self, emitted: Emitted) -> Emitted:
        if isinstance(emitted, Side):
            return emitted
        owners, ranks, rows = _unpacked(emitted.column(emitted.num_columns - 1))
        return _output(self._schema, emitted.select(emitted.schema.names[:-1]), owners, ranks, rows)
