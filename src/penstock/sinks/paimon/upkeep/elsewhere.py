"""Merges buckets in tasks of a cluster: one bucket per task, described by bytes, answered by bytes.

A task writes files beside those of the table and names them in its answer. Nothing counts before the driver publishes
them. Files of a task that failed or was tried twice are named by nobody; orphan cleanup finds them.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.table.row.generic_row import GenericRow
from pypaimon.write.commit_message import CommitMessage

from penstock.sinks.paimon import private
from penstock.sinks.paimon.upkeep.compact import Make, Planned, Rewrite
from penstock.sinks.paimon.upkeep.files import ADD, Entry, KeptTable
from penstock.sinks.paimon.upkeep.keyed import merge_unit
from penstock.sinks.paimon.upkeep.runs import Group, Unit
from penstock.sinks.upkeep import RunTasks

ELSEWHERE_BYTES = 256 << 20
"""From so much on, rewriting is worth a job: the driver has other work, and one core."""


class _Group(msgspec.Struct):
    parts: list[list[str]]
    level: int
    drops_deletes: bool
    above: list[str]


class _Task(msgspec.Struct):
    warehouse: str
    table: str
    files: str
    groups: list[_Group]


def made_elsewhere(warehouse: str, name: str, table: KeptTable, run: RunTasks) -> Make:
    """Merges all planned buckets at once, each in a task of its own."""

    def make(planned: Sequence[Planned]) -> Iterator[Rewrite]:
        units = [one for one in planned if isinstance(one, Unit)]
        tasks = [msgspec.json.encode(_described(warehouse, name, table, unit)) for unit in units]
        for unit, answer in zip(units, run(merge_described, tasks), strict=True):
            yield Rewrite(unit, _entries(table, answer))

    return make


def merge_described(task: bytes) -> bytes:
    """What a task of the cluster does."""
    told = msgspec.json.decode(task, type=_Task)
    table = KeptTable(told.warehouse, told.table)
    entries = {str(entry.file.file_name): entry for entry in _entries(table, base64.b64decode(told.files))}
    groups = [
        Group(
            tuple(tuple(entries[name] for name in part) for part in group.parts),
            group.level,
            group.drops_deletes,
            tuple(entries[name] for name in group.above),
        )
        for group in told.groups
    ]
    return _encoded(table, merge_unit(table, Unit(tuple(groups)), lambda: False))


def _described(warehouse: str, name: str, table: KeptTable, unit: Unit) -> _Task:
    above = [entry for group in unit.groups for entry in group.above]
    groups = [
        _Group([_names(part) for part in group.parts], group.level, group.drops_deletes, _names(group.above))
        for group in unit.groups
    ]
    files = {entry.file.file_name: entry for entry in [*unit.inputs, *above]}
    return _Task(warehouse, name, base64.b64encode(_encoded(table, list(files.values()))).decode(), groups)


def _names(entries: Iterable[Entry]) -> list[str]:
    return [str(entry.file.file_name) for entry in entries]


def _encoded(table: KeptTable, entries: Sequence[Entry]) -> bytes:
    """Entries of one bucket as a commit message of pypaimon's; nothing for none."""
    if not entries:
        return b""
    first = entries[0]
    files = [entry.file for entry in entries]
    message = CommitMessage(tuple(first.partition.values), first.bucket, files, total_buckets=first.total_buckets)
    return private.encode(table.table, message)


def _entries(table: KeptTable, payload: bytes) -> list[Entry]:
    if not payload:
        return []
    message = private.decode(table.table, payload)
    partition = GenericRow(list(message.partition), table.table.partition_keys_fields)
    return [ManifestEntry(ADD, partition, message.bucket, message.total_buckets, file) for file in message.new_files]
