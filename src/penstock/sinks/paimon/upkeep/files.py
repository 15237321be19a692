"""A table's metadata and files as upkeep sees them: every read, and every change, is one small method here.

Reaches below pypaimon's documented names, like `paimon_private`; tests/sinks/test_upkeep_private.py fails when one
moves. Local warehouses only: everything here relies on links and on files that are removed for good.
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from pypaimon.common.json_util import JSON
from pypaimon.common.time_utils import parse_duration_nanos
from pypaimon.manifest.index_manifest_file import IndexManifestFile
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER
from pypaimon.tag.tag import Tag
from pypaimon.utils.file_store_path_factory import canonical_data_file_path

from penstock.errors import TableRefused
from penstock.protocol.upkeep import Retention
from penstock.sinks.paimon import fence, local, private
from penstock.sinks.paimon.catalogs import publishes_snapshots
from penstock.sinks.paimon.open import open_table
from penstock.sinks.upkeep import Upkeep
from penstock.store import beneath
from penstock.store.paths import check_name

Snapshot = Any
ManifestMeta = Any
Entry = Any

UPKEEP_USER = "penstock.upkeep"
"""The commit user of upkeep's snapshots. It is never that of a sink: those begin with ``penstock-``."""

ADD, DELETE = 0, 1

_SNAPSHOT = re.compile(r"snapshot-(\d+)")


class KeptTable:
    """One table on a local warehouse. A new one is opened for each step, so that the schema is the newest."""

    def __init__(self, warehouse: str, name: str) -> None:
        self.table = open_table(warehouse, name)
        root = None if publishes_snapshots(warehouse) else local.as_local(str(self.table.table_path))
        if root is None:
            raise TableRefused(
                f"table {name} in {warehouse} is not in a local folder",
                cause="this storage cannot publish a snapshot without overwriting another one",
                next_step="let Paimon's own engine keep the table in shape; give upkeep=False",
                table=name,
            )
        self.root = Path(root)
        self.options: dict[str, str] = {k: str(v) for k, v in self.table.table_schema.options.items()}
        self._snapshots = self.table.snapshot_manager()
        self._lists = ManifestListManager(self.table)
        self._manifests = ManifestFileManager(self.table)

    # -- reading -------------------------------------------------------------------------------------------------

    def latest(self) -> Snapshot | None:
        return self._snapshots.get_latest_snapshot()

    def snapshot(self, number: int) -> Snapshot | None:
        """None when it expired or was never there."""
        try:
            return self._snapshots.get_snapshot_by_id(number)
        except FileNotFoundError:  # it went between the question and the look
            return None

    def snapshot_ids(self) -> list[int]:
        """Ascending."""
        return sorted(self.snapshot_times())

    def snapshot_times(self) -> dict[int, int]:
        """When each snapshot's file was made, by id: after a rollback an id has another file."""
        times = {}
        for path in _files(self.root / "snapshot"):
            if (match := _SNAPSHOT.fullmatch(path.name)) is not None:
                with suppress(FileNotFoundError):
                    times[int(match[1])] = path.stat().st_mtime_ns
        return times

    def manifests(self, snapshot: Snapshot) -> list[ManifestMeta]:
        """All manifests of a snapshot, in the order in which their entries count."""
        return list(self._lists.read_all(snapshot))

    def delta(self, snapshot: Snapshot, *, with_stats: bool = False) -> list[Entry]:
        """What the snapshot itself added and removed."""
        metas = self._lists.read_delta(snapshot)
        return [entry for meta in metas for entry in self.entries(meta, with_stats=with_stats)]

    def changelog(self, snapshot: Snapshot) -> list[ManifestMeta]:
        return list(self._lists.read_changelog(snapshot))

    def entries(self, meta: ManifestMeta, *, with_stats: bool = False) -> list[Entry]:
        return list(self._manifests.read(meta.file_name, drop_stats=not with_stats))

    def index_files(self, snapshot: Snapshot) -> set[Path]:
        """The index files that a snapshot names."""
        if not snapshot.index_manifest:
            return set()
        factory = self.table.path_factory()
        return {
            self._inside(
                factory.bucket_index_path(
                    tuple(entry.partition.values), entry.bucket, entry.index_file, self.table.file_io
                )
            )
            for entry in IndexManifestFile(self.table).read(snapshot.index_manifest)
        }

    def data_paths(self, entry: Entry) -> list[Path]:
        """Where an entry's data file and the files beside it are; none for files outside the table's folder."""
        if entry.file.external_path:
            return []
        names = [entry.file.file_name, *(entry.file.extra_files or ())]
        return [self.data_path(tuple(entry.partition.values), entry.bucket, name) for name in names]

    def data_path(self, partition: tuple[Any, ...], bucket: int, name: str) -> Path:
        """Raises: `UnsafeName` where that is not inside the table's folder."""
        return self._inside(canonical_data_file_path(self.table, partition, bucket, name))

    def manifest_path(self, name: str) -> Path:
        return self._inside(self.root / "manifest" / check_name(name))

    def statistics_path(self, name: str) -> Path:
        return self._inside(self.root / "statistics" / check_name(name))

    def _inside(self, path: str | Path) -> Path:
        """A name of a snapshot or a manifest, as a path that may be read, written and removed."""
        return self.root / fence.inside(self.root, path)

    def pins(self) -> dict[Path, int]:
        """Files that hold a snapshot of their own, whatever expires: tags, and branches with their tags."""
        branches = sorted((self.root / "branch").glob("branch-*"))
        roots = [self.root, *(self._inside(branch) for branch in branches)]
        found = [path for root in roots for path in _files(root / "tag") if path.name.startswith("tag-")]
        found += [path for root in roots[1:] for path in _files(root / "snapshot") if _SNAPSHOT.fullmatch(path.name)]
        pins = {}
        for path in map(self._inside, found):
            with suppress(FileNotFoundError):
                pins[path] = path.stat().st_mtime_ns
        return pins

    def pinned(self, path: Path) -> Snapshot:
        return JSON.from_json(self.table.file_io.read_file_utf8(str(path)), Tag)

    def keeps_changelogs(self) -> bool:
        """Whether changelogs outlive snapshots, so that more than snapshots refers to files."""
        options = any(name.startswith(("changelog.num-", "changelog.time-")) for name in self.options)
        return options or any(_files(self.root / "changelog"))

    def consumers(self) -> dict[str, int]:
        """The next snapshot of each consumer."""
        return {str(name): int(wanted) for name, wanted in self.table.consumer_manager().consumers().items()}

    def retention(self, policy: Upkeep) -> Retention:
        """The policy's, with the table's own options where it says nothing, and Paimon's defaults behind them."""
        least = policy.snapshots or int(self.options.get("snapshot.num-retained.min", 10))
        most = policy.snapshots_max or int(self.options.get("snapshot.num-retained.max", 0)) or None
        if policy.snapshots_for is not None:
            age_s = policy.seconds("snapshots_for")
        else:
            age_s = parse_duration_nanos(self.options.get("snapshot.time-retained", "1 h")) / 1e9
        return Retention(least, most, age_s)

    def manifest_target_bytes(self) -> int:
        return int(self.table.options.manifest_target_size())

    def data_target_bytes(self, *, keyed: bool = False) -> int:
        return int(self.table.options.target_file_size(keyed))

    # -- changing ------------------------------------------------------------------------------------------------

    def write_manifests(self, entries: list[Entry]) -> list[ManifestMeta]:
        """New manifests with these entries, in this order, durable."""
        metas = self._manifests.rolling_write(entries, self.manifest_target_bytes(), f"manifest-{uuid.uuid4()}")
        try:
            self.make_durable(self.manifest_path(meta.file_name) for meta in metas)
        except Exception:
            self.remove_manifests(metas)
            raise
        return list(metas)

    def remove_manifests(self, metas: Iterable[ManifestMeta]) -> None:
        """Removes manifests that no snapshot names."""
        self.remove(self.manifest_path(meta.file_name) for meta in metas)

    def prepare_snapshot(
        self, latest: Snapshot, base: list[ManifestMeta], delta: list[ManifestMeta], now_ms: int, rows: int = 0
    ) -> Snapshot:
        """The COMPACT snapshot behind `latest`, with its lists written. It shows the same rows.

        `rows` is how many more records its files hold: fewer than before where several versions of a row became one.
        """
        name = f"manifest-list-{uuid.uuid4()}"
        return dataclasses.replace(
            latest,
            id=latest.id + 1,
            schema_id=self.table.table_schema.id,
            base_manifest_list=f"{name}-0",
            base_manifest_list_size=self._lists.write(f"{name}-0", base),
            delta_manifest_list=f"{name}-1",
            delta_manifest_list_size=self._lists.write(f"{name}-1", delta),
            changelog_manifest_list=None,
            changelog_manifest_list_size=None,
            changelog_record_count=None,
            delta_record_count=rows,
            total_record_count=int(latest.total_record_count or 0) + rows,
            commit_user=UPKEEP_USER,
            commit_identifier=BATCH_COMMIT_IDENTIFIER,
            commit_kind="COMPACT",
            time_millis=max(now_ms, latest.time_millis),
            properties=None,
            uuid=str(uuid.uuid4()),
        )

    def make_durable(self, paths: Iterable[Path]) -> None:
        local.sync_files(paths, self.root)

    def publish(self, snapshot: Snapshot) -> bool:
        """Makes the snapshot visible unless another one has its number; its lists are durable before."""
        lists = [self.manifest_path(name) for name in (snapshot.base_manifest_list, snapshot.delta_manifest_list)]
        self.make_durable(lists)
        path = self.root / "snapshot" / f"snapshot-{snapshot.id}"
        hidden = local.write_hidden(path, private.snapshot_json(snapshot))
        try:
            published = local.link(hidden, path)
        finally:
            hidden.unlink(missing_ok=True)
        if published:
            # Only a hint: readers look for newer snapshots themselves.
            with suppress(OSError):
                local.replace(self.root / "snapshot" / "LATEST", str(snapshot.id))
        return published

    def holds(self, snapshot: Snapshot) -> bool:
        """Whether this very snapshot is visible."""
        there = self.snapshot(snapshot.id)
        return there is not None and there.uuid == snapshot.uuid

    def set_earliest(self, number: int) -> None:
        """Tells readers where to begin to look, before older snapshots go."""
        local.replace(self.root / "snapshot" / "EARLIEST", str(number))

    def remove(self, paths: Iterable[Path]) -> tuple[int, int]:
        """Removes files; how many there were, and their bytes. A file that is gone already counts for nothing."""
        count = size = 0
        for path in paths:
            with suppress(FileNotFoundError):
                removed = beneath.unlink(self.root, fence.inside(self.root, path))
                if removed is not None:
                    count, size = count + 1, size + removed
        return count, size


def _files(folder: Path) -> Iterator[Path]:
    with suppress(FileNotFoundError, NotADirectoryError):
        if not folder.is_symlink():
            yield from (path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
