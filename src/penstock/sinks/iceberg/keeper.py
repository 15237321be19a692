"""Keeps an Iceberg table in shape while a query writes: compacts small files, merges manifests, expires snapshots.

The library has expiry alone, and that leaves the files behind; the rest is ours, on its public operations. What was
committed is in a property of the table, so no snapshot has to stay for our sake.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException

from penstock.protocol.manifest import Committable
from penstock.protocol.upkeep import Retention, SnapshotAge, first_kept
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.compact import Compaction
from penstock.sinks.iceberg.expired import remove_expired, remove_orphans
from penstock.sinks.iceberg.snapshots import replace_files
from penstock.sinks.iceberg.transaction import expire
from penstock.sinks.upkeep import Upkeep, UpkeepReport

if TYPE_CHECKING:
    from penstock.sinks.iceberg.sink import Iceberg

SNAPSHOTS = 10
SNAPSHOTS_MAX = 100
"""Each commit writes the list of all snapshots anew, so it must not grow with the commits of an hour."""
AGE_S = 3600.0
MERGE_MIN = "commit.manifest.min-count-to-merge"
AGE_OPTION, COUNT_OPTION = "history.expire.max-snapshot-age-ms", "history.expire.min-snapshots-to-keep"
UPKEEP = "penstock.upkeep"


class IcebergKeeper:
    """As `Keeper`."""

    def __init__(self, sink: Iceberg, policy: Upkeep, pending: Callable[[], Iterable[Committable]] = tuple) -> None:
        self._sink, self._policy, self._pending = sink, policy, pending
        self._stopped = False

    @property
    def every_s(self) -> float:
        return self._policy.seconds("every")

    def step(self) -> UpkeepReport:
        policy, report = self._policy, UpkeepReport()
        table = open_table(self._sink.catalog, self._sink.table)
        if table.current_snapshot() is None:
            return report
        if policy.small_files is not None:
            report = report.plus(Compaction(self._sink, table, lambda: self._stopped).step(policy.small_files))
        if policy.manifests is not None and not self._stopped:
            report = report.plus(self._merged(open_table(self._sink.catalog, self._sink.table), policy.manifests))
        if policy.expire and not self._stopped:
            report = report.plus(self._expired(open_table(self._sink.catalog, self._sink.table)))
        if policy.orphans_after is not None and not self._stopped:
            report = report.plus(remove_orphans(table, self._pending, policy.seconds("orphans_after")))
        return report

    def _merged(self, table: Any, count_max: int) -> UpkeepReport:
        """Appends merge manifests by themselves; merges by key do not."""
        manifests = len(table.current_snapshot().manifests(table.io))
        if manifests <= max(count_max, int(table.properties.get(MERGE_MIN, 100))):
            return UpkeepReport()
        table.metadata.properties[MERGE_MIN] = "2"
        try:
            replace_files(table, [], [], {UPKEEP: "manifests"}, {})
        except CommitFailedException:
            return UpkeepReport()  # a commit came first; the next step tries again
        written = len(table.refresh().current_snapshot().manifests(table.io))
        return UpkeepReport(manifests_merged=manifests, manifests_written=written)

    def _expired(self, table: Any) -> UpkeepReport:
        snapshots = sorted(table.metadata.snapshots, key=_number)
        kept = first_kept(
            [SnapshotAge(_number(one), "", int(one.timestamp_ms)) for one in snapshots],
            self._retention(table.properties),
            now_ms=int(time.time() * 1000),
            users=(),
            consumers={},
        )
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            one for one in snapshots if kept is not None and _number(one) < kept.first and one.snapshot_id not in named
        ]
        if not old:
            return UpkeepReport()
        try:
            expire(table, [one.snapshot_id for one in old])
        except CommitFailedException:
            return UpkeepReport(more=True)  # a commit came first
        return UpkeepReport(snapshots_expired=len(old)).plus(remove_expired(table.refresh(), old))

    def _retention(self, properties: Any) -> Retention:
        """What the policy says; else the table; else a few snapshots."""
        policy = self._policy
        age_s = float(properties[AGE_OPTION]) / 1000 if AGE_OPTION in properties else AGE_S
        count = int(properties.get(COUNT_OPTION, SNAPSHOTS)) if policy.snapshots is None else policy.snapshots
        said = policy.snapshots_for is not None or AGE_OPTION in properties
        count_max = policy.snapshots_max or (None if said else max(SNAPSHOTS_MAX, count))
        return Retention(count, count_max, age_s if policy.snapshots_for is None else policy.seconds("snapshots_for"))

    def stop(self) -> None:
        """A running compaction ends after the file it reads."""
        self._stopped = True


def _number(snapshot: Any) -> int:
    return int(snapshot.sequence_number or 0)
