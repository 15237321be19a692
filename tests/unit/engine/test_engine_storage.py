"""The whole engine without Spark: storage that fails at any moment. Nothing hangs, nothing is swallowed (B12)."""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.engine.cluster import StageJob
from penstock.errors import CorruptFile, MissingFile, PenstockError, StorageFailed, storage_failed
from penstock.inflight import prefetch
from penstock.store import MemoryStore
from penstock.store.local import LocalReader
from penstock.testing.inline import InlineCluster, InlineRun
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, keyed_slow

DAMAGES: dict[str, tuple[Callable[[Path], object], type[PenstockError]]] = {
    "deleted": (Path.unlink, MissingFile),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-9]), CorruptFile),
    "emptied": (lambda path: path.write_bytes(b""), CorruptFile),
}


def damaged_before(checkpoint: int, place: Path, folder: str, damage: Callable[[Path], object]):
    """All files of a kind are damaged right before the job of an epoch, while the query runs."""

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if job.plan.checkpoint == checkpoint:
                for path in (place / folder).rglob("*.arrow"):
                    damage(path)

        cluster.before_job = before_job

    return prepare


@pytest.mark.parametrize("folder", ["segments", "state"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_goes_bad_under_a_running_query_stops_it_with_everything_one_needs_to_know(
    tmp_path: Path, clock: FakeClock, table: str, folder: str, damage: str
) -> None:
    """B12: stage, subtask, file and next step; nothing of the epoch is published."""
    act, kind = DAMAGES[damage]
    run = InlineRun(batches_of(600, 1), clock, prepare=damaged_before(4, tmp_path, folder, act))
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms")
    with pytest.raises(kind) as caught:
        query.await_termination(30)
    error = caught.value
    assert f"{folder}/" in error.fields["path"]
    assert error.fields["path"] in error.seen
    assert (error.fields["stage"], "subtask " in error.seen) == ("slow", True)
    assert error.fields["subtask"].isdigit()
    assert error.next_step
    assert query.manifest().checkpoint == 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE])
def test_a_disk_that_cannot_be_read_stops_the_query(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """B12: also when it happens in the thread that reads ahead; put right again, the query goes on."""
    reads = itertools.count()
    original = LocalReader.read_into

    def failing(self: LocalReader, offset: int, target: memoryview) -> None:
        if next(reads) == 20:  # a run has some forty, fewer on a busy machine, whose epochs are longer
            raise storage_failed("segments/x", OSError(code, os.strerror(code)))
        original(self, offset, target)

    run = InlineRun(batches_of(600, 1), clock)
    with monkeypatch.context() as patch:
        patch.setattr(LocalReader, "read_into", failing)
        query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms", epoch_retries=0)
        with pytest.raises(StorageFailed, match=os.strerror(code)) as caught:
            query.await_termination(30)
    assert caught.value.fields["stage"] == "slow"
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms").await_termination(30)
    assert_exact(table, 600)


@pytest.mark.parametrize("failure", [MemoryError("no room"), RuntimeError("a fault"), SystemExit(3)])
def test_a_prefetch_thread_that_dies_is_noticed(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """B12: whatever ends it, the query ends with it instead of waiting for rows that never come."""
    pulls = itertools.count()
    original = prefetch.ReadAhead.start

    def start(self: prefetch.ReadAhead) -> None:
        items = self._items

        def dying():
            for item in items:
                if next(pulls) == 3:
                    raise failure
                yield item

        self._items = dying()
        original(self)

    run = InlineRun(batches_of(600, 1), clock)
    with monkeypatch.context() as patch:
        patch.setattr(prefetch.ReadAhead, "start", start)
        patch.setattr(prefetch.ReadAhead, "get", _started_first(prefetch.ReadAhead.get))
        query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms")
        with pytest.raises(PenstockError, match=f"{type(failure).__name__}: {failure}"):
            query.await_termination(30)
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms").await_termination(30)
    assert_exact(table, 600)


def _started_first(original: Callable[..., object]) -> Callable[..., object]:
    def get(self: prefetch.ReadAhead) -> object:
        self.start()
        return original(self)

    return get


class Flaky(MemoryStore):
    """Refuses one operation, the `fails_at`-th of all."""

    operations = 0
    fails_at: float = float("inf")

    def _count(self, what: str, path: str) -> None:
        self.operations += 1
        if self.operations == self.fails_at:
            raise StorageFailed(f"{what} {path}: the storage is away", next_step="wait until it is back")


def _refusing(name: str) -> Callable[..., object]:
    def call(self: Flaky, path: str, *args: object, **kwargs: object) -> object:
        self._count(name, path)
        return getattr(MemoryStore, name)(self, path, *args, **kwargs)

    return call


for _name in ("create", "read", "exists", "list", "append", "open_writer", "open_reader"):
    setattr(Flaky, _name, _refusing(_name))


def test_storage_that_is_away_at_any_operation_of_start_or_run_loses_nothing(clock: FakeClock, table: str) -> None:
    """B12: the query ends with that error, or did not need the operation; the next start is exact.

    Nothing is tried again here, so that every operation gets its failure."""
    options = {"epoch_retries": 0, "storage_timeout": 0}
    seed = random.SystemRandom().randrange(1 << 30)
    choose = random.Random(seed)
    failures: list[str] = []
    for number, fails_at in enumerate(sorted(choose.sample(range(1, 80), 24))):
        store = Flaky()
        store.fails_at = fails_at
        name = f"{table}-{number}"
        run = InlineRun(batches_of(60, 2), clock, open_store=lambda _, store=store: store)
        try:
            query = run.start(keyed_slow(clock, name), checkpoint="memory://x", epoch="20 ms", retain=1, **options)
            query.await_termination(30)
        except StorageFailed as error:
            failures.append(str(error))
        store.fails_at = float("inf")
        run.start(keyed_slow(clock, name), checkpoint="memory://x", epoch="20 ms", parallelism=3).await_termination(30)
        assert_exact(name, 120)
    assert len(failures) > 5, f"seed {seed}"
    assert all("the storage is away" in failure for failure in failures), f"seed {seed}: {failures}"
