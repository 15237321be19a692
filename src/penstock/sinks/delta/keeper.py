"""Keeps a Delta table in shape while a query writes to it: compacts small files, cleans the log, vacuums.

All are the library's own operations. A compaction changes no rows, so it and our appends do not conflict: whoever is
second commits behind the other. Where a merge by key took files out meanwhile, the compaction is given up. Checkpoints
of the log are made by commits, as the table's configuration says; old entries are cleaned up here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from penstock.protocol.upkeep import SMALL_SHARE
from penstock.sinks.delta.table import open_table
from penstock.sinks.upkeep import Upkeep, UpkeepReport

RETENTION_H_MIN = 168
"""Delta Lake's own limit: a younger file may belong to a commit or a reader that is under way."""


class DeltaKeeper:
    """As `Keeper`."""

    def __init__(self, uri: str, policy: Upkeep, target_bytes: int) -> None:
        self._uri, self._policy, self._target_bytes = uri, policy, target_bytes
        self._stopped = False

    @property
    def every_s(self) -> float:
        return self._policy.seconds("every")

    def step(self) -> UpkeepReport:
        table = open_table(self._uri)
        report = UpkeepReport()
        if self._policy.small_files is not None and not self._stopped:
            report = report.plus(self._compacted(table, self._policy.small_files))
        if self._policy.expire and not self._stopped:
            self._clean_log(table)
        if self._policy.orphans_after is not None and not self._stopped:
            hours = max(RETENTION_H_MIN, round(self._policy.seconds("orphans_after") / 3600))
            removed = table.vacuum(hours, dry_run=False)
            report = report.plus(UpkeepReport(orphans_removed=len(removed)))
        return report

    def _compacted(self, table: Any, files_min: int) -> UpkeepReport:
        """Compacts when a partition has enough small files; the library rewrites those below the target size."""
        actions = table.get_add_actions(flatten=True)
        sizes = actions["size_bytes"].to_pylist()
        folders = [path.rpartition("/")[0] for path in actions["path"].to_pylist()]
        small = Counter(f for f, size in zip(folders, sizes, strict=True) if size < SMALL_SHARE * self._target_bytes)
        if not small or max(small.values()) < files_min:
            return UpkeepReport()
        try:
            metrics = table.optimize.compact(
                target_size=self._target_bytes, commit_properties=CommitProperties(max_commit_retries=15)
            )
        except CommitFailedError:
            return UpkeepReport()  # a merge rewrote some of the files; the next step looks again
        removed = metrics["filesRemoved"]
        return UpkeepReport(
            files_compacted=int(metrics["numFilesRemoved"]),
            files_written=int(metrics["numFilesAdded"]),
            bytes_compacted=int(removed.get("totalSize", 0)) if isinstance(removed, dict) else 0,
        )

    def _clean_log(self, table: Any) -> None:
        """Removes entries older than the table's ``delta.logRetentionDuration``, behind a checkpoint of the log."""
        if table.metadata().configuration.get("delta.enableExpiredLogCleanup", "true").lower() == "true":
            table.update_incremental()
            table.cleanup_metadata()

    def stop(self) -> None:
        """A running compaction ends by itself."""
        self._stopped = True
