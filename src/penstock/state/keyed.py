"""Keyed state of one operator in one subtask attempt, for one epoch.

Older state lies in immutable sorted files, changes of this epoch in sorted runs in memory. The newest run that has a
key decides, also if it has a tombstone. `flush` turns the changes into at most one new file, which supersedes the
newest files where that keeps their number small. Nothing changes a file in place, so an attempt that fails leaves only
files that no checkpoint names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptFile
from penstock.protocol.keygroups import KeyGroupRange, joined, order_of
from penstock.protocol.manifest import StateFile
from penstock.records import StateSchema
from penstock.state.compact import Level, merged_chunks
from penstock.state.files import FileRun
from penstock.state.keys import Flags, KeyColumn, Rows, normalise
from penstock.state.layout import STATE_KIND, file_schema, groups_of_orders, order_span, to_batch
from penstock.state.ranges import Entries, KeySpans, count_within, first_within, last_within, read_within
from penstock.state.runs import Hits, Orders, Sorted, SortedRun, find, gather, merge, sort_orders, superseded
from penstock.state.tiers import SectionMerge, plan_merges, sections, tiers_to_merge
from penstock.store.arrowfile import ArrowFileWriter
from penstock.store.base import Store

# Runs in memory below this are merged at once: searching one more run would cost as much.
_SMALL_RUN_BYTES = 64 << 10


class Found(NamedTuple):
    """The answer to a lookup, aligned with its keys: values, null where absent, and whether the key is there."""

    values: pa.RecordBatch
    found: Flags


@dataclass(frozen=True, slots=True)
class StateChange:
    """What a flush did: the new file, and the key groups in which it supersedes older ones, by their paths."""

    added: StateFile | None
    replaced: dict[str, tuple[KeyGroupRange, ...]]


class KeyedState:
    """Lookup and update of many keys at once."""

    def __init__(
        self, store: Store, files: Sequence[FileRun], groups: KeyGroupRange, schema: StateSchema, max_parallelism: int
    ) -> None:
        self._store = store
        self._files = list(files)
        self._groups = groups
        self._schema = schema
        self._max_parallelism = max_parallelism
        self._span = order_span(groups, max_parallelism)
        self._changes: list[SortedRun] = []
        self._last_hashes = np.empty(0, np.int64)
        self._last_sort = Sorted(np.empty(0, np.uint64), None)
        self._flushed = False
        self._expiry: tuple[int, npt.NDArray[np.int64]] | None = None

    @classmethod
    def open(
        cls,
        store: Store,
        files: Sequence[StateFile],
        groups: KeyGroupRange,
        schema: StateSchema,
        max_parallelism: int,
    ) -> KeyedState:
        """Opens state files, oldest first.

        Raises: `MissingFile`, `CorruptFile`; `CheckpointMismatch` for a file with other columns.
        """
        with ExitStack() as opened:
            runs = [
                opened.enter_context(closing(FileRun.open(store, file, groups, schema, max_parallelism)))
                for file in files
            ]
            opened.pop_all()
        return cls(store, runs, groups, schema, max_parallelism)

    @property
    def rows_at_most(self) -> int:
        """Entries in files and in memory, including superseded and deleted ones."""
        return sum(level.rows for level in self._newest_first())

    def lookup(self, hashes: npt.NDArray[np.int64], keys: pa.RecordBatch) -> Found:
        """The values of keys, which need be neither unique nor sorted."""
        columns = self._key_columns(keys, len(hashes))
        probe_keys = tuple(KeyColumn(column) for column in columns)
        orders, moved = self._sorted(hashes)
        probes = np.arange(len(orders)) if moved is None else moved
        hits: list[Hits] = []
        for level in self._newest_first():
            if not len(orders):
                break
            missed = np.ones(len(orders), np.bool_)
            for run, start, stop in level.overlapping(orders):
                answered, rows = find(run, orders[start:stop], probe_keys, probes[start:stop])
                if len(answered):
                    answered = answered + start
                    hits.append(Hits(run, rows, probes[answered]))
                    missed[answered] = False
            rest = np.flatnonzero(missed)
            orders, probes = orders[rest], probes[rest]
        values, found = gather(hits, len(hashes), self._schema.values.types)
        return Found(pa.RecordBatch.from_arrays(values, schema=self._schema.values), found)

    def update(
        self,
        hashes: npt.NDArray[np.int64],
        keys: pa.RecordBatch,
        values: pa.RecordBatch,
        deleted: Flags | None = None,
    ) -> None:
        """Sets the values of keys, or deletes them; a key may occur once. Values of deleted keys do not matter.

        Sorted keys are not copied: the caller must not change keys and values before the flush.
        """
        assert not self._flushed, "state is flushed once, at the end of the epoch"
        if not len(hashes):
            return
        columns = [*self._key_columns(keys, len(hashes)), *values.columns]
        assert values.schema.types == self._schema.values.types, (values.schema, self._schema.values)
        assert values.num_rows == len(hashes) or not values.num_columns
        orders, moved = self._sorted(hashes)
        tombstones = deleted.copy() if deleted is not None and deleted.any() else None
        if moved is not None:
            indices = pa.array(moved)
            columns = [column.take(indices) for column in columns]
            tombstones = None if tombstones is None else tombstones[moved]
        run = SortedRun(orders, columns, len(self._schema.keys), tombstones)
        assert not superseded(orders, run.keys, np.arange(run.rows)).any(), "a key occurs twice in one update"
        self._change(run)

    def count_within(self, spans: KeySpans) -> Rows:
        """How many entries each span of orders has at most; superseded ones count."""
        return count_within(self._newest_first(), spans)

    def first_within(self, spans: KeySpans) -> Orders:
        """The lowest order in each span; too low if that entry was deleted, never too high."""
        return first_within(self._newest_first(), spans)

    def last_within(self, spans: KeySpans) -> Orders:
        """The highest order in each span; too high if that entry was deleted, never too low."""
        return last_within(self._newest_first(), spans)

    def within(self, spans: KeySpans) -> Entries | None:
        """The entries of some spans of orders; None: there are none."""
        run = read_within(self._newest_first(), spans)
        if run is None:
            return None
        keys = pa.RecordBatch.from_arrays(list(run.columns[: run.key_count]), schema=self._schema.keys)
        return Entries(run.orders, keys, pa.RecordBatch.from_arrays(list(run.values), schema=self._schema.values))

    def delete(self, entries: Entries) -> None:
        """Deletes entries that `within` returned."""
        assert not self._flushed, "state is flushed once, at the end of the epoch"
        if entries.rows:
            nothing = [pa.nulls(entries.rows, kind) for kind in self._schema.values.types]
            deleted = np.ones(entries.rows, np.bool_)
            self._change(SortedRun(entries.orders, [*entries.keys, *nothing], len(self._schema.keys), deleted))

    def _change(self, run: SortedRun) -> None:
        older = tiers_to_merge([older.bytes for older in self._changes], run.bytes, floor=_SMALL_RUN_BYTES)
        if older:
            run = merge([run, *reversed(self._changes[-older:])], drop_deleted=False)
            del self._changes[-older:]
        self._changes.append(run)

    def flush(self, path: str | Callable[[], str]) -> StateChange:
        """Writes the epoch's changes as one file. Without changes it writes nothing and does not ask for a path."""
        assert not self._flushed, "state is flushed once, at the end of the epoch"
        self._flushed = True
        if not self._changes:
            return StateChange(None, {})
        rows = sum(file.rows for file in self._files)
        row_bytes = max(1, sum(file.bytes for file in self._files) // max(1, rows))
        cut = sections(self._groups, rows, row_bytes)
        sizes = np.array([file.rows_in(cut) for file in self._files], np.int64).reshape(len(self._files), len(cut))
        merges = plan_merges(sizes, self._changed_in(cut), row_bytes)
        added = self._write(path, [(merge, self._levels(merge, cut)) for merge in merges], cut)
        replaced = {
            # Where a file has no rows, anything supersedes it.
            file.path: joined(cut[m.section] for m in merges if m.kept <= number or not sizes[number, m.section])
            for number, file in enumerate(self._files)
        }
        return StateChange(added, {path: ranges for path, ranges in replaced.items() if ranges})

    def _changed_in(self, cut: Sequence[KeyGroupRange]) -> npt.NDArray[np.int64]:
        spans = [order_span(groups, self._max_parallelism) for groups in cut]
        counts = [[sum(part.rows for part in run.between(*span)) for span in spans] for run in self._changes]
        return np.array(counts, np.int64).sum(axis=0)

    def _levels(self, merge: SectionMerge, cut: Sequence[KeyGroupRange]) -> list[Level]:
        """Newest first: the changes and the rows of files that a section's merge takes."""
        span = order_span(cut[merge.section], self._max_parallelism)
        changes = [part for run in reversed(self._changes) for part in run.between(*span)]
        files = [file.restricted(cut[merge.section]) for file in reversed(self._files[merge.kept :])]
        return [*changes, *(file for file in files if file.rows)]

    def expire(self, column: str, before: npt.NDArray[np.int64]) -> None:
        """Drops entries whose `column` is below the bound of their key group. They go when files are merged; until then
        lookups find them."""
        names = [*self._schema.keys.names, *self._schema.values.names]
        self._expiry = (len(names) - 1 - names[::-1].index(column), before)

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Live entries, keys then values, by key group; changes that were not flushed included."""
        schema = pa.schema([*self._schema.keys, *self._schema.values])
        for run in merged_chunks(list(self._newest_first()), drop_deleted=True):
            yield pa.RecordBatch.from_arrays(list(run.columns), schema=schema)

    def close(self) -> None:
        self._changes.clear()
        for file in self._files:
            file.close()

    def _newest_first(self) -> Iterator[Level]:
        yield from reversed(self._changes)
        yield from reversed(self._files)

    def _key_columns(self, keys: pa.RecordBatch, rows: int) -> list[pa.Array]:
        assert keys.schema.types == self._schema.keys.types, (keys.schema, self._schema.keys)
        assert keys.num_rows == rows or not keys.num_columns
        return [normalise(column) for column in keys.columns]

    def _sorted(self, hashes: npt.NDArray[np.int64]) -> Sorted:
        """The orders of hashes. Keeps the last ones, because an update usually repeats those of its lookup."""
        if len(hashes) != len(self._last_hashes) or not np.array_equal(hashes, self._last_hashes):
            self._last_hashes = hashes.copy()
            self._last_sort = sort_orders(order_of(self._last_hashes, self._max_parallelism))
        orders = self._last_sort.orders
        first, last = self._span
        if len(orders) and not (first <= orders[0] and orders[-1] <= last):
            raise CorruptFile(
                "a record has a key of another subtask",
                cause="a segment was forged: the hashes of its rows are not of the key groups that its index names",
                next_step="restore the folder from a copy that you trust, or an older checkpoint (restore=N)",
            )
        return self._last_sort

    def _write(
        self,
        path: str | Callable[[], str],
        merges: Sequence[tuple[SectionMerge, Sequence[Level]]],
        cut: Sequence[KeyGroupRange],
    ) -> StateFile | None:
        """One file with all rows of some sections; None if no rows are left."""
        with_deleted = any(
            not merge.last and (self._expiry is not None or any(level.may_hold_deleted for level in levels))
            for merge, levels in merges
        )
        schema = file_schema(self._schema, with_deleted=with_deleted)
        writer: ArrowFileWriter | None = None
        written = set[int]()
        try:
            for merge, levels in merges:
                for merged in merged_chunks(levels, drop_deleted=merge.last):
                    run = self._without_expired(merged, drop_deleted=merge.last)
                    if not run.rows:
                        continue
                    if writer is None:
                        name = path if isinstance(path, str) else path()
                        writer = ArrowFileWriter(self._store, name, schema, kind=STATE_KIND, compression=None, meta={})
                    writer.write(to_batch(run, schema), groups_of_orders(run.orders, self._max_parallelism))
                    written.add(merge.section)
            if writer is None:
                return None
            info = writer.close()
        except BaseException:
            if writer is not None:
                writer.abort()
            raise
        ranges = joined(cut[section] for section in sorted(written))
        return StateFile(path=info.path, rows=info.rows, bytes=info.bytes, checksum=info.checksum, ranges=ranges)

    def _without_expired(self, run: SortedRun, *, drop_deleted: bool) -> SortedRun:
        """Drops expired rows. If older files may have the key, a tombstone takes the place of the row."""
        if self._expiry is None:
            return run
        column, before = self._expiry
        moments = run.columns[column]
        horizons = before[groups_of_orders(run.orders, self._max_parallelism) - self._groups.lo]
        never = moments.is_null().to_numpy(zero_copy_only=False)
        expired = ~never & (moments.fill_null(0).to_numpy() < horizons)
        if not expired.any():
            return run
        if not drop_deleted:
            deleted = expired if run.deleted is None else run.deleted | expired
            return SortedRun(run.orders, run.columns, run.key_count, deleted)
        kept = np.flatnonzero(~expired)
        indices = pa.array(kept)
        return SortedRun(run.orders[kept], [part.take(indices) for part in run.columns], run.key_count)
