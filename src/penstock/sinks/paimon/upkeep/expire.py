"""Lets old snapshots go, with the files that only they needed.

Oldest first, one at a time: first the snapshot itself disappears, then its files. So no snapshot is ever there without
all its files; a crash leaves at most the files of one snapshot, which orphan cleanup finds. What a tag or a branch
refers to stays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path

from penstock.protocol.upkeep import Kept, SnapshotAge, first_kept
from penstock.sinks.paimon.upkeep.files import ADD, DELETE, KeptTable, Snapshot
from penstock.sinks.upkeep import Upkeep, UpkeepReport

SINK_USERS = "penstock-"
"""How the commit users of sinks begin: the newest snapshot of each proves what its query committed."""


class Ages:
    """Number, user and time of each snapshot; each is read once, as snapshots do not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], SnapshotAge] = {}

    def read(self, table: KeptTable) -> list[SnapshotAge]:
        known: dict[tuple[int, int], SnapshotAge] = {}
        for file in sorted(table.snapshot_times().items()):
            if file in self._known:
                known[file] = self._known[file]
            elif (snapshot := table.snapshot(file[0])) is not None:
                known[file] = SnapshotAge(file[0], str(snapshot.commit_user), int(snapshot.time_millis))
        self._known = known
        return list(known.values())


def plan_expiry(
    table: KeptTable,
    ages: list[SnapshotAge],
    policy: Upkeep,
    *,
    now_ms: int,
    own_user: str | None,
    forgotten: Collection[str] = (),
) -> Kept | None:
    """The oldest snapshot to keep; None when nothing may go, since `own_user` has not committed yet."""
    users = {age.user for age in ages if age.user.startswith(SINK_USERS)} - set(forgotten)
    if own_user is not None:
        if all(age.user != own_user for age in ages):
            return None
        users.add(own_user)
    return first_kept(ages, table.retention(policy), now_ms=now_ms, users=users, consumers=table.consumers())


def expire(table: KeptTable, first: int, stopping: Callable[[], bool]) -> UpkeepReport:
    """Lets all snapshots below `first` go."""
    ids = [number for number in table.snapshot_ids() if number < first]
    if not ids or table.snapshot(first) is None:
        return UpkeepReport()
    pins = ProtectedFiles(table)
    table.set_earliest(first)
    expired = files = size = 0
    for number, following in zip(ids, [*ids[1:], first], strict=True):
        if stopping():
            break
        old, new = table.snapshot(number), table.snapshot(following)
        if old is None or new is None:
            continue
        if not pins.current():
            pins = ProtectedFiles(table)
        doomed = pins.spare(_unneeded(table, old, new))
        table.remove([table.root / "snapshot" / f"snapshot-{number}"])
        removed = table.remove(sorted(doomed))
        expired, files, size = expired + 1, files + removed[0], size + removed[1]
    return UpkeepReport(snapshots_expired=expired, files_removed=files, bytes_removed=size)


def _unneeded(table: KeptTable, old: Snapshot, new: Snapshot) -> set[Path]:
    """The files of `old` that no snapshot from `new` on needs: history is a line, so what `new` dropped stays
    dropped."""
    doomed = metadata(table, old) - metadata(table, new)
    changes = table.delta(new)
    added = {path for entry in changes if entry.kind == ADD for path in table.data_paths(entry)}
    doomed |= {path for entry in changes if entry.kind == DELETE for path in table.data_paths(entry)} - added
    return doomed | changelog_data(table, old)


def metadata(table: KeptTable, snapshot: Snapshot) -> set[Path]:
    """Lists, manifests, index files and statistics that a snapshot names."""
    changelog = table.changelog(snapshot)
    names = [snapshot.base_manifest_list, snapshot.delta_manifest_list, snapshot.changelog_manifest_list]
    names += [snapshot.index_manifest, *(meta.file_name for meta in (*table.manifests(snapshot), *changelog))]
    names += [name for meta in (*table.manifests(snapshot), *changelog) for name in meta.extra_files or ()]
    paths = {table.manifest_path(name) for name in names if name} | table.index_files(snapshot)
    return paths | ({table.statistics_path(snapshot.statistics)} if snapshot.statistics else set())


def changelog_data(table: KeptTable, snapshot: Snapshot) -> set[Path]:
    entries = [entry for meta in table.changelog(snapshot) for entry in table.entries(meta)]
    return {path for entry in entries for path in table.data_paths(entry)}


class ProtectedFiles:
    """What tags and branches refer to."""

    def __init__(self, table: KeptTable) -> None:
        self._table = table
        self._pins = table.pins()
        self._snapshots = [table.pinned(path) for path in self._pins]
        self._metadata = {path for snapshot in self._snapshots for path in metadata(table, snapshot)}

    def current(self) -> bool:
        """Whether no tag or branch was made, moved or dropped since."""
        return self._table.pins() == self._pins

    def files(self) -> set[Path]:
        """All of them, data and metadata."""
        return self._metadata | self._data

    def spare(self, doomed: set[Path]) -> set[Path]:
        """The files that may go all the same."""
        doomed = doomed - self._metadata
        has_data = any(path.parent.name != "manifest" for path in doomed)
        return doomed - self._data if has_data and self._snapshots else doomed

    @cached_property
    def _data(self) -> set[Path]:
        table = self._table
        metas = {meta.file_name: meta for snapshot in self._snapshots for meta in table.manifests(snapshot)}
        entries = [entry for meta in metas.values() for entry in table.entries(meta)]
        paths = {path for entry in entries for path in table.data_paths(entry)}
        return paths | {path for snapshot in self._snapshots for path in changelog_data(table, snapshot)}
