"""Migrations at a start: tables of state are made anew by functions of the user, before the driver takes over.

New files get the generation after that of the checkpoint, so neither a running driver nor this one takes them for
garbage. A crash leaves files that no manifest names; the collector of a later driver removes them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import pyarrow as pa

from penstock.graph.pipeline import Pipeline
from penstock.observe.tables.shapes import state_table
from penstock.protocol.evolve import Evolution
from penstock.protocol.ids import next_checkpoint, next_generation
from penstock.protocol.keygroups import range_of
from penstock.protocol.layout import STATE, AttemptId, DataFile
from penstock.protocol.manifest import Manifest, StateFile
from penstock.records import MigratedPart, Migration, MigrationTask, StateSchema
from penstock.store.base import Store

PART_BYTES = 64 << 20
"""Of stored state for one task: large enough to be worth a task, small enough to keep all slots busy until the end."""


@dataclass(frozen=True, slots=True)
class Migrated:
    """A table after its migration."""

    table: str
    rows: int
    bytes: int
    files: tuple[StateFile, ...]
    duration_s: float


@dataclass(frozen=True, slots=True)
class MigrationWork:
    """Parts of one table, all independent."""

    tasks: Sequence[MigrationTask]
    function: Migration
    origin: Store
    target: Store


RunMigration: TypeAlias = Callable[[MigrationWork], Sequence[MigratedPart]]


def no_migrations(work: MigrationWork) -> Sequence[MigratedPart]:
    """Of surroundings in which nothing is migrated."""
    raise AssertionError(f"nobody can migrate {len(work.tasks)} parts here")


def migrate(
    stored: Manifest,
    evolution: Evolution,
    pipeline: Pipeline,
    functions: Mapping[str, Migration],
    stores: tuple[Store, Store],
    run: RunMigration,
) -> tuple[Migrated, ...]:
    """Makes the tables anew that the decision names. `stores`: where the checkpoint lies, where the query will be.

    Raises: `MigrationFailed`; nothing was changed then.
    """
    schemas = {table.name: table.schema for stage in pipeline.stages for table in stage.tables}
    origin, target = stores
    done = []
    for name, old_name in evolution.migrated.items():
        started = time.monotonic()
        tasks = tuple(_tasks(stored, origin, name, old_name, schemas[name]))
        parts = run(MigrationWork(tasks, functions[name], origin, target))
        files = tuple(part.file for part in parts if part.file is not None)
        size = sum(file.bytes for file in files)
        rows = sum(part.rows for part in parts)
        done.append(Migrated(name, rows, size, files, time.monotonic() - started))
    return tuple(done)


def with_migrated(manifest: Manifest, migrated: Sequence[Migrated]) -> Manifest:
    """The checkpoint with the new files, and with a count of what was made anew."""
    state, counters = dict(manifest.state), dict(manifest.counters)
    for table in migrated:
        state[table.table] = table.files
        counters[f"{table.table}.migrated"] = counters.get(f"{table.table}.migrated", 0) + table.rows
    return msgspec.structs.replace(manifest, state=state, counters=counters)


def without_migrated(manifest: Manifest, evolution: Evolution) -> Manifest:
    """The checkpoint without the files that are made anew."""
    kept = {name: files for name, files in manifest.state.items() if name not in evolution.migrated}
    return msgspec.structs.replace(manifest, state=kept)


def _tasks(stored: Manifest, origin: Store, name: str, old_name: str, new: StateSchema) -> Iterator[MigrationTask]:
    operator, _, part = old_name.partition("/")
    if operator not in stored.shape.operators:
        operator, part = old_name, ""
    table = state_table(stored, origin, operator, part)
    columns = (*table.schema.keys, *table.schema.values)
    count = len(new.keys)
    old = StateSchema(pa.schema(columns[:count]), pa.schema(columns[count:]), may_grow=True)
    size = sum(file.bytes for file in table.files)
    groups = stored.max_parallelism
    parts = max(1, min(groups, -(-size // PART_BYTES)))
    run = uuid.uuid4().hex[:12]
    for number in range(parts):
        by = AttemptId(next_checkpoint(stored.checkpoint), next_generation(stored.generation), number, f"m{run}")
        yield MigrationTask(
            name, old, new, table.files, range_of(number, parts, groups), groups, DataFile(STATE, name, by, 0).path
        )
