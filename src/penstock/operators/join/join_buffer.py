"""State: the rows of one side of a join that may still find a match.

Entries lie in the order of key group, some bits of the key's hash, and event time, so that the rows of a key within a
span of time stand together: the possible matches of a row are a few spans of orders, which are read for a whole slice
at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.base import OperatorContext
from penstock.operators.process.timers import Line
from penstock.protocol.keygroups import groups_of, order_bits
from penstock.records import StateSchema
from penstock.state.keyed import KeyedState
from penstock.state.keys import Flags, Rows
from penstock.state.ranges import Entries, KeySpans
from penstock.state.runs import Orders

TIME, ID, HASH, MATCHED = (f"__penstock_{part}" for part in ("time", "id", "hash", "matched"))

_SLOT_BITS, _LOW_BITS = 16, 23
"""Of 64 bits: below the hash of the key the slot of time, then bits that tell rows apart. The lowest bits also give
room for correcting the key group, which takes 15 bits up and down."""
_KEY_MASK = np.uint64(((1 << 64) - 1) ^ ((1 << (_SLOT_BITS + _LOW_BITS)) - 1))
_LOW_MARGIN = 1 << 15

Numbers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]


def slot_shift(span: int) -> int:
    """A slot of time lasts 2 to the power of this: an eighth to a quarter of the join's span. Shorter slots mean more
    reads, longer ones read more rows that do not match."""
    return max(0, (span // 4).bit_length() - 1)


def buffer_schema(keys: pa.Schema, row: pa.Schema) -> StateSchema:
    """Key, time and a number of its own identify a row."""
    own = [pa.field(TIME, pa.int64()), pa.field(ID, pa.int64())]
    hidden = [pa.field(HASH, pa.int64()), pa.field(MATCHED, pa.bool_())]
    return StateSchema(pa.schema([*keys, *own]), pa.schema([*hidden, *row]))


def deadline_schema(keys: pa.Schema) -> StateSchema:
    """A timeline of the moments after which rows can no longer match."""
    own = [pa.field(TIME, pa.int64()), pa.field(ID, pa.int64()), pa.field("__penstock_row", pa.int64())]
    return StateSchema(pa.schema([*own, *keys]), pa.schema([("hash", pa.int64())]))


class Buffered(NamedTuple):
    """Rows with what identifies them; `keys` are the key columns alone."""

    keys: pa.RecordBatch
    hashes: Numbers
    times: Numbers
    ids: Numbers
    matched: Flags
    rows: pa.RecordBatch

    def take(self, rows: Rows) -> Buffered:
        picked = pa.array(rows)
        return Buffered(
            self.keys.take(picked),
            self.hashes[rows],
            self.times[rows],
            self.ids[rows],
            self.matched[rows],
            self.rows.take(picked),
        )


class JoinBuffer:
    """The rows of one side. `deadlines` only where rows without a match are emitted."""

    def __init__(
        self, state: KeyedState, deadlines: KeyedState | None, schema: StateSchema, context: OperatorContext, span: int
    ) -> None:
        self._state, self._schema, self._max_parallelism = state, schema, context.max_parallelism
        self._shift = np.int64(slot_shift(span))
        self._key_count = len(schema.keys) - 2
        self._line = None if deadlines is None else Line(deadlines, context)

    def add(self, new: Buffered, deadlines: Numbers) -> None:
        self._put(new)
        if self._line is not None:
            columns = [pa.array(deadlines), pa.array(new.ids), pa.array(new.times), *new.keys.columns]
            self._line.add(new.hashes, deadlines, _unnamed(columns))

    def mark_matched(self, found: Buffered) -> None:
        self._put(found._replace(matched=np.ones(len(found.ids), np.bool_)))

    def near(self, hashes: Numbers, firsts: Numbers, lasts: Numbers) -> Buffered | None:
        """All rows that a key with one of these hashes may have between two moments, and some more."""
        spans = self._spans(hashes, firsts, lasts)
        entries = self._state.within(spans)
        return None if entries is None else self._buffered(entries.keys, entries.values)

    def overdue(self, until: Numbers, rows_max: int) -> Iterator[Buffered]:
        """Rows without a match, up to a deadline per key group, in portions. A portion is deleted from the state before
        it is yielded."""
        assert self._line is not None
        for groups in self._line.batches(until, rows_max):
            due = self._line.due(groups, until)
            if due is None:
                continue
            for start in range(0, due.rows, rows_max):
                yield self._expired(self._line, due.take(np.arange(start, min(due.rows, start + rows_max))))

    def _expired(self, line: Line, due: Entries) -> Buffered:
        _, ids, times, *keys = due.keys.columns
        places = self._places(due.values.column(0).to_numpy(), times.to_numpy(), ids.to_numpy())
        keyed = _unnamed([*keys, times, ids])
        values, found = self._state.lookup(places, keyed)
        self._state.update(places, keyed, values, np.ones(due.rows, np.bool_))
        line.remove(due)
        alone = np.flatnonzero(found & ~values.column(1).fill_null(True).to_numpy(zero_copy_only=False))
        picked = pa.array(alone)
        return self._buffered(keyed.take(picked), values.take(picked))

    def expire(self, before: Numbers) -> None:
        """Rows with earlier times than these, one for each key group, may be dropped."""
        if self._line is None:
            self._state.expire(TIME, before)

    def next_deadline(self, done: Numbers) -> int | None:
        return None if self._line is None else self._line.next_after(done)

    def last_deadline(self) -> int | None:
        return None if self._line is None else self._line.last()

    def _put(self, new: Buffered) -> None:
        keyed = _unnamed([*new.keys.columns, pa.array(new.times), pa.array(new.ids)])
        columns = [pa.array(new.hashes), pa.array(new.matched), *new.rows.columns]
        values = pa.RecordBatch.from_arrays(columns, schema=self._schema.values)
        self._state.update(self._places(new.hashes, new.times, new.ids), keyed, values)

    def _buffered(self, keys: pa.RecordBatch, values: pa.RecordBatch) -> Buffered:
        *columns, times, ids = keys.columns
        hashes, matched, *rows = values.columns
        names = self._schema.keys.names[: self._key_count]
        return Buffered(
            pa.RecordBatch.from_arrays(columns, names),
            hashes.to_numpy(),
            times.to_numpy(),
            ids.to_numpy(),
            matched.to_numpy(zero_copy_only=False),
            pa.RecordBatch.from_arrays(rows, schema=pa.schema(list(self._schema.values)[2:])),
        )

    def _slots(self, times: Numbers) -> Words:
        return _slots_of(times, int(self._shift))

    def _places(self, hashes: Numbers, times: Numbers, ids: Numbers) -> Numbers:
        return places_in_buffer(hashes, times, ids, int(self._shift), self._max_parallelism)

    def _spans(self, hashes: Numbers, firsts: Numbers, lasts: Numbers) -> KeySpans:
        groups = groups_of(hashes, self._max_parallelism)
        bits = np.uint64(order_bits(self._max_parallelism))
        high = groups.view(np.uint64) << (np.uint64(64) - bits) if bits else np.zeros(len(hashes), np.uint64)
        keys = hashes.view(np.uint64) & _KEY_MASK
        begin, end = self._slots(firsts), self._slots(lasts)
        rounds = end < begin  # the numbers of slots repeated in between
        rows = np.flatnonzero(rounds)
        top, bottom = self._slots(np.array([-1])), np.zeros(len(rows), np.uint64)
        begin, end = np.concatenate([begin, bottom]), np.concatenate([np.where(rounds, top, end), end[rows]])
        keys, high = np.concatenate([keys, keys[rows]]), np.concatenate([high, high[rows]])
        low = np.uint64((1 << _LOW_BITS) - 1)
        return _apart(high | ((keys | begin) >> bits), high | ((keys | end | low) >> bits))


def _slots_of(times: Numbers, shift: int) -> Words:
    """Slots of time, shifted to their place in an order. Numbers repeat after 65,536 slots."""
    slots = ((times >> np.int64(shift)) & np.int64((1 << _SLOT_BITS) - 1)).view(np.uint64)
    placed: Words = slots << np.uint64(_LOW_BITS)
    return placed


def places_in_buffer(hashes: Numbers, times: Numbers, ids: Numbers, shift: int, max_parallelism: int) -> Numbers:
    """Hashes for the state, which order the rows of a key by time."""
    low = np.mod(ids, (1 << _LOW_BITS) - 2 * _LOW_MARGIN) + _LOW_MARGIN
    base = ((hashes.view(np.uint64) & _KEY_MASK) | _slots_of(times, shift) | low.view(np.uint64)).view(np.int64)
    return base - groups_of(base, max_parallelism) + groups_of(hashes, max_parallelism)


def _apart(firsts: Orders, lasts: Orders) -> KeySpans:
    """Spans in order, those that overlap joined."""
    order = np.argsort(firsts, kind="stable")
    firsts, lasts = firsts[order], np.maximum.accumulate(lasts[order])
    begins = np.flatnonzero(np.append(True, firsts[1:] > lasts[:-1]))
    return KeySpans(firsts[begins], np.append(lasts[begins[1:] - 1], lasts[-1:]))


def _unnamed(columns: list[pa.Array]) -> pa.RecordBatch:
    """Renames columns by position, because users may give them any name."""
    return pa.RecordBatch.from_arrays(columns, [str(number) for number in range(len(columns))])
