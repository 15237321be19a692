"""Removes files of an Iceberg table that no snapshot needs: after an expiry, and files that nobody ever listed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyiceberg.manifest import ManifestEntryStatus

from penstock.protocol.manifest import Committable
from penstock.sinks.iceberg.layout import layout_of_table
from penstock.sinks.iceberg.snapshots import files_of, manifests_of
from penstock.sinks.iceberg.writer import decode
from penstock.sinks.parquet.files import LocalFolder
from penstock.sinks.parquet.remote import open_folder
from penstock.sinks.upkeep import UpkeepReport

GC = "gc.enabled"


def remove_expired(table: Any, expired: Sequence[Any]) -> UpkeepReport:
    """Removes what only the expired snapshots needed. A file leaves a table by an entry of a manifest that says so."""
    if table.properties.get(GC, "true").lower() == "false":
        return UpkeepReport(notes=(f"files of expired snapshots stay: the table has {GC} = false",))
    io, gone = table.io, {one.snapshot_id for one in expired} - {one.snapshot_id for one in table.metadata.snapshots}
    kept = manifests_of(io, table.metadata.snapshots)
    dead = {
        path: manifest
        for path, manifest in manifests_of(io, [one for one in expired if one.snapshot_id in gone]).items()
        if path not in kept
    }
    left = {
        entry.data_file.file_path: int(entry.data_file.file_size_in_bytes)
        for manifest in (*kept.values(), *dead.values())
        if manifest.deleted_files_count != 0
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED
    }
    if left:
        for manifest in kept.values():
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
                left.pop(entry.data_file.file_path, None)
    lists = [one.manifest_list for one in expired if one.snapshot_id in gone]
    removed = [path for path in (*left, *dead, *lists) if _removed(io, path)]
    data = [path for path in removed if path in left]
    return UpkeepReport(files_removed=len(data), bytes_removed=sum(left[path] for path in data))


def _removed(io: Any, path: str) -> bool:
    """A file that cannot be removed, or is gone, does no harm."""
    with suppress(Exception):
        io.delete(path)
        return True
    return False


def remove_orphans(table: Any, pending: Callable[[], Iterable[Committable]], age_s: float) -> UpkeepReport:
    """Removes data files of that age that no snapshot lists and no commit waits for; in local folders only."""
    folder = open_folder(layout_of_table(table, "").data)
    if not isinstance(folder, LocalFolder):
        return UpkeepReport(notes=("files that no snapshot lists stay: on an object store they have no reliable age",))
    before = time.time() - age_s
    root = Path(folder.root)
    old = [path for path in root.rglob("*.parquet") if path.stat().st_mtime < before]
    if not old:
        return UpkeepReport()
    waiting = {file.path for committable in pending() for file in decode(committable.payload)}
    listed = {path.rpartition("/")[2] for path in files_of(table.refresh().io, table.metadata.snapshots)}
    orphans = [path for path in old if path.name not in listed and str(path.relative_to(root)) not in waiting]
    size = sum(path.stat().st_size for path in orphans)
    for path in orphans:
        path.unlink(missing_ok=True)
    return UpkeepReport(orphans_removed=len(orphans), bytes_removed=size)
