"""Keeps an Iceberg table in shape while a query writes to it: expires snapshots, by the library's own operation.

Manifests are merged by commits, as the table's properties say. What was committed is in a property of the table, so no
snapshot has to stay for our sake.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from pyiceberg.exceptions import CommitFailedException

from penstock.protocol.upkeep import Retention, SnapshotAge, first_kept
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.upkeep import Upkeep, UpkeepReport

SNAPSHOTS = 10
AGE_S = 3600.0


class IcebergKeeper:
    """As `Keeper`."""

    def __init__(self, catalog: Mapping[str, str] | str, name: str, policy: Upkeep) -> None:
        self._catalog, self._name, self._policy = catalog, name, policy
        self._stopped = False

    @property
    def every_s(self) -> float:
        return self._policy.seconds("every")

    def step(self) -> UpkeepReport:
        if self._stopped or not self._policy.expire:
            return UpkeepReport()
        table = open_table(self._catalog, self._name)
        snapshots = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
        policy = self._policy
        age_s = AGE_S if policy.snapshots_for is None else policy.seconds("snapshots_for")
        kept = first_kept(
            [SnapshotAge(int(one.sequence_number or 0), "", int(one.timestamp_ms)) for one in snapshots],
            Retention(policy.snapshots or SNAPSHOTS, policy.snapshots_max, age_s),
            now_ms=int(time.time() * 1000),
            users=(),
            consumers={},
        )
        named = {ref.snapshot_id for ref in table.metadata.refs.values()}
        old = [
            one.snapshot_id
            for one in snapshots
            if kept is not None and int(one.sequence_number or 0) < kept.first and one.snapshot_id not in named
        ]
        if not old:
            return UpkeepReport()
        try:
            table.maintenance.expire_snapshots().by_ids(old).commit()
        except CommitFailedException:
            return UpkeepReport(more=True)  # a commit came first
        return UpkeepReport(snapshots_expired=len(old))

    def stop(self) -> None:
        """A running expiry ends by itself."""
        self._stopped = True
