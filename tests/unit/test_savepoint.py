"""The whole engine without Spark: savepoints, restoring from elsewhere, dropping in-flight data."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter
from pathlib import Path

import pytest

import penstock as pen
from penstock.engine import transfer
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.pins import Pins
from penstock.engine.savepoint import SavepointJob, take_savepoint
from penstock.errors import (
    ConfigError,
    CorruptFile,
    MissingFile,
    NoSuchCheckpoint,
    RestoreRefused,
    SavepointRefused,
    StorageFailed,
)
from penstock.observe.events import (
    EpochPublished,
    Event,
    InFlightDropped,
    QueryStarted,
    SavepointFailed,
    SavepointTaken,
    decode_events,
)
from penstock.protocol.advance import unbalanced
from penstock.store import LocalStore, MemoryStore, open_store
from penstock.testing.inline import InlineRun
from penstock.testing.tables import memory_table
from tests.unit.engine_jobs import FakeClock, assert_exact, batches_of, epochs, keyed_slow, newest_manifest, run_until

EDGE = "source-to-slow"


def with_rows_in_flight(place: Path, clock: FakeClock, table: str, **options) -> InlineRun:
    """A folder that ends at checkpoint 4 with most of 1,000 rows in flight."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=place, epoch="100 ms", **options)
    return run


def tree(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}


def savepoint_of(place: Path, path: Path):
    checkpoints = Checkpoints(open_store(str(place)))
    manifest = checkpoints.newest()
    assert manifest is not None
    return take_savepoint(manifest, checkpoints.store, open_store(str(path)), str(path))


# -- savepoints --------------------------------------------------------------------------------------------------------


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
        parallelism=7, listeners=(events.append,),
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
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="50 ms", retain=1, listeners=(listen,))
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

    box.append(run.start(keyed_slow(clock, table), checkpoint=tmp_path / "a", epoch="100 ms", listeners=(listen,)))
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

    def no_link(self: Path, target: Path) -> None:
        if not target.name.startswith(".tmp-"):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        os.link(target, self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "hardlink_to", no_link)
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


# -- restoring from elsewhere ------------------------------------------------------------------------------------------


def test_one_checkpoint_of_a_copied_folder_is_named(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B1: an older one; the source goes back with it, ids go on after it."""
    run = with_rows_in_flight(tmp_path / "here", clock, table, retain=9)
    table_rows = memory_table(table)
    kept = [snapshot for snapshot in table_rows.snapshots if snapshot.receipt.checkpoint <= 3]
    table_rows.snapshots[:] = kept
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=f"{tmp_path / 'here'}@3", epoch="100 ms",
        parallelism=2, retain=99,
    )  # fmt: skip
    query.await_termination(30)
    assert_exact(table, 2000)
    assert query.checkpoints()[0] == 4
    assert query.generation == 2


def test_a_folder_whose_name_looks_like_a_checkpoint_is_taken_as_it_is(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    run = with_rows_in_flight(tmp_path / "copy@3", clock, table)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=tmp_path / "copy@3", epoch="100 ms"
    ).await_termination(30)
    assert_exact(table, 2000)


def test_a_folder_with_a_history_is_not_restored_over(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B1: both places are named, and nothing is changed."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    savepoint_of(tmp_path / "here", tmp_path / "saved")
    before = tree(tmp_path / "here")
    with pytest.raises(RestoreRefused, match=r"here holds checkpoints 2 to 4 .*saved names checkpoint 4") as caught:
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", restore=tmp_path / "saved")
    assert "leave restore out" in caught.value.next_step
    with pytest.raises(RestoreRefused, match="restore=4 names"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", restore=tmp_path / "here")
    with pytest.raises(NoSuchCheckpoint, match="nothing holds no checkpoint"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=tmp_path / "nothing")
    with pytest.raises(NoSuchCheckpoint, match="checkpoint 77 is not in"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=f"{tmp_path / 'saved'}@77")
    assert tree(tmp_path / "here") == before
    assert not (tmp_path / "new").exists()


class Died(BaseException):
    """The driver is gone."""


def test_a_restore_that_dies_at_any_step_is_finished_by_the_next_start(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, B12: whatever was created last, with or without its effect; nothing is published before all is there."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    (tmp_path / "here" / "source" / "offsets").mkdir(parents=True)
    (tmp_path / "here" / "source" / "offsets" / "0").write_text("offsets")
    (tmp_path / "here" / "source" / "offsets" / "2").write_text("beyond")
    savepoint_of(tmp_path / "here", tmp_path / "saved")
    needed = tree(tmp_path / "saved") - {f"manifests/{4:010d}.json"}
    died = 0
    place = tmp_path / "new"
    for step in range(100):
        for when in ("before", "after"):
            calls = [step]

            def stumble(original, calls=calls, when=when):
                def call(self, path, *args, **kwargs):
                    if self.root == place and calls[0] == 0 and when == "before":
                        raise Died
                    original(self, path, *args, **kwargs)
                    if self.root == place:
                        calls[0] -= 1
                        if calls[0] < 0:
                            raise Died

                return call

            with monkeypatch.context() as patch:
                patch.setattr(LocalStore, "create", stumble(LocalStore.create))
                patch.setattr(LocalStore, "adopt", stumble(LocalStore.adopt))
                patch.setattr("penstock.engine.start.EpochRunner", _die)
                with pytest.raises(Died):
                    run.start(keyed_slow(clock, table), checkpoint=place, restore=tmp_path / "saved", epoch="100 ms")
            published = list(place.glob("manifests/*"))
            if published:
                assert needed <= tree(place)
                break
            died += 1
            if (place / "restored.json").exists():
                with pytest.raises(RestoreRefused, match=r"was begun and not finished"):
                    run.start(keyed_slow(clock, table), checkpoint=place)
            if step % 2:
                shutil.rmtree(place, ignore_errors=True)
        if published:
            break
    assert died > 5
    assert (place / "source" / "offsets" / "0").read_text() == "offsets"
    assert not (place / "source" / "offsets" / "2").exists()
    with pytest.raises(RestoreRefused):
        run.start(keyed_slow(clock, table), checkpoint=place, restore=tmp_path / "saved")
    run.start(keyed_slow(clock, table), checkpoint=place, epoch="100 ms", parallelism=3).await_termination(30)
    assert_exact(table, 2000)


def _die(**_: object) -> None:
    raise Died


def test_another_restore_into_a_half_restored_folder_is_refused(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "adopt", lambda *_, **__: _die())
        with pytest.raises(Died):
            run.start(keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=tmp_path / "here")
    table_rows = memory_table(table)
    table_rows.snapshots[:] = [snapshot for snapshot in table_rows.snapshots if snapshot.receipt.checkpoint <= 3]
    with pytest.raises(RestoreRefused, match=r"here@3 into .*restoring .*here@4 was begun"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=f"{tmp_path / 'here'}@3")


# -- dropping in-flight data -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", ["all", [EDGE], ["slow"]])
def test_in_flight_data_is_dropped_only_by_name_and_counted(
    tmp_path: Path, clock: FakeClock, table: str, names: object
) -> None:
    """B15: records add up with those dropped, in every later checkpoint."""
    run = with_rows_in_flight(tmp_path, clock, table)
    before = Checkpoints(LocalStore(tmp_path)).newest()
    assert before is not None
    events: list[Event] = []
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, restore=4, drop_in_flight=names, listeners=(events.append,)
    )
    query.await_termination(30)
    (dropped,) = [event for event in events if isinstance(event, InFlightDropped)]
    lost = before.edges[EDGE].rows_in_flight
    assert (dropped.edge, dropped.checkpoint, dropped.rows) == (EDGE, 4, lost)
    edge = query.manifest().edges[EDGE]
    assert (edge.accepted, edge.consumed, edge.dropped) == (2000, 2000 - lost, lost)
    assert unbalanced(query.manifest().edges) == ()
    counts = Counter(memory_table(table).rows()["number"].to_pylist())
    assert set(counts.values()) == {1}
    assert len(counts) == 2000 - lost


def test_nothing_is_dropped_without_a_named_checkpoint_or_by_a_wrong_name(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B15: the same program restarted must not drop again what is in flight then."""
    run = with_rows_in_flight(tmp_path, clock, table)
    with pytest.raises(RestoreRefused, match=r"drop_in_flight='all' without restore") as caught:
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, drop_in_flight="all")
    assert "restore=4" in caught.value.next_step
    with pytest.raises(ConfigError, match=f"'slwo'; edges are {EDGE}"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, restore=4, drop_in_flight=["slwo"])
    with pytest.raises(ConfigError):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, restore=4, drop_in_flight="slow")
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(30)
    assert_exact(table, 2000)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lost_segment_can_be_given_up(tmp_path: Path, clock: FakeClock, table: str, elsewhere: bool) -> None:
    """B12, B15: the refusal says how."""
    place = tmp_path / "here"
    run = with_rows_in_flight(place, clock, table)
    shutil.rmtree(place / "segments")
    options = {"checkpoint": tmp_path / "new", "restore": place} if elsewhere else {"checkpoint": place, "restore": 4}
    with pytest.raises(MissingFile, match="drop_in_flight"):
        run.start(keyed_slow(clock, table), **options)
    query = run.start(keyed_slow(clock, table), **options, drop_in_flight=["slow"])
    query.await_termination(30)
    edge = query.manifest().edges[EDGE]
    assert edge.dropped > 0
    assert memory_table(table).rows().num_rows == edge.consumed
