"""Merges sorted runs of one bucket into fewer, larger files: the same rows for every reader.

Rows keep their sequence numbers, so that a row that is committed later is newer than all that were merged, and a row of
another bucket's task does not matter. Runs are read side by side, a piece of each at a time: memory does not grow with
the bucket.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pypaimon.manifest.schema.manifest_entry import ManifestEntry

from penstock.errors import CorruptFile
from penstock.sinks.paimon import fold, private
from penstock.sinks.paimon.files import KEY_PREFIX, Folds, KeyedWriter, keyed_schema
from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.stats import maybe_nan_columns
from penstock.sinks.paimon.upkeep.evolved import Origins, as_now, origins_of
from penstock.sinks.paimon.upkeep.files import ADD, Entry, KeptTable
from penstock.sinks.paimon.upkeep.rewrite import Stopped
from penstock.sinks.paimon.upkeep.rolling import RollingFiles
from penstock.sinks.paimon.upkeep.runs import Group, Unit, keys_of
from penstock.sinks.rowkind import takes_back
from penstock.sinks.runs import run_starts

_ROWS_AT_ONCE = 1 << 20
"""Rows in memory at a time, over all runs of a bucket."""
_BATCH_ROWS_MIN = 1 << 12
_RUN = "_penstock_run"


def merge_unit(table: KeptTable, unit: Unit, stopping: Callable[[], bool]) -> list[Entry]:
    """The entries that stand for the inputs of the unit from now on. New files are durable.

    Raises: `Stopped`, with nothing left behind; `CorruptFile`.
    """
    first = unit.inputs[0]
    made: list[Entry] = []
    try:
        for group in unit.groups:
            if group.raises_only:
                made.append(_raised(group.inputs[0], group.level))
                continue
            files = _merged(table, group, stopping)
            made += [ManifestEntry(ADD, first.partition, first.bucket, first.total_buckets, file) for file in files]
    except BaseException:
        table.remove(new_files(table, unit.inputs, made))
        raise
    return made


def new_files(table: KeptTable, inputs: Iterable[Entry], outputs: Iterable[Entry]) -> list[Any]:
    """Paths of the outputs that are no inputs on another level."""
    names = {entry.file.file_name for entry in inputs}
    return [path for entry in outputs if entry.file.file_name not in names for path in table.data_paths(entry)]


def _raised(entry: Entry, level: int) -> Entry:
    return dataclasses.replace(entry, kind=ADD, file=dataclasses.replace(entry.file, level=level))


def _merged(table: KeptTable, group: Group, stopping: Callable[[], bool]) -> list[Any]:
    first = group.inputs[0]
    partition = tuple(first.partition.values)
    folding = _Folding(table, group)
    nan_columns = maybe_nan_columns(folding.columns, (entry.file for entry in group.inputs))
    files = RollingFiles(table, partition, first.bucket, group.level, nan_columns)
    try:
        for part in group.parts:
            for rows in folding.rows_of(part):
                if stopping():
                    raise Stopped
                files.write(rows)
        return files.finish()
    except BaseException:
        files.abort()
        raise


class _Folding:
    """Rows of one rewrite as they are to be written."""

    def __init__(self, table: KeptTable, group: Group) -> None:
        self._table, self._group = table, group
        self.columns = private.columns_of(table.table)
        first = group.inputs[0]
        self._keys = [KEY_PREFIX + name for name in table.table.trimmed_primary_keys]
        self._schema = keyed_schema(table.table.trimmed_primary_keys, self.columns)
        folds = Folds(table.table, Kind.of(table.table))
        options = table.table.options
        self._writer = KeyedWriter(table.table, tuple(first.partition.values), first.bucket, options, folds)
        self._old_keys: pa.Table | None = None

    def rows_of(self, part: Sequence[Entry]) -> Iterator[pa.Table]:
        """The rows of files whose keys meet, folded, by ascending keys."""
        runs = _as_runs(part)
        batch_rows = max(_BATCH_ROWS_MIN, _ROWS_AT_ONCE // len(runs))
        readers = [chain.from_iterable(self._read(entry, batch_rows) for entry in run) for run in runs]
        for rows in side_by_side(readers, self._writer.in_order, self._keys):
            kept = self._without_old(self._writer.folded(rows))
            if self._group.drops_deletes:
                kept = kept.filter(pa.array(~takes_back(np.asarray(kept.column(fold.KIND)))))
            if kept.num_rows:
                yield kept

    def _without_old(self, rows: pa.Table) -> pa.Table:
        """Without keys that older files hold, which stay: of a first-row table those are the first."""
        if not self._group.above:
            return rows
        if self._old_keys is None:
            paths = [path for entry in self._group.above for path in self._table.data_paths(entry)]
            # One file at a time: folders named day=... would add columns of their own.
            self._old_keys = pa.concat_tables(pq.ParquetFile(path).read(columns=self._keys) for path in paths)
        wanted = rows.select(self._keys).append_column(_RUN, pa.array(np.arange(rows.num_rows)))
        new = wanted.join(self._old_keys.cast(wanted.select(self._keys).schema), self._keys, join_type="left anti")
        places = new.column(_RUN)
        return rows.take(places.take(pc.sort_indices(places)))

    def _read(self, entry: Entry, batch_rows: int) -> Iterator[pa.Table]:
        (path,) = self._table.data_paths(entry)
        rows = 0
        with pq.ParquetFile(path) as file:
            origins = origins_of(self._table, entry)
            for batch in file.iter_batches(batch_rows):
                rows += batch.num_rows
                yield self._converted(pa.Table.from_batches([batch]), origins)
        if rows != entry.file.row_count:
            raise CorruptFile(
                f"{path} holds {rows} rows, the table says {entry.file.row_count}",
                cause="a data file was changed after it was committed",
                next_step="compare the table with its source; the files were left as they are",
                path=path,
            )

    def _converted(self, rows: pa.Table, origins: Origins) -> pa.Table:
        arrays = []
        for field in self._schema:
            prefix = KEY_PREFIX if field.name.startswith(KEY_PREFIX) and field.name in self._keys else ""
            name = field.name[len(prefix) :]
            if name not in origins:  # a column of ours: sequence number, kind of the row
                arrays.append(rows.column(field.name))
            elif (origin := origins[name]) is None:
                arrays.append(pa.nulls(rows.num_rows, field.type))
            else:
                arrays.append(as_now(rows.column(prefix + origin[0].name), *origin, field))
        return pa.Table.from_arrays(arrays, schema=self._schema)


def _as_runs(part: Sequence[Entry]) -> list[list[Entry]]:
    """Files of a level above 0 follow each other; each of level 0 is a run of its own."""
    levels = sorted({int(entry.file.level) for entry in part} - {0})
    above = [sorted((e for e in part if e.file.level == level), key=lambda e: keys_of(e).low) for level in levels]
    return [[entry] for entry in part if entry.file.level == 0] + above


def side_by_side(
    runs: Sequence[Iterator[pa.Table]], in_order: Callable[[pa.Table], pa.Table], keys: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of several sorted runs in one order, in pieces that hold all rows of each of their keys.

    A piece ends with the smallest of the largest keys that were read of the runs: no run has more of it, as within a
    run no key is there twice.
    """
    open_ = dict(enumerate(runs))
    waiting = set(open_)
    pool: list[pa.Table] = []
    while open_ or pool:
        for number in sorted(waiting):
            rows = next((rows for rows in open_[number] if rows.num_rows), None)
            if rows is None:
                del open_[number]
            else:
                pool.append(rows.append_column(_RUN, pa.array(np.full(rows.num_rows, number, dtype=np.int32))))
        if not pool:
            return
        rows = in_order(pa.concat_tables(pool))
        end = _end_of_whole_keys(rows, open_, keys)
        yield rows.slice(0, end).drop_columns([_RUN])
        pool = [rows.slice(end)] if end < rows.num_rows else []
        there = set(np.unique(np.asarray(pool[0].column(_RUN))).tolist()) if pool else set()
        waiting = set(open_) - there


def _end_of_whole_keys(rows: pa.Table, open_: Iterable[int], keys: Sequence[str]) -> int:
    """Behind the last row of which all runs that go on have read everything."""
    numbers = np.asarray(rows.column(_RUN))
    lasts = [int(np.flatnonzero(numbers == number)[-1]) for number in open_]
    if not lasts:
        return rows.num_rows
    starts = run_starts([rows.column(name) for name in keys])
    following = int(np.searchsorted(starts, min(lasts), side="right"))
    return int(starts[following]) if following < len(starts) else rows.num_rows
