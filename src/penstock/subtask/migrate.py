"""Migrating a table of state: a function of the user makes new rows of old ones, key by key.

Files are read in sections of key groups and in chunks, so memory does not depend on the size of the state. The function
may change values only: every key stays, in its place, so the new file is sorted as the old ones are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing

import numpy as np
import pyarrow as pa

from penstock.errors import MigrationFailed
from penstock.protocol.keygroups import joined
from penstock.protocol.manifest import StateFile
from penstock.records import MigratedPart, Migration, MigrationTask
from penstock.state.compact import merged_chunks
from penstock.state.files import FileRun
from penstock.state.keys import KeyColumn, equal_keys
from penstock.state.layout import STATE_KIND, file_schema, groups_of_orders, to_batch
from penstock.state.runs import SortedRun
from penstock.state.tiers import sections
from penstock.store.arrowfile import ArrowFileWriter
from penstock.store.base import Store
from penstock.text import printable

OWN_PREFIX = "__"
"""Columns of Penstock's own, which a function need not return."""
_ROWS_SHOWN = 3


def migrate_part(task: MigrationTask, function: Migration, origin: Store, target: Store) -> MigratedPart:
    """Raises: `MigrationFailed`, `MissingFile`, `CorruptFile`, `StorageFailed`."""
    schema = file_schema(task.new, with_deleted=False)
    writer: ArrowFileWriter | None = None
    try:
        for run in _runs(task, origin):
            made = _made(task, function, run)
            if writer is None:
                writer = ArrowFileWriter(target, task.path, schema, kind=STATE_KIND, compression=None, meta={})
            writer.write(to_batch(made, schema), groups_of_orders(made.orders, task.max_parallelism))
        if writer is None:
            return MigratedPart(task.table, None, 0)
        info = writer.close()
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    file = StateFile(
        path=info.path, rows=info.rows, bytes=info.bytes, checksum=info.checksum, ranges=joined([task.groups])
    )
    return MigratedPart(task.table, file, info.rows)


def _runs(task: MigrationTask, store: Store) -> Iterator[SortedRun]:
    """The live rows, in chunks, by key group."""
    with ExitStack() as opened:
        files = [
            opened.enter_context(closing(FileRun.open(store, file, task.groups, task.old, task.max_parallelism)))
            for file in reversed(task.files)
            if any(part.intersect(task.groups) for part in file.ranges)
        ]
        rows = sum(file.rows for file in files)
        row_bytes = max(1, sum(file.bytes for file in files) // max(1, rows))
        for section in sections(task.groups, rows, row_bytes):
            levels = [level for file in files if (level := file.restricted(section)).rows]
            if levels:
                yield from merged_chunks(levels, drop_deleted=True)


def _made(task: MigrationTask, function: Migration, run: SortedRun) -> SortedRun:
    names = [*task.old.keys.names, *task.old.values.names]
    before = pa.Table.from_arrays(list(run.columns), names=names)
    try:
        after = function(before)
    except Exception as error:
        raise _failed(
            task,
            f"the function raised {type(error).__name__}: {error} on rows such as {_shown(before)}",
            cause="the function does not expect these rows",
            next_step="repair it; pen.open(folder).state(name, raw=True) gives the same rows to try it on",
        ) from error
    if isinstance(after, pa.RecordBatch):
        after = pa.Table.from_batches([after])
    if not isinstance(after, pa.Table):
        raise _failed(
            task,
            f"the function returned {type(after).__name__}",
            cause="it has to return a table of the new rows",
            next_step="return a pyarrow.Table",
        )
    columns = _columns(task, before, after)
    _require_keys(task, run, columns, after.num_rows)
    return SortedRun(run.orders, columns, len(task.new.keys))


def _columns(task: MigrationTask, before: pa.Table, after: pa.Table) -> list[pa.Array]:
    """The columns that the operator wants, in its order."""
    columns = []
    for field in (*task.new.keys, *task.new.values):
        if field.name in after.column_names:
            found = after.column(field.name)
        elif field.name.startswith(OWN_PREFIX) and before.num_rows == after.num_rows:
            same = field.name in before.column_names and before.column(field.name).type == field.type
            found = before.column(field.name) if same else pa.chunked_array([pa.nulls(after.num_rows, field.type)])
        else:
            raise _other_columns(task, after)
        if found.type != field.type:
            raise _other_columns(task, after)
        columns.append(found.combine_chunks() if found.num_chunks != 1 else found.chunk(0))
    return columns


def _other_columns(task: MigrationTask, after: pa.Table) -> MigrationFailed:
    wanted = ", ".join(f"{field.name} {field.type}" for field in (*task.new.keys, *task.new.values))
    found = ", ".join(f"{field.name} {field.type}" for field in after.schema)
    return _failed(
        task,
        f"the function returned the columns ({found}), the operator's state has ({wanted})",
        cause="a column is missing, or has another name or type",
        next_step="return exactly these columns; cast with column.cast(type)",
    )


def _require_keys(task: MigrationTask, run: SortedRun, columns: Sequence[pa.Array], rows: int) -> None:
    count = len(task.new.keys)
    if rows != run.rows:
        raise _failed(
            task,
            f"the function got {run.rows} rows and returned {rows}",
            cause="it drops keys or makes new ones",
            next_step="return one row for each key; to let keys go, set values that your operator takes for empty",
        )
    if not count:
        return
    was = tuple(KeyColumn(column) for column in run.columns[:count])
    now = tuple(KeyColumn(column) for column in columns[:count])
    places = np.arange(rows)
    equal = equal_keys(was, places, now, places)
    if not equal.all():
        first = int((~equal).argmax())
        raise _failed(
            task,
            f"the function moved a row from key {_key(run.columns[:count], first)} to {_key(columns[:count], first)}",
            cause="it changes key columns, or the order of rows",
            next_step="leave key columns and the order of rows as they are",
        )


def _key(columns: Sequence[pa.Array], row: int) -> str:
    return printable(str(tuple(column[row].as_py() for column in columns)))[:200]


def _shown(table: pa.Table) -> str:
    return printable(str(table.slice(0, _ROWS_SHOWN).to_pylist()))[:500]


def _failed(task: MigrationTask, seen: str, *, cause: str, next_step: str) -> MigrationFailed:
    return MigrationFailed(f"state {task.table}: {seen}", cause=cause, next_step=next_step, table=task.table)
