"""Finds files in a table's folder that nothing refers to: leftovers of crashed writers, commits and upkeep.

A file goes only if it has a name that Paimon gives to files of its kind, is older than any epoch or commit can be, and
is named by no snapshot, tag, branch or pending committable. If any of these cannot be read, nothing goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import CorruptFile
from penstock.protocol.manifest import Committable
from penstock.sinks.paimon.fence import DATA_FILE, is_data_file
from penstock.sinks.paimon.upkeep.expire import ProtectedFiles, changelog_data, metadata
from penstock.sinks.paimon.upkeep.files import KeptTable, ManifestMeta
from penstock.store import beneath

_HIDDEN = re.compile(r"\.(snapshot-\d+|LATEST|EARLIEST)\.[0-9A-Za-z_.-]{36,}\.tmp")
# Names of data files hold one. It is looked for in the committables' bytes, so those of other tables do no harm.
_UUID = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KINDS = {
    "manifest": re.compile(r"(manifest|manifest-list|index-manifest)-[0-9a-f-]{36}.*"),
    "index": re.compile(r"index-.*"),
    "statistics": re.compile(r"stat-.*"),
    "snapshot": _HIDDEN,
}


@dataclass(frozen=True, slots=True)
class Orphan:
    path: Path
    bytes: int


def find_orphans(
    table: KeptTable, pending: Callable[[], Iterable[Committable]], *, older_than_s: float, now_s: float
) -> list[Orphan]:
    """Files that may be removed, by path.

    `pending` tells what waits for its commit. It is asked first: what is committed meanwhile moves from there into a
    snapshot, and snapshots are read later.

    Raises: `CorruptFile` when a snapshot, tag or branch cannot be read.
    """
    waiting = {found for committable in pending() for found in _UUID.findall(committable.payload)}
    try:
        named = named_files(table)
    except Exception as error:
        raise CorruptFile(
            f"what {table.root} needs cannot be read: {error}",
            cause="a snapshot expired meanwhile, or a manifest is missing or damaged",
            next_step="try again; if it goes on, look at the file named above. No file was removed",
        ) from error
    orphans = []
    for path in _candidates(table.root):
        try:
            stat = path.lstat()
        except FileNotFoundError:
            continue
        waits = not waiting.isdisjoint(_UUID.findall(path.name.encode()))
        if not waits and path.name not in named and now_s - stat.st_mtime > older_than_s:
            orphans.append(Orphan(path, stat.st_size))
    return sorted(orphans, key=lambda orphan: orphan.path)


def named_files(table: KeptTable) -> set[str]:
    """The names of all files that snapshots, tags and branches refer to; a removed file counts, too."""
    numbers = table.snapshot_ids()
    snapshots = [snapshot for number in numbers if (snapshot := table.snapshot(number)) is not None]
    if len(snapshots) < len(numbers):
        raise FileNotFoundError("a snapshot went while it was read")
    pins = ProtectedFiles(table)
    paths = pins.files()
    metas: dict[str, ManifestMeta] = {}
    for snapshot in snapshots:
        paths |= metadata(table, snapshot) | changelog_data(table, snapshot)
        metas |= {meta.file_name: meta for meta in table.manifests(snapshot)}
    for meta in metas.values():
        paths |= {path for entry in table.entries(meta) for path in table.data_paths(entry)}
    return {path.name for path in paths}


def _candidates(root: Path) -> list[Path]:
    """Neither links nor what is behind them."""
    found = []
    for entry in beneath.walk(root, ""):
        *folders, name = entry.path.split("/")
        if len(folders) == 1 and folders[0] in _KINDS:
            pattern: re.Pattern[str] | None = _KINDS[folders[0]]
        else:
            pattern = DATA_FILE if is_data_file(entry.path) else None
        if pattern is not None and pattern.fullmatch(name):
            found.append(root / entry.path)
    return found
