"""The whole engine without Spark: restoring from elsewhere, dropping in-flight data."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.errors import (
    ConfigError,
    MissingFile,
    NoSuchCheckpoint,
    RestoreRefused,
)
from penstock.observe.events import (
    Event,
    InFlightDropped,
)
from penstock.protocol.advance import unbalanced
from penstock.protocol.ids import Generation
from penstock.store import LocalStore
from penstock.testing.inline import InlineRun
from penstock.testing.tables import memory_table
from tests.support.engine_jobs import (
    FakeClock,
    assert_exact,
    keyed_slow,
    run_until,
    savepoint_of,
    tree,
    with_rows_in_flight,
)

EDGE = "source-to-slow"


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


def test_of_two_drivers_that_do_the_same_restore_the_newer_one_goes_on(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1, C9: the second finds the folder empty, then finds the first one's checkpoints in it."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    original = Checkpoints.claim_generation
    rivals = []

    def claim(self: Checkpoints, driver: Driver, above: int = 0) -> Generation:
        monkeypatch.setattr(Checkpoints, "claim_generation", original)
        rival = InlineRun(run.batches, clock, accepted=[0, 1])
        query = run_until(
            rival, keyed_slow(clock, table), lambda e: e.checkpoint == 7,
            checkpoint=tmp_path / "new", restore=tmp_path / "here", epoch="100 ms",
        )  # fmt: skip
        rivals.append(query.manifest().checkpoint)
        return original(self, driver, above)

    monkeypatch.setattr(Checkpoints, "claim_generation", claim)
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "new", restore=tmp_path / "here", epoch="100 ms", parallelism=2,
        retain=99,
    )  # fmt: skip
    query.await_termination(30)
    assert_exact(table, 2000)
    assert rivals[0] >= 7
    assert query.generation == 3


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
        keyed_slow(clock, table), checkpoint=tmp_path, restore=4, drop_in_flight=names, on_event=events.append
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
