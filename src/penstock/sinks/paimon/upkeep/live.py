"""The small data files of a table, kept up to date by reading only what new snapshots changed."""

from __future__ import annotations

from typing import Any

from penstock.protocol.upkeep import SMALL_SHARE
from penstock.sinks.paimon.upkeep.files import ADD, DELETE, Entry, KeptTable, Snapshot
from penstock.sinks.paimon.upkeep.merge import identity

Place = tuple[tuple[Any, ...], int]
"""A partition and a bucket."""


class SmallFiles:
    """Files that compaction may rewrite, by place and name. Large ones are forgotten as soon as they are seen."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.places: dict[Place, dict[str, Entry]] = {}

    def advance(self, table: KeptTable) -> None:
        """Reads on to the newest snapshot; from the beginning if the way there is not known."""
        latest = table.latest()
        if latest is None or not self._follow(table, latest):
            self.places = {}
            self._add(table, [] if latest is None else _live(table, latest))
        self.snapshot = latest

    def _follow(self, table: KeptTable, latest: Snapshot) -> bool:
        changes = None if self.snapshot is None else changes_since(table, self.snapshot, latest)
        if changes is None:
            return False
        for entry in changes:
            if entry.kind == DELETE:
                self.places.get(place(entry), {}).pop(entry.file.file_name, None)
        self._add(table, [entry for entry in changes if entry.kind == ADD])
        return True

    def _add(self, table: KeptTable, entries: list[Entry]) -> None:
        below = SMALL_SHARE * table.data_target_bytes()
        for entry in entries:
            if entry.file.file_size < below and _plain(entry.file):
                self.places.setdefault(place(entry), {})[entry.file.file_name] = entry


def place(entry: Entry) -> Place:
    return tuple(entry.partition.values), int(entry.bucket)


def changes_since(table: KeptTable, known: Snapshot, latest: Snapshot) -> list[Entry] | None:
    """What the snapshots after `known` added and removed, without what they did both; None when one of them is gone,
    or the table was rolled back."""
    there = table.snapshot(known.id)
    if there is None or there.uuid != known.uuid or latest.id < known.id:
        return None
    changes: list[Entry] = []
    for number in range(known.id + 1, latest.id + 1):
        snapshot = latest if number == latest.id else table.snapshot(number)
        if snapshot is None:
            return None
        changes += table.delta(snapshot)
    return _net(changes)


def _live(table: KeptTable, snapshot: Snapshot) -> list[Entry]:
    return [e for e in _net([e for m in table.manifests(snapshot) for e in table.entries(m)]) if e.kind == ADD]


def _net(entries: list[Entry]) -> list[Entry]:
    deleted = {identity(entry) for entry in entries if entry.kind == DELETE}
    return [entry for entry in entries if entry.kind == DELETE or identity(entry) not in deleted]


def _plain(file: Any) -> bool:
    """Whether the file is rows and nothing else: whole columns, inside the table, nothing beside it."""
    odd = (file.external_path, file.write_cols, file.extra_files, file.embedded_index, file.delete_row_count)
    return not any(odd) and file.first_row_id is None and file.file_name.endswith(".parquet")
