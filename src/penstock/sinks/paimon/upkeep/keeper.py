"""Looks after one table: what is due is decided and done by `step`, once per call, in any thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence

from penstock.errors import CorruptFile, PenstockError
from penstock.protocol.upkeep import PAUSE_S_MIN, left_to_others, pause_until_due
from penstock.sinks.base import Committable
from penstock.sinks.paimon.local import readable, storage_error
from penstock.sinks.paimon.upkeep.compact import Make, Planned, compact, made_here, plan_compaction, why_not
from penstock.sinks.paimon.upkeep.elsewhere import ELSEWHERE_BYTES, made_elsewhere
from penstock.sinks.paimon.upkeep.expire import Ages, expire, plan_expiry
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.live import LiveFiles, SmallFiles
from penstock.sinks.paimon.upkeep.merge import merge, plan_merge
from penstock.sinks.paimon.upkeep.orphans import find_orphans
from penstock.sinks.paimon.upkeep.runs import plan_runs, tiering_of, why_not_merged
from penstock.sinks.upkeep import RunTasks, Upkeep, UpkeepReport

ORPHANS_EVERY_S = 3600.0
"""Listing all files of a table is dear, and orphans are harmless."""
FIRST_PAUSE_S = 1.0
"""The first look at a table with a key does not tell how fast commits come. Longer, and a fast query would begin with a
hundred runs."""


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


def _left_out(table: KeptTable, what: str) -> str | None:
    """Paimon's own word for: a job of another engine compacts the table and expires its snapshots."""
    alone = table.options.get("write-only", "false").lower() == "true"
    return f"{what}: the table says write-only = true, so a job of another engine does that" if alone else None


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
        self._small, self._keyed, self._ages = SmallFiles(), LiveFiles(), Ages()
        self._orphans_at: float | None = None
        self._looked: tuple[int, float] | None = None
        self._busy_at, self._quiet = 0.0, False
        self._pause_s = policy.seconds("every")
        self._stopping = threading.Event()
        self._run_tasks: RunTasks | None = None

    @property
    def every_s(self) -> float:
        """Shorter than the policy's where commits come so fast that readers would have many runs to merge."""
        return self._pause_s

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
        keyed = bool(table.table.is_primary_key_table)
        reason = _left_out(table, "files stay") or (why_not_merged(table) if keyed else why_not(table))
        if reason is not None:
            return UpkeepReport(notes=(reason,))
        live: LiveFiles = self._keyed if keyed else self._small
        planned, notes = self._plan(table, self._policy.small_files, keyed=keyed)
        if left_to_others(live.foreign_at_ms, self._now_ms()):
            return UpkeepReport(notes=("files stay: another engine compacted the table within the last hour",))
        told = UpkeepReport(notes=tuple(notes))
        if self._dry_run:
            files = sum(len(one.inputs) for one in planned)
            size = sum(one.bytes for one in planned)
            return told.plus(UpkeepReport(files_compacted=files, files_written=len(planned), bytes_compacted=size))
        if not planned:
            return told
        make = self._maker(table, planned, keyed=keyed)
        return told.plus(compact(table, live.snapshot, planned, make, self._now_ms))

    def use_tasks(self, run: RunTasks) -> None:
        """Large merges run in tasks of a cluster from now on."""
        self._run_tasks = run

    def _maker(self, table: KeptTable, planned: Sequence[Planned], *, keyed: bool) -> Make:
        large = sum(one.bytes for one in planned) >= ELSEWHERE_BYTES
        if keyed and large and self._run_tasks is not None:
            return made_elsewhere(self._warehouse, self._name, table, self._run_tasks)
        return made_here(table, self._stopping.is_set)

    def _plan(self, table: KeptTable, small_files: int, *, keyed: bool) -> tuple[Sequence[Planned], list[str]]:
        if keyed:
            self._keyed.advance(table)
            self._set_pace(table)
            return plan_runs(table, self._keyed, self._policy.merge_for, quiet=self._is_quiet())
        return plan_compaction(table, self._small, small_files), []

    def _set_pace(self, table: KeptTable) -> None:
        """By the commits since the last look; a look right after another one tells nothing."""
        seen, now, before = self._keyed.commits, self._clock(), self._looked
        if before is not None and now - before[1] < PAUSE_S_MIN:
            return
        self._looked = (seen, now)
        if before is None or seen > before[0]:
            self._busy_at = now
        longest_s = self._policy.seconds("every")
        self._quiet = now - self._busy_at >= longest_s
        if before is None:
            self._pause_s = min(longest_s, FIRST_PAUSE_S)
        elif seen == before[0]:
            self._pause_s = min(longest_s, 2 * self._pause_s)
        else:
            trigger = tiering_of(table, self._policy.merge_for).trigger
            self._pause_s = pause_until_due(seen - before[0], now - before[1], trigger=trigger, longest_s=longest_s)

    def _is_quiet(self) -> bool:
        """Whether no commit came for `every` seconds; told once for each look, and not where writes are spared."""
        quiet, self._quiet = self._quiet, False
        return quiet and self._policy.merge_for != "writes"

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
        if (reason := _left_out(table, "snapshots stay")) is not None:
            return UpkeepReport(notes=(reason,))
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
