"""What a table holds of one commit user, so that no checkpoint is committed twice.

Snapshots are numbered without gaps and never change, so each is read once: the first question walks back from the
newest snapshot, every later one reads on from there. Filtering is by high-water mark: checkpoint ids only grow.
Snapshots of our commit user that compact are no commits: they add no rows.
"""

from __future__ import annotations

from penstock.errors import TablePositionMismatch
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import CommitReceipt
from penstock.sinks.paimon_private import Snapshot, TableFiles


class History:
    """The newest commit of one commit user, kept up to date."""

    def __init__(self, files: TableFiles, commit_user: str) -> None:
        self._files = files
        self._user = commit_user
        self._seen: int | None = None
        self._newest: Snapshot | None = None

    @property
    def asked(self) -> bool:
        return self._seen is not None

    @property
    def checkpoint(self) -> int:
        """The newest committed checkpoint; -1 when the table holds none."""
        return -1 if self._newest is None else int(self._newest.commit_identifier)

    def receipt(self) -> CommitReceipt | None:
        return None if self._newest is None else self._receipt(self._newest)

    def receipts(self, oldest_snapshot: int | None, limit: int) -> tuple[CommitReceipt, ...]:
        """The newest `limit` commits, oldest first; the walk ends at `oldest_snapshot` and where snapshots expired."""
        if self._newest is None:
            return ()
        found = [self._newest]
        for number in range(int(self._newest.id) - 1, (oldest_snapshot or 1) - 1, -1):
            snapshot = self._files.snapshot(number) if len(found) < limit else None
            if snapshot is None:
                break
            if self._is_ours(snapshot):
                found.append(snapshot)
        return tuple(self._receipt(snapshot) for snapshot in reversed(found))

    def _receipt(self, snapshot: Snapshot) -> CommitReceipt:
        return CommitReceipt(
            CheckpointId(int(snapshot.commit_identifier)),
            int(snapshot.id),
            int(snapshot.delta_record_count),
            self._files.files_added(snapshot),
            None if snapshot.watermark is None else int(snapshot.watermark),
            int(snapshot.time_millis),
        )

    def _is_ours(self, snapshot: Snapshot) -> bool:
        return bool(snapshot.commit_user == self._user and snapshot.commit_kind != "COMPACT")

    def ask(self, oldest_snapshot: int | None = None) -> None:
        """Reads what was committed since the last question; the first one goes back to `oldest_snapshot`.

        Raises: `TablePositionMismatch` when the table lost snapshots that it had.
        """
        latest = self._files.latest()
        latest_id = 0 if latest is None else int(latest.id)
        floor = self._seen if self._seen is not None else oldest_snapshot or 0
        if latest_id < floor:
            raise _went_back(f"its newest snapshot is {latest_id or 'none'}, it had {floor} before")
        if self._seen is None:
            self._newest = self._walk_back(latest_id, oldest_snapshot)
            self._seen = latest_id
        else:
            self._check_newest()
            self.read_to(latest_id)

    def read_to(self, snapshot_id: int) -> None:
        """Reads the snapshots up to this one; each must still be there."""
        assert self._seen is not None, "ask first"
        for number in range(self._seen + 1, snapshot_id + 1):
            snapshot = self._files.snapshot(number)
            if snapshot is None:
                raise _expired(number)
            self.add(snapshot)

    def add(self, snapshot: Snapshot) -> None:
        """Notes the snapshot that follows the last one seen."""
        assert self._seen is not None, "ask first"
        assert snapshot.id == self._seen + 1, f"snapshot {snapshot.id} does not follow {self._seen}"
        self._seen += 1
        if self._is_ours(snapshot):
            self._newest = snapshot

    def _walk_back(self, latest_id: int, oldest_snapshot: int | None) -> Snapshot | None:
        for number in range(latest_id, max(1, oldest_snapshot or 1) - 1, -1):
            snapshot = self._files.snapshot(number)
            if snapshot is None and oldest_snapshot is not None and number > oldest_snapshot:
                raise _expired(number)
            if snapshot is None or self._is_ours(snapshot):
                return snapshot
            if number == oldest_snapshot:
                raise _went_back(f"snapshot {number} was ours and now belongs to {snapshot.commit_user!r}")
        return None

    def _check_newest(self) -> None:
        """A committer that renames, unlike ours, can overwrite a snapshot: never build on a lost commit."""
        ours = self._newest
        there = None if ours is None else self._files.snapshot(int(ours.id))
        if ours is not None and there is not None and there.uuid != ours.uuid:
            raise _went_back(f"our snapshot {ours.id} (checkpoint {ours.commit_identifier}) was overwritten")


def _went_back(seen: str) -> TablePositionMismatch:
    return TablePositionMismatch(
        f"the table lost commits that it had acknowledged: {seen}",
        cause="the table was rolled back, dropped and made again, or another engine overwrote a snapshot",
        next_step="restore the table, or start from a checkpoint that fits it, or with a new checkpoint folder",
    )


def _expired(snapshot_id: int) -> TablePositionMismatch:
    return TablePositionMismatch(
        f"snapshot {snapshot_id} is gone, so nobody can tell whether it held a commit of ours",
        cause="snapshots were expired while the query did not run, or faster than it commits",
        next_step="keep more snapshots (snapshot.num-retained.min); compare table and checkpoint before going on",
        snapshot=snapshot_id,
    )
