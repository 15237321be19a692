"""The whole engine without Spark: savepoints."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from typing import Any, NoReturn

import pytest

import penstock as pen
from penstock.engine import transfer
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.commitlog import read_commits
from penstock.engine.pins import Pins
from penstock.engine.savepoint import SavepointJob, take_savepoint
from penstock.errors import (
    CorruptFile,
    NoSuchCheckpoint,
    SavepointRefused,
    StorageFailed,
)
from penstock.observe.events import (
    EpochPublished,
    Event,
    QueryStarted,
    SavepointFailed,
    SavepointTaken,
    decode_events,
)
from penstock.protocol.layout import EVENTS, SAVEPOINT_MARKER, manifest_path, retired_path
from penstock.store import LocalStore, MemoryStore, Store, open_store
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import (
    FakeClock,
    assert_exact,
    batches_of,
    epochs,
    keyed_slow,
    newest_manifest,
    run_until,
    savepoint_of,
    tree,
    with_rows_in_flight,
)


def test_a_savepoint_taken_while_epochs_go_on_restores_elsewhere_without_the_original(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B1, B14: with rows in flight, at another parallelism, from a plain copy of the savepoint."""
    run = InlineRun(batches_of(1000, 2), clock)
    query = run_until(
        run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=tmp_path / "here", epoch="100 ms"
    )
    made = query.savepoint(tmp_path / "saved")
    assert made.checkpoint == query.manifest().checkpoint
    assert made.rows_in_flight == query.manifest().rows_in_flight > 0
    assert made.bytes > 0
    shutil.copytree(tmp_path / "saved", tmp_path / "copy")
    shutil.rmtree(tmp_path / "here")
    shutil.rmtree(tmp_path / "saved")
    events: list[Event] = []
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=tmp_path / "copy", epoch="100 ms",
        parallelism=7, on_event=events.append,
    ).await_termination(30)  # fmt: skip
    assert_exact(table, 2000)
    (started,) = [event for event in events if isinstance(event, QueryStarted)]
    assert started.restored == made.checkpoint
    assert started.origin == (tmp_path / "copy").as_uri()


def test_a_savepoint_is_taken_by_a_running_query_and_epochs_do_not_wait(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B13, B14: copying hangs for twenty epochs; its files are pinned although their checkpoints are long retired."""
    go_on, copying, after = threading.Event(), threading.Event(), threading.Event()
    original = transfer.Transfer.step

    def slow_step(self) -> bool:
        copying.set()
        assert go_on.wait(30)
        return original(self)

    monkeypatch.setattr(transfer.Transfer, "step", slow_step)
    events: list[Event] = []
    begun: list[int] = []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, EpochPublished) and event.checkpoint == 6:
            begun.append(len(epochs(events)))
            jobs.append(box[0].savepoint(tmp_path / "saved", wait=False))
        if begun and len(epochs(events)) >= begun[0] + 20:
            after.set()

    box: list[pen.Query] = []
    jobs: list[SavepointJob] = []
    ready = threading.Event()
    run = InlineRun(batches_of(1000, 3), clock, prepare=lambda _: ready.wait())
    starter = threading.Thread(target=lambda: box.append(
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="50 ms", retain=1, on_event=listen)
    ))  # fmt: skip
    ready.set()
    starter.start()
    starter.join()
    assert copying.wait(30)
    assert after.wait(30)
    go_on.set()
    made = jobs[0].result(30)
    box[0].await_termination(30)
    assert made.checkpoint < box[0].checkpoints()[0]
    (taken,) = [event for event in events if isinstance(event, SavepointTaken)]
    assert (taken.checkpoint, taken.rows_in_flight) == (made.checkpoint, made.rows_in_flight)
    # The table is ahead of the savepoint, so only its files are looked at here.
    Checkpoints(LocalStore(tmp_path / "saved")).verify_files(Checkpoints(LocalStore(tmp_path / "saved")).newest())


def test_stop_with_savepoint_saves_the_last_checkpoint(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B14: also when a listener asks for it."""
    run = InlineRun(batches_of(1000, 2), clock)
    box: list[pen.Query] = []
    started = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.checkpoint == 4:
            started.wait()
            box[0].stop(savepoint=tmp_path / "saved")

    box.append(run.start(keyed_slow(clock, table), checkpoint=tmp_path / "a", epoch="100 ms", on_event=listen))
    started.set()
    box[0].await_termination(30)
    assert box[0].manifest().rows_in_flight > 0
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "b", restore=tmp_path / "saved", epoch="100 ms", parallelism=2
    )
    with pytest.raises(SavepointRefused, match="saved holds"):
        query.stop(savepoint=tmp_path / "saved")
    made = query.stop(savepoint=tmp_path / "saved again")
    assert made is not None
    assert made.checkpoint == query.manifest().checkpoint
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "c", restore=tmp_path / "saved again", epoch="100 ms"
    ).await_termination(30)
    assert_exact(table, 2000)


def test_stop_with_savepoint_saves_a_query_that_has_ended_already(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B14: its input ended by itself, or another call has stopped it. Each call gets its own savepoint."""
    run = InlineRun(batches_of(1000, 2), clock)
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path / "a", epoch="100 ms")
    query.await_termination(30)
    assert query.stop() is None
    for name in ("one", "two"):
        made = query.stop(savepoint=tmp_path / name)
        assert made is not None
        assert (made.path, made.checkpoint) == (str(tmp_path / name), query.manifest().checkpoint)
        assert Checkpoints(LocalStore(tmp_path / name)).newest() == query.manifest()


def test_a_second_stop_gets_a_savepoint_of_its_own(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B14: the first one asked for another place."""
    run = InlineRun(batches_of(1000, 2), clock)
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path / "a", epoch="100 ms")
    first, second = query.stop(savepoint=tmp_path / "one"), query.stop(savepoint=tmp_path / "two")
    assert first is not None
    assert second is not None
    assert (first.path, second.path) == (str(tmp_path / "one"), str(tmp_path / "two"))
    assert query.stop() == first


def test_a_savepoint_is_a_checkpoint_folder_that_can_be_used_in_place(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B14."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    savepoint_of(tmp_path / "here", tmp_path / "saved")
    shutil.rmtree(tmp_path / "here")
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "saved", epoch="100 ms").await_termination(30)
    assert_exact(table, 2000)


@pytest.mark.parametrize("held", ["file in it", "file"])
def test_a_savepoint_into_something_is_refused(tmp_path: Path, clock: FakeClock, table: str, held: str) -> None:
    """B14: an empty folder will do."""
    with_rows_in_flight(tmp_path / "here", clock, table)
    place = tmp_path / "saved"
    if held == "file":
        place.write_text("mine")
    else:
        place.mkdir()
        (place / "mine").write_text("mine")
    with pytest.raises(SavepointRefused, match="saved"):
        savepoint_of(tmp_path / "here", place)
    if held != "file":
        (place / "mine").unlink()
        assert savepoint_of(tmp_path / "here", place).rows_in_flight > 0


def test_a_disk_that_fills_up_leaves_nothing_behind(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12, B14: at whatever file it happens; the running query does not care."""
    run = InlineRun(batches_of(1000, 2), clock)
    query = run_until(
        run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=tmp_path / "here", epoch="100 ms"
    )
    original = LocalStore.adopt
    for files in range(3):
        left = [files]

        def adopt(self, path, origin, *, link=True, left=left):
            if not left[0]:
                raise StorageFailed(f"{path}: {os.strerror(errno.ENOSPC)}")
            left[0] -= 1
            original(self, path, origin, link=link)

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "adopt", adopt)
            with pytest.raises(StorageFailed, match="No space left"):
                query.savepoint(tmp_path / "saved")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]
    failed = [
        e for e in decode_events((tmp_path / "here" / "events.jsonl").read_bytes()) if isinstance(e, SavepointFailed)
    ]
    assert [event.error.code for event in failed] == ["PEN-032"] * 3


def test_a_savepoint_of_a_damaged_file_fails_with_its_name(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B12: its bytes are compared with what was written, not only its size."""
    with_rows_in_flight(tmp_path / "here", clock, table)
    for path in (tmp_path / "here" / "segments").rglob("*.arrow"):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"segments/.*brought from"):
        savepoint_of(tmp_path / "here", tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_files_are_copied_where_they_cannot_be_linked(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B14: another file system, and storage that is no file system."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    savepoint_of(tmp_path / "here", tmp_path / "linked")

    real = os.link

    def no_link(old: str, new: str, **how: Any) -> None:
        if not old.startswith(".tmp-"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        real(old, new, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_link)
        savepoint_of(tmp_path / "here", tmp_path / "copied")
    assert tree(tmp_path / "linked") == tree(tmp_path / "copied")
    for name in sorted(tree(tmp_path / "linked")):
        assert (tmp_path / "linked" / name).read_bytes() == (tmp_path / "copied" / name).read_bytes()
        if name.endswith(".arrow"):
            assert (tmp_path / "linked" / name).samefile(tmp_path / "here" / name)
            assert not (tmp_path / "copied" / name).samefile(tmp_path / "here" / name)
    store = MemoryStore(table)
    checkpoints = Checkpoints(LocalStore(tmp_path / "here"))
    take_savepoint(checkpoints.newest(), checkpoints.store, store, store.url)
    shutil.rmtree(tmp_path / "here")
    held = open_store(store.url)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=held.url, epoch="100 ms", parallelism=3
    ).await_termination(30)
    assert_exact(table, 2000)


def test_a_checkpoint_that_is_retired_while_it_is_being_pinned_is_not_pinned(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B13: the newer one is."""
    with_rows_in_flight(tmp_path, clock, table, retain=3)
    checkpoints = Checkpoints(LocalStore(tmp_path))
    older, newer = (checkpoints.read(number) for number in checkpoints.ids()[-2:])
    answers = [older, newer, newer]
    (tmp_path / "manifests" / f"{older.checkpoint:010d}.json").unlink()
    pins = Pins(checkpoints)
    held, release = pins.hold_newest(lambda: answers.pop(0))
    assert held == newer
    assert pins.files() == newer.files()
    release()
    assert pins.files() == frozenset()
    newest_manifest(tmp_path).unlink()
    with pytest.raises(NoSuchCheckpoint):
        pins.hold_newest(lambda: newer)


def test_a_savepoint_that_fails_and_cannot_be_cleaned_up_ends_all_the_same(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12, B14: whoever waits for it learns why, and nothing stays pinned."""
    with_rows_in_flight(tmp_path, clock, table)
    checkpoints = Checkpoints(LocalStore(tmp_path))
    target = open_store("memory://savepoint-without-clean-up")
    released: list[bool] = []
    job = SavepointJob(
        checkpoints.newest(), checkpoints.store, target, target.url, release=lambda: released.append(True)
    )
    assert job.step() is not None

    def down(*_: object, **__: object) -> NoReturn:
        raise StorageFailed("the store is down", cause="a test", next_step="none")

    monkeypatch.setattr(type(target), "adopt", down)
    monkeypatch.setattr(type(target), "list", down)
    while job.step() is not None:
        pass
    assert job.done
    assert released
    with pytest.raises(StorageFailed, match="the store is down"):
        job.result(0)


def two_jobs(tmp_path: Path, clock: FakeClock, table: str, target: Store) -> tuple[SavepointJob, SavepointJob]:
    """Of two queries, into one place that is not a local folder."""
    jobs = []
    for name in ("one", "other"):
        with_rows_in_flight(tmp_path / name, clock, f"{table}-{name}")
        checkpoints = Checkpoints(LocalStore(tmp_path / name))
        jobs.append(SavepointJob(checkpoints.newest(), checkpoints.store, target, target.url))
    return jobs[0], jobs[1]


def finish(job: SavepointJob) -> None:
    while not job.done:
        job.step()


def test_where_a_savepoint_is_being_written_another_one_is_refused_and_deletes_nothing(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B14."""
    target = MemoryStore()
    one, other = two_jobs(tmp_path, clock, table, target)
    one.step()
    finish(other)
    assert isinstance(other.error, SavepointRefused)
    assert SAVEPOINT_MARKER in str(other.error)
    finish(one)
    assert Checkpoints(target).newest() == one.manifest
    beside = [EVENTS, manifest_path(one.manifest.checkpoint)]
    assert len(target.list("")) == one.result(0).files + len(target.list("source")) + len(beside)
    assert [commit.last for commit in read_commits(target)] == [one.manifest.checkpoint], "of the pending result"
    Checkpoints(target).verify_files(one.manifest)


@pytest.mark.parametrize("finished", [False, True])
def test_a_savepoint_that_was_begun_since_the_first_look_is_noticed(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """B14."""
    target = MemoryStore()
    one, other = two_jobs(tmp_path, clock, table, target)
    original, left = MemoryStore.create, [one]

    def create(self: MemoryStore, path: str, data: bytes) -> None:
        if path == SAVEPOINT_MARKER and left:
            begun = left.pop()
            finish(begun) if finished else begun.step()
        original(self, path, data)

    monkeypatch.setattr(MemoryStore, "create", create)
    finish(other)
    assert isinstance(other.error, SavepointRefused)
    finish(one)
    assert not target.exists(SAVEPOINT_MARKER)
    Checkpoints(target).verify_files(one.manifest)


def test_a_savepoint_that_fails_removes_what_it_has_written_and_nothing_else(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B12, B14: also the manifest, when its answer was lost."""
    target = MemoryStore()
    job, _ = two_jobs(tmp_path, clock, table, target)
    job.step()
    job.step()
    target.create("notes.txt", b"not ours")
    original = MemoryStore.create

    def lost(self: MemoryStore, path: str, data: bytes) -> NoReturn:
        original(self, path, data)
        raise StorageFailed("the answer was lost", cause="a test", next_step="none")

    monkeypatch.setattr(MemoryStore, "create", lost)
    finish(job)
    assert isinstance(job.error, StorageFailed)
    assert [entry.path for entry in target.list("")] == ["notes.txt"]


def test_a_savepoint_of_a_driver_whose_takeover_was_retired_is_refused(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B13, B14: its manifest is still there, to keep the name taken, but it is no checkpoint any more."""
    with_rows_in_flight(tmp_path, clock, table, retain=3)
    checkpoints = Checkpoints(LocalStore(tmp_path))
    newest = checkpoints.newest()
    assert newest is not None
    checkpoints.store.create(retired_path(newest.checkpoint), b"")
    with pytest.raises(NoSuchCheckpoint):
        Pins(checkpoints).hold_newest(lambda: newest)
