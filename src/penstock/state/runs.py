"""Sorted runs of state rows: bulk lookup in one run, merge of several.

A run is sorted by `orders` and unique by key; rows of equal order stand in no particular order. All work is done on
whole arrays; the only loops go over the few positions within a stretch of equal orders. Masks are turned into
positions before they select: numpy selects by a mixed mask several times slower than by positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.keys import Flags, KeyColumn, Keys, Rows, equal_keys

Orders: TypeAlias = npt.NDArray[np.uint64]


class SortedRun:
    """Rows in memory or in a mapped file: the order, `key_count` key columns, then value columns, and tombstones."""

    def __init__(
        self, orders: Orders, columns: Sequence[pa.Array], key_count: int, deleted: Flags | None = None
    ) -> None:
        assert all(len(column) == len(orders) for column in columns)
        self.orders = orders
        self.columns = tuple(columns)
        self.key_count = key_count
        self.deleted = deleted

    @property
    def rows(self) -> int:
        return len(self.orders)

    @cached_property
    def bytes(self) -> int:
        return self.orders.nbytes + sum(int(column.nbytes) for column in self.columns)

    @cached_property
    def keys(self) -> Keys:
        return tuple(KeyColumn(column) for column in self.columns[: self.key_count])

    @property
    def values(self) -> tuple[pa.Array, ...]:
        return self.columns[self.key_count :]

    @property
    def may_hold_deleted(self) -> bool:
        return self.deleted is not None

    def slice(self, start: int, stop: int) -> SortedRun:
        if (start, stop) == (0, self.rows):
            return self
        columns = [column.slice(start, stop - start) for column in self.columns]
        deleted = None if self.deleted is None else self.deleted[start:stop]
        return SortedRun(self.orders[start:stop], columns, self.key_count, deleted)

    # A run and a file are searched and merged through the same three questions.

    def overlapping(self, orders: Orders) -> list[tuple[SortedRun, int, int]]:
        """Which part of some sorted orders may be found in which run."""
        return [(self, 0, len(orders))]

    def between(self, first: np.uint64, last: np.uint64) -> list[SortedRun]:
        """The rows with an order from `first` to `last`, both included."""
        start, stop = np.searchsorted(self.orders, first), np.searchsorted(self.orders, last, side="right")
        return [self.slice(int(start), int(stop))] if start < stop else []

    def sample(self, step: int) -> Orders:
        """The order of every `step`-th row."""
        return self.orders[::step]


class Sorted(NamedTuple):
    """Sorted orders, and where each one stood; None: they were sorted already."""

    orders: Orders
    rows: Rows | None


def sort_orders(orders: Orders) -> Sorted:
    """Sorts orders, which often are sorted already.

    Sorting numbers is twice as fast as sorting positions by them, so the position takes the low bits of each number.
    Orders that differ only in these bits may come out wrong. They are rare, and a second, natural merge sort repairs
    them quickly.
    """
    if (orders[1:] >= orders[:-1]).all():
        return Sorted(orders, None)
    low = np.uint64((1 << max(0, len(orders) - 1).bit_length()) - 1)
    packed = (orders & ~low) | np.arange(len(orders), dtype=np.uint64)
    packed.sort()
    rows = (packed & low).view(np.int64)
    ordered = orders[rows]
    if (ordered[1:] < ordered[:-1]).any():
        repair = np.argsort(ordered, kind="stable")
        rows, ordered = rows[repair], ordered[repair]
    return Sorted(ordered, rows)


class Hits(NamedTuple):
    """Rows of a run that answer some probes: `rows[i]` is the row for probe number `probes[i]`."""

    run: SortedRun
    rows: Rows
    probes: Rows


def find(run: SortedRun, orders: Orders, keys: Keys, key_rows: Rows) -> tuple[Rows, Rows]:
    """Looks sorted orders up: positions of those found, and their rows in the run.

    Probe `i` has the order ``orders[i]`` and the key in row ``key_rows[i]`` of `keys`.
    """
    rows = np.searchsorted(run.orders, orders)
    probes, rows = _still_equal(run, orders, np.arange(len(orders)), rows)
    found: list[tuple[Rows, Rows]] = []
    while len(probes):
        equal = equal_keys(run.keys, rows, keys, key_rows[probes])
        if equal.all():
            found.append((probes, rows))
            break
        hits, others = np.flatnonzero(equal), np.flatnonzero(~equal)
        found.append((probes[hits], rows[hits]))
        # The row has another key of the same order; the next row may have the wanted one.
        probes, rows = _still_equal(run, orders, probes[others], rows[others] + 1)
    if len(found) == 1:
        return found[0]
    return _concat([p for p, _ in found]), _concat([r for _, r in found])


def _still_equal(run: SortedRun, orders: Orders, probes: Rows, rows: Rows) -> tuple[Rows, Rows]:
    """Those probes whose candidate row has the wanted order."""
    if len(rows) and rows.max() >= run.rows:
        inside = np.flatnonzero(rows < run.rows)
        probes, rows = probes[inside], rows[inside]
    equal = run.orders[rows] == orders[probes]
    if equal.all():
        return probes, rows
    kept = np.flatnonzero(equal)
    return probes[kept], rows[kept]


def _concat(parts: Sequence[Rows]) -> Rows:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def gather(hits: Sequence[Hits], count: int, types: Sequence[pa.DataType]) -> tuple[list[pa.Array], Flags]:
    """The value columns for `count` probes, null where no live row answers; and which ones were answered."""
    hits = [hit for hit in map(_alive, hits) if len(hit.rows)]
    found = np.zeros(count, np.bool_)
    index = np.zeros(count, np.int64)
    if not hits:
        return [pa.nulls(count, kind) for kind in types], found
    taken = 0
    for hit in hits:
        found[hit.probes] = True
        # A single part is taken from its run directly; several are first taken, then put in order.
        index[hit.probes] = hit.rows if len(hits) == 1 else np.arange(taken, taken + len(hit.rows))
        taken += len(hit.rows)
    indices = pa.array(index) if found.all() else pa.array(index, mask=~found)
    if len(hits) == 1:
        return [column.take(indices) for column in hits[0].run.values], found
    rows = [pa.array(hit.rows) for hit in hits]
    columns = [
        pa.concat_arrays([hit.run.values[i].take(part) for hit, part in zip(hits, rows, strict=True)])
        for i in range(len(types))
    ]
    return [column.take(indices) for column in columns], found


def _alive(hit: Hits) -> Hits:
    if hit.run.deleted is None:
        return hit
    alive = np.flatnonzero(~hit.run.deleted[hit.rows])
    return Hits(hit.run, hit.rows[alive], hit.probes[alive])


def merge(runs: Sequence[SortedRun], *, drop_deleted: bool) -> SortedRun:
    """One run out of several, newest first; of equal keys the newest row stays."""
    assert runs
    if len(runs) == 1 and not (drop_deleted and runs[0].may_hold_deleted):
        return runs[0]
    key_count = runs[0].key_count
    columns = [pa.concat_arrays(parts) for parts in zip(*(run.columns for run in runs), strict=True)]
    # Stable, and a natural merge sort: it finds the runs and merges them, newest first among equal orders.
    everything = np.concatenate([run.orders for run in runs])
    rows = np.argsort(everything, kind="stable")
    orders = everything[rows]
    keep = ~superseded(orders, tuple(KeyColumn(column) for column in columns[:key_count]), rows)
    deleted = _concat_deleted(runs)
    if deleted is not None and drop_deleted:
        keep &= ~deleted[rows]
        deleted = None
    if not keep.all():
        kept = np.flatnonzero(keep)
        rows, orders = rows[kept], orders[kept]
    indices = pa.array(rows)
    taken = [column.take(indices) for column in columns]
    return SortedRun(orders, taken, key_count, None if deleted is None else deleted[rows])


def superseded(orders: Orders, keys: Keys, rows: Rows) -> Flags:
    """Whether an earlier position has the same key; position i has the order ``orders[i]`` and the key ``rows[i]``."""
    older = np.zeros(len(orders), np.bool_)
    newer = np.flatnonzero(orders[1:] == orders[:-1])
    distance = 1
    while len(newer):
        equal = equal_keys(keys, rows[newer], keys, rows[newer + distance])
        older[newer + distance] |= equal
        distance += 1
        newer = newer[: np.searchsorted(newer, len(orders) - distance)]
        newer = newer[np.flatnonzero(orders[newer] == orders[newer + distance])]
    return older


def _concat_deleted(runs: Sequence[SortedRun]) -> Flags | None:
    if not any(run.may_hold_deleted for run in runs):
        return None
    parts = [run.deleted if run.deleted is not None else np.zeros(run.rows, np.bool_) for run in runs]
    return np.concatenate(parts)
