"""What a table holds of one commit user, so that no checkpoint is committed twice.

Snapshots are numbered without gaps and never change, so each is read once: a question walks back from the newest
snapshot to the newest one of ours, or to where the last question began. Other engines expire snapshots: one that is
missing on the way is remembered as `gone`, because it may have held a commit of ours. Filtering is by high-water mark:
checkpoint ids only grow. Snapshots of our commit user that compact are no commits: they add no rows.
"""

from __future__ import annotations

from penstock.errors import TablePositionMismatch
from penstock.protocol.commit import Remembered, TableHistory, trusted
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import CommitReceipt
from penstock.sinks.paimon.private import Snapshot, TableFiles


class CommitHistory:
    """The newest commit of one commit user, kept up to date."""

    def __init__(self, files: TableFiles, commit_user: str) -> None:
        self._files = files
        self._user = commit_user
        self._seen: int | None = None
        self._newest: Snapshot | None = None
        self._gone = 0
        self._proven = 0
        self._door_closed = False

    @property
    def asked(self) -> bool:
        return self._seen is not None

    @property
    def seen(self) -> int:
        """The newest snapshot that was there at the last question."""
        assert self._seen is not None, "ask first"
        return self._seen

    @property
    def gone(self) -> int:
        """The newest snapshot that could not be read and is newer than our newest commit; 0 when there is none."""
        return 0 if self._newest is not None and int(self._newest.id) > self._gone else self._gone

    @property
    def checkpoint(self) -> CheckpointId:
        """The newest committed checkpoint; -1 when the table shows none."""
        return CheckpointId(-1 if self._newest is None else int(self._newest.commit_identifier))

    def receipt(self) -> CommitReceipt | None:
        return None if self._newest is None else self._receipt(self._newest)

    def told(self, oldest_snapshot: int | None, limit: int, floor: int) -> TableHistory:
        """What the last question found; `floor` as for `ask`."""
        known = max(oldest_snapshot or 0, trusted(floor, self.seen))
        if self._gone <= known:
            self._gone = 0
        return TableHistory(
            self._receipts(oldest_snapshot, limit),
            latest=self.seen,
            gone=self.gone or None,
            remembered=self._remembered(oldest_snapshot),
        )

    def _receipts(self, oldest_snapshot: int | None, limit: int) -> tuple[CommitReceipt, ...]:
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

    def _remembered(self, snapshot_id: int | None) -> Remembered:
        if snapshot_id is None:
            return Remembered.NOTHING
        if snapshot_id > self.seen:
            return Remembered.LOST
        snapshot = self._files.snapshot(snapshot_id)
        if snapshot is None:
            return Remembered.EXPIRED
        return Remembered.PRESENT if self._is_ours(snapshot) else Remembered.LOST

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

        A `floor` only excuses snapshots that are missing. Those that are there are read: a table that was rolled back
        below the floor and has grown since may have commits of ours under numbers that held others' before.

        Raises: `TablePositionMismatch` when the table lost snapshots that this committer has seen.
        """
        latest = self._files.latest()
        latest_id = 0 if latest is None else int(latest.id)
        if self._seen is not None:
            self._check_newest()
            self.read_to(latest_id)
            return
        self._walk_back(latest_id, oldest_snapshot or 0)
        if self._newest is None and oldest_snapshot is not None:
            snapshot = self._files.snapshot(oldest_snapshot)
            self._newest = snapshot if snapshot is not None and self._is_ours(snapshot) else None
        self._seen = latest_id

    def read_to(self, snapshot_id: int) -> None:
        """Reads the snapshots up to this one.

        Raises: `TablePositionMismatch` when more had been there.
        """
        if snapshot_id < self.seen:
            raise _went_back(f"its newest snapshot is {snapshot_id or 'none'}, it had {self.seen} before")
        self._walk_back(snapshot_id, self.seen)
        self._seen = snapshot_id

    def add(self, snapshot: Snapshot) -> None:
        """Notes a commit that this committer made itself: it may expire before the next question."""
        self._newest, self._seen = snapshot, int(snapshot.id)

    def close_door(self) -> None:
        """No older driver can commit from now on."""
        self._door_closed = True

    def prove(self) -> None:
        """What was read so far tells all that we need: a file that waited is listed, so it was committed."""
        self._proven = self.seen

    def holds(self, checkpoint: CheckpointId) -> bool:
        """Whether the table holds this checkpoint already; asked right before it is committed.

        The committables were chosen by what the table held when we last asked. If a rival committed since then, but
        not up to this checkpoint, some of them may be in the table.

        Raises: `TablePositionMismatch` for such a rival, and as `ask` and `judge_gap`.
        """
        known = self.checkpoint if self.asked else None
        self.ask()
        self.judge_gap()
        found = self.checkpoint
        if known not in {None, found} and found < checkpoint:
            raise rival(checkpoint, found)
        return found >= checkpoint

    def judge_gap(self) -> None:
        """Snapshots expired before this committer looked.

        Nothing of ours is in doubt when a commit begins, and behind a closed door no older driver can publish. A newer
        one may have, but then this one is told that it does not lead. So they were not ours.

        Raises: `TablePositionMismatch` where that does not hold.
        """
        if self.gone > self._proven and not self._door_closed:
            raise _expired(self.gone)
        self._gone = 0

    def _walk_back(self, latest_id: int, bottom: int) -> None:
        """From the newest down to ours, to one that is gone, or to `bottom`, which was read before."""
        for number in range(latest_id, bottom, -1):
            snapshot = self._files.snapshot(number)
            if snapshot is None:
                self._gone = number
                return
            if self._is_ours(snapshot):
                self._newest = snapshot
                return

    def _check_newest(self) -> None:
        """A committer that renames, unlike ours, can overwrite a snapshot: never build on a lost commit."""
        ours = self._newest
        there = None if ours is None else self._files.snapshot(int(ours.id))
        if ours is not None and there is not None and there.uuid != ours.uuid:
            raise _went_back(f"our snapshot {ours.id} (checkpoint {ours.commit_identifier}) was overwritten")


def rival(checkpoint: CheckpointId, found: CheckpointId) -> TablePositionMismatch:
    return TablePositionMismatch(
        f"checkpoint {found} appeared in the table while {checkpoint} was being committed; nothing was published",
        cause="another driver of the same checkpoint folder commits too",
        next_step="ask the table again and commit only what it does not hold",
        checkpoint=checkpoint,
        found=found,
    )


def _expired(snapshot_id: int) -> TablePositionMismatch:
    return TablePositionMismatch(
        f"snapshot {snapshot_id} is gone, so the table cannot tell whether it held a commit of ours; nothing published",
        cause="snapshots were expired faster than the query commits",
        next_step="keep more snapshots (snapshot.num-retained.min); compare table and checkpoint before going on",
        snapshot=snapshot_id,
    )


def _went_back(seen: str) -> TablePositionMismatch:
    return TablePositionMismatch(
        f"the table lost commits that it had acknowledged: {seen}",
        cause="the table was rolled back, dropped and made again, or another engine overwrote a snapshot",
        next_step="start the query again: it goes on if its own commits are still there, and says so if they are not",
    )
