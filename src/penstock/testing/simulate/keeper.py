"""Upkeep of a simulated table by the query that writes to it: compaction and expiry, while commits go on.

What may be expired is decided by the code for real tables (`protocol.upkeep`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.protocol.upkeep import Retention, SnapshotAge, first_kept
from penstock.sinks.upkeep import UpkeepReport

if TYPE_CHECKING:
    from penstock.testing.simulate.table import SimTable

FILES_MIN = 3
UPKEEP_USER = "penstock-upkeep"
EVERY = 2.0
"""In epochs."""


class SimKeeper:
    """Keeps one table in shape."""

    def __init__(self, table: SimTable, user: str) -> None:
        self._table, self._user = table, user
        self._process = table.world.scheduler.current.process
        self._stopped = False

    @property
    def every_s(self) -> float:
        return EVERY * self._table.world.epoch_s

    def stop(self) -> None:
        self._stopped = True

    def step(self) -> UpkeepReport:
        if self._stopped or self._table.rolled_back:  # another engine is about to undo that
            return UpkeepReport()
        return UpkeepReport(files_compacted=self._compact(), snapshots_expired=self._expire())

    def _compact(self) -> int:
        table = self._table
        base, files = table.latest(), table.listed
        if len(files) < FILES_MIN or len(table.files[files[-1]]) > len(files):
            return 0
        fault = table.call(self._process, "compact")
        if table.latest() is not base:
            return 0
        first = table.world.rng.randrange(len(files) - 1)
        table.compact(UPKEEP_USER, first, len(files))
        table.after(self._process, fault, "compact")
        return len(files) - first

    def _expire(self) -> int:
        table = self._table
        ages = [SnapshotAge(s.id, s.user, s.time_millis) for s in table.history[table.expired :]]
        kept = first_kept(
            ages,
            Retention(count_min=1, count_max=2, age_s=0.0),
            now_ms=int(table.world.scheduler.now * 1000),
            users={self._user},
            consumers={},
        )
        if kept is None or kept.first - 1 <= table.expired:
            return 0
        fault = table.call(self._process, "expire")
        before, table.expired = table.expired, max(table.expired, kept.first - 1)
        table.after(self._process, fault, "expire")
        return table.expired - before
