"""The data files of a table, kept up to date by reading only what new snapshots changed."""

from __future__ import annotations

from typing import Any

from penstock.protocol.upkeep import SMALL_SHARE
from penstock.sinks.paimon.upkeep.files import ADD, DELETE, UPKEEP_USER, Entry, KeptTable, Snapshot
from penstock.sinks.paimon.upkeep.merge import identity

Place = tuple[tuple[Any, ...], int]
"""A partition and a bucket."""


_LOOK_BACK = 200
"""How many snapshots are read at most to find a compaction of another engine."""


class LiveFiles:
    """Files of the newest snapshot with their statistics, by place and name; those that `keeps` wants."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.foreign_at_ms: int | None = None
        self.commits = 0
        """How many snapshots were seen that are no compactions."""
        self.places: dict[Place, dict[str, Entry]] = {}

    def keeps(self, _table: KeptTable, _entry: Entry) -> bool:
        return True

    def advance(self, table: KeptTable) -> None:
        """Reads on to the newest snapshot; from the beginning if the way there is not known."""
        latest = table.latest()
        if latest is not None:
            self._look_for_others(table, latest)
        if latest is None or not self._follow(table, latest):
            self.places = {}
            self._add(table, [] if latest is None else _live(table, latest))
        self.snapshot = latest

    def _look_for_others(self, table: KeptTable, latest: Snapshot) -> None:
        """When another engine compacted last, and how many commits there were, as far as snapshots since the last look
        tell."""
        seen = 0 if self.snapshot is None else int(self.snapshot.id)
        for number in range(int(latest.id), max(seen, int(latest.id) - _LOOK_BACK), -1):
            snapshot = latest if number == latest.id else table.snapshot(number)
            if snapshot is None:
                return
            if snapshot.commit_kind != "COMPACT":
                self.commits += 1
            elif snapshot.commit_user != UPKEEP_USER:
                self.foreign_at_ms = max(self.foreign_at_ms or 0, int(snapshot.time_millis))

    def _follow(self, table: KeptTable, latest: Snapshot) -> bool:
        if self.snapshot is None:
            return False
        changes = changes_since(table, self.snapshot, latest, with_stats=True)
        if changes is None:
            return False
        for entry in changes:
            if entry.kind == DELETE:
                self.places.get(place(entry), {}).pop(entry.file.file_name, None)
        self._add(table, [entry for entry in changes if entry.kind == ADD])
        return True

    def _add(self, table: KeptTable, entries: list[Entry]) -> None:
        for entry in entries:
            if self.keeps(table, entry):
                self.places.setdefault(place(entry), {})[entry.file.file_name] = entry


class SmallFiles(LiveFiles):
    """Files that compaction of an append table may rewrite."""

    def keeps(self, _table: KeptTable, _entry: Entry) -> bool:
        small = _entry.file.file_size < SMALL_SHARE * _table.data_target_bytes()
        return bool(small and is_whole(_entry.file) and not _entry.file.delete_row_count)


def place(entry: Entry) -> Place:
    return tuple(entry.partition.values), int(entry.bucket)


def changes_since(
    table: KeptTable, known: Snapshot, latest: Snapshot, *, with_stats: bool = False
) -> list[Entry] | None:
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
        changes += table.delta(snapshot, with_stats=with_stats)
    return _net(changes)


def _live(table: KeptTable, snapshot: Snapshot) -> list[Entry]:
    listed = [e for m in table.manifests(snapshot) for e in table.entries(m, with_stats=True)]
    return [entry for entry in _net(listed) if entry.kind == ADD]


def _net(entries: list[Entry]) -> list[Entry]:
    deleted = {identity(entry) for entry in entries if entry.kind == DELETE}
    return [entry for entry in entries if entry.kind == DELETE or identity(entry) not in deleted]


def is_whole(file: Any) -> bool:
    """Whether the file is rows and nothing else: whole columns, inside the table, nothing beside it."""
    odd = (file.external_path, file.write_cols, file.extra_files, file.embedded_index)
    return not any(odd) and file.first_row_id is None and file.file_name.endswith(".parquet")
