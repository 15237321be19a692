"""What the tests of upkeep share: a table with a history, and the proof that nothing about its rows changed."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.protocol.commit import CommitReceipt
from penstock.protocol.manifest import Committable
from penstock.sinks.paimon import local
from penstock.sinks.paimon.commit import PaimonCommitter
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import compact, files
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep
from tests.support.second_reader import ids_at, root_of, snapshot_json, snapshots_of
from tests.support.tables import commit, epoch, ids_in, ids_of

USER = "penstock-me-words"
EAGER = Upkeep(manifests=2, small_files=2, snapshots=2, snapshots_for=0.0)


def newest_commit(committer: PaimonCommitter, snapshot: int | None = None) -> CommitReceipt | None:
    """The last commit of the committer's user that the table holds."""
    return next(iter(reversed(committer.commits(snapshot, 1_000).commits)), None)


class Story:
    """A table, its committer, and which checkpoints it must hold."""

    def __init__(self, sink: Paimon, user: str = USER) -> None:
        self.sink, self.user = sink, user
        self.committer: PaimonCommitter = sink.open_committer(user)
        self.checkpoint = 0

    def commit(self, times: int = 1) -> None:
        for _ in range(times):
            self.checkpoint += 1
            commit(self.committer, self.checkpoint, epoch(self.sink, self.checkpoint))

    def keeper(
        self,
        policy: Upkeep = EAGER,
        *,
        pending: Callable[[], Iterable[Committable]] = tuple,
        clock: Callable[[], float] | None = None,
        **options: object,
    ) -> PaimonKeeper:
        timing = {} if clock is None else {"clock": clock}
        return PaimonKeeper(
            self.sink.warehouse,
            self.sink.table,
            policy,
            own_user=self.user,
            pending=pending,
            **timing,
            **options,  # type: ignore[arg-type]
        )

    def expected(self) -> Counter[int]:
        return ids_of(range(1, self.checkpoint + 1))

    def assert_whole(self) -> None:
        """Each row once, for pypaimon and for the second reader, in the newest and in every retained snapshot; the
        table still proves what was committed."""
        assert ids_in(self.sink) == self.expected()
        for number in snapshots_of(self.sink):
            at = snapshot_json(self.sink, number)
            assert ids_at(self.sink, at) == self.expected_at(number)
            assert travel(self.sink, {"scan.snapshot-id": str(number)}) == self.expected_at(number)
        receipt = newest_commit(self.sink.open_committer(self.user))
        assert receipt is not None
        assert receipt.checkpoint == self.checkpoint

    def expected_at(self, number: int) -> Counter[int]:
        """What a snapshot must hold: as many checkpoints as it says, from the first on."""
        count = snapshot_json(self.sink, number)["totalRecordCount"]
        return ids_of(range(1, count // 2 + 1))


@pytest.fixture
def story(sink: Paimon) -> Story:
    return Story(sink)


def travel(sink: Paimon, options: dict[str, str]) -> Counter[int]:
    builder = open_table(sink.warehouse, sink.table).copy(options).new_read_builder()
    rows: pa.Table = builder.new_read().to_arrow(builder.new_scan().plan().splits())
    return Counter(rows["id"].to_pylist())


def metadata_bytes(sink: Paimon) -> int:
    return sum(path.stat().st_size for path in (root_of(sink) / "manifest").iterdir())


class Crash(BaseException):
    """The process is gone: nothing it does from here on reaches the disk."""


class Steps:
    """Counts every change that upkeep makes on disk, and calls `before` ahead of each."""

    CHANGES = (
        (files.KeptTable, "write_manifests"),
        (files.KeptTable, "prepare_snapshot"),
        (compact, "rewrite"),
        (local, "sync_files"),
        (local, "write_hidden"),
        (local, "link"),
        (local, "replace"),
        (Path, "unlink"),
    )

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.before: Callable[[int, str], None] = lambda _number, _name: None
        self.names: list[str] = []
        self._inside = False
        for owner, name in self.CHANGES:
            patch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, real: Callable[..., object]) -> Callable[..., object]:
        def change(*args: object, **options: object) -> object:
            if not self._inside:
                self.names.append(name)
                self._inside = True  # what `before` does is not upkeep's
                try:
                    self.before(len(self.names) - 1, name)
                finally:
                    self._inside = False
            return real(*args, **options)

        return change

    def crash_at(self, number: int) -> None:
        def before(count: int, _name: str) -> None:
            if count >= number:
                raise Crash

        self.before, self.names = before, []

    def run_at(self, number: int, act: Callable[[], None]) -> None:
        """Lets somebody else act between two changes."""

        def before(count: int, _name: str) -> None:
            if count == number:
                act()

        self.before, self.names = before, []

    def refuse_at(self, number: int) -> None:
        def before(count: int, _name: str) -> None:
            if count == number:
                raise OSError(errno.ENOSPC, "No space left on device")

        self.before, self.names = before, []

    def off(self) -> None:
        self.before, self.names = lambda _number, _name: None, []


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)
