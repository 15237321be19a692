"""What a committer learns of its own commits from a table whose snapshots others take away and make anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from penstock.sinks.paimon.history import CommitHistory

OURS, OTHERS = "us", "somebody"


@dataclass(frozen=True)
class Snapshot:
    id: int
    commit_user: str
    commit_identifier: int
    commit_kind: str = "APPEND"
    delta_record_count: int = 1
    watermark: int | None = None
    time_millis: int = 0

    @property
    def uuid(self) -> str:
        return f"{self.commit_user}-{self.id}"


@dataclass
class Files:
    snapshots: list[Snapshot]
    expired: int = 0

    def latest(self) -> Snapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def snapshot(self, number: int) -> Snapshot | None:
        return self.snapshots[number - 1] if self.expired < number <= len(self.snapshots) else None

    def files_added(self, snapshot: Snapshot) -> int:
        return 1


def told(files: Files, oldest: int | None, floor: int) -> tuple[list[int], int | None]:
    """The checkpoints that a new committer finds, and the snapshot that it misses."""
    history = CommitHistory(cast("Any", files), OURS)
    history.ask(oldest)
    told = history.told(oldest, 10, floor)
    return [receipt.checkpoint for receipt in told.commits], told.gone


def test_a_commit_under_a_number_that_the_floor_had_passed_is_found() -> None:
    """Somebody's snapshot 2 was known to hold nothing of ours; it was rolled back, and ours took its number."""
    assert told(Files([Snapshot(1, OURS, 2), Snapshot(2, OTHERS, 9)]), 1, 2) == ([2], None)
    assert told(Files([Snapshot(1, OURS, 2), Snapshot(2, OURS, 6)]), 1, 2) == ([2, 6], None)


def test_a_snapshot_at_the_floor_may_be_missing() -> None:
    others = [Snapshot(number, OTHERS, number) for number in range(1, 5)]
    assert told(Files(others, expired=2), None, 2) == ([], None)
    assert told(Files(others, expired=3), None, 2) == ([], 3)
