"""Looks after one table: what is due is decided and done by `step`, once per call, in any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable

from penstock.errors import CorruptFile, PenstockError
from penstock.sinks.base import Committable
from penstock.sinks.paimon.local import readable, storage_error
from penstock.sinks.paimon.upkeep.compact import compact, plan_compaction, why_not
from penstock.sinks.paimon.upkeep.expire import Ages, expire, plan_expiry
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.live import SmallFiles
from penstock.sinks.paimon.upkeep.merge import merge, plan_merge
from penstock.sinks.paimon.upkeep.orphans import find_orphans
from penstock.sinks.upkeep import Upkeep, UpkeepReport

ORPHANS_EVERY_S = 3600.0
"""Listing all files of a table is dear, and orphans are harmless."""


def _told(error: Exception, table: KeptTable) -> str:
    if isinstance(error, PenstockError):
        return str(error)
    known = storage_error(error, str(table.root))
    if known is not None:
        return f"{type(error).__name__}: {known}"
    unread = CorruptFile(
        f"upkeep of {table.root}: {type(error).__name__}: {error}",
        cause="a file of the table is damaged, or another engine changed the table meanwhile",
        next_step="try again; if it goes on, read the table with another engine. The table is as it was",
        path=table.root,
    )
    return str(unread)


class PaimonKeeper:
    """Keeps one table in shape. `own_user` is the sink's commit user, `pending` what waits for its commit.

    `forgotten` are commit users whose queries will never be started again: their snapshots may go. With `dry_run`
    nothing is changed, and the report tells what would be done.
    """

    def __init__(
        self,
        warehouse: str,
        table: str,
        policy: Upkeep,
        *,
        own_user: str | None = None,
        pending: Callable[[], Iterable[Committable]] = tuple,
        forgotten: Collection[str] = (),
        clock: Callable[[], float] = time.time,
        dry_run: bool = False,
    ) -> None:
        self._warehouse, self._name, self._policy = warehouse, table, policy
        self._own_user, self._pending, self._forgotten = own_user, pending, forgotten
        self._clock, self._dry_run = clock, dry_run
        self._small, self._ages = SmallFiles(), Ages()
        self._orphans_at: float | None = None
        self._stopping = threading.Event()

    @property
    def every_s(self) -> float:
        return self._policy.seconds("every")

    def stop(self) -> None:
        self._stopping.set()

    def step(self) -> UpkeepReport:
        """Compacts, merges, expires and removes orphans, as far as each is due; one that fails does not stop the rest.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed` when the table cannot be opened or kept.
        """
        report = UpkeepReport()
        for action in (self._compact, self._merge, self._expire, self._remove_orphans):
            if self._stopping.is_set():
                break
            with readable(f"{self._warehouse}, table {self._name}"):
                table = KeptTable(self._warehouse, self._name)
            try:
                report = report.plus(action(table))
            except Exception as error:  # noqa: BLE001 - the table is as good as before, whatever it was
                report = report.plus(UpkeepReport(failures=(_told(error, table),)))
        return report

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _compact(self, table: KeptTable) -> UpkeepReport:
        if self._policy.small_files is None:
            return UpkeepReport()
        if (reason := why_not(table)) is not None:
            return UpkeepReport(notes=(reason,))
        planned = plan_compaction(table, self._small, self._policy.small_files)
        if self._dry_run:
            files = sum(len(rewrite.inputs) for rewrite in planned)
            size = sum(rewrite.bytes for rewrite in planned)
            return UpkeepReport(files_compacted=files, files_written=len(planned), bytes_compacted=size)
        if not planned:
            return UpkeepReport()
        return compact(table, self._small.snapshot, planned, self._now_ms, self._stopping.is_set)

    def _merge(self, table: KeptTable) -> UpkeepReport:
        if self._policy.manifests is None:
            return UpkeepReport()
        chosen = plan_merge(table, self._policy.manifests)
        if self._dry_run:
            return UpkeepReport(manifests_merged=len(chosen), manifests_written=min(1, len(chosen)))
        return merge(table, chosen, self._now_ms)

    def _expire(self, table: KeptTable) -> UpkeepReport:
        if not self._policy.expire:
            return UpkeepReport()
        if table.keeps_changelogs():
            return UpkeepReport(notes=("snapshots stay: the table's changelogs outlive its snapshots",))
        ages = self._ages.read(table)
        kept = plan_expiry(
            table, ages, self._policy, now_ms=self._now_ms(), own_user=self._own_user, forgotten=self._forgotten
        )
        if kept is None:
            return UpkeepReport()
        if self._dry_run:
            count = sum(age.id < kept.first for age in ages)
            return UpkeepReport(snapshots_expired=count, held_by=kept.held_by)
        return expire(table, kept.first, self._stopping.is_set).plus(UpkeepReport(held_by=kept.held_by))

    def _remove_orphans(self, table: KeptTable) -> UpkeepReport:
        now = self._clock()
        due = self._orphans_at is None or now >= self._orphans_at + ORPHANS_EVERY_S
        if self._policy.orphans_after is None or not due:
            return UpkeepReport()
        if table.keeps_changelogs():
            return UpkeepReport(notes=("orphans stay: the table's changelogs outlive its snapshots",))
        self._orphans_at = now
        orphans = find_orphans(table, self._pending, older_than_s=self._policy.seconds("orphans_after"), now_s=now)
        if self._dry_run:
            count, size = len(orphans), sum(orphan.bytes for orphan in orphans)
        else:
            count, size = table.remove(orphan.path for orphan in orphans)
        return UpkeepReport(orphans_removed=count, files_removed=count, bytes_removed=size)
