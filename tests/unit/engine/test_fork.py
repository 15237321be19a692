"""Forks in the engine without Spark: a second query from the same state, beside the original and harmless to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine import transfer
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.dryrun import plan_start
from penstock.engine.options import Config
from penstock.errors import ConfigError, ForkRefused, NoSuchCheckpoint, RestoreRefused
from penstock.graph.compiler import compile_pipeline
from penstock.observe.events import EpochPublished, Event
from penstock.protocol.advance import unbalanced
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import PendingCommit
from penstock.store import LocalStore
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, Snapshot, memory_table
from tests.support.engine_jobs import (
    SCHEMA,
    FakeClock,
    assert_exact,
    batches_of,
    keyed_slow,
    run_until,
    savepoint_of,
    tree,
    wait_until,
    with_rows_in_flight,
)

ROWS = 2000


def contents(place: Path) -> dict[str, bytes]:
    return {path: (place / path).read_bytes() for path in tree(place)}


def reader_of(run: InlineRun, place: Path) -> InlineRun:
    """Reads the same source on from where a folder's newest checkpoint is."""
    newest = Checkpoints(LocalStore(place)).newest()
    assert newest is not None
    batch = newest.source.batch_id
    return InlineRun(run.batches, run.clock, accepted=list(range(0 if batch is None else batch + 1)))


def numbers(table: str) -> list[int]:
    return memory_table(table).rows()["number"].to_pylist()


@pytest.mark.parametrize("origin", ["folder", "savepoint", "named"])
def test_a_fork_goes_on_with_state_and_rows_in_flight_and_the_original_stays_as_it_was(
    tmp_path: Path, clock: FakeClock, table: str, origin: str
) -> None:
    """F7: what the original has written is not written again; both go on to the end, each in its own table."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    places = {"folder": tmp_path / "here", "savepoint": tmp_path / "saved", "named": f"{tmp_path / 'here'}@4"}
    if origin == "savepoint":
        savepoint_of(tmp_path / "here", tmp_path / "saved")
    before, written = contents(tmp_path / "here"), numbers(table)
    fork = reader_of(run, tmp_path / "here").start(
        keyed_slow(clock, f"{table}-fork"), checkpoint=tmp_path / "fork", restore=places[origin], fork=True,
        epoch="100 ms", parallelism=3,
    )  # fmt: skip
    fork.await_termination(60)
    assert contents(tmp_path / "here") == before
    assert sorted(numbers(f"{table}-fork") + written) == list(range(ROWS))
    manifest, old = fork.manifest(), Checkpoints(LocalStore(tmp_path / "here")).newest()
    assert old is not None
    assert manifest.identity != old.identity
    assert not unbalanced(manifest.edges)
    assert {snapshot.user for snapshot in memory_table(f"{table}-fork").snapshots} == {
        f"penstock-{manifest.identity}-{name}" for name in manifest.sinks
    }
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="100 ms").await_termination(60)
    assert_exact(table, ROWS)


def test_what_the_original_has_still_to_commit_stays_with_it(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F7, C4: the rows of pending checkpoints come into the original's table alone."""
    refuse = threading.Event()

    def stall(_: object) -> None:
        if refuse.is_set():
            raise RuntimeError("the table takes no commits")

    memory_table(table).on_commit = stall
    refuse.set()
    run = InlineRun(batches_of(1000, 2), clock)
    with pytest.raises(pen.PenstockError):
        run_until(
            run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=tmp_path / "here", epoch="100 ms"
        )
    refuse.clear()
    newest = Checkpoints(LocalStore(tmp_path / "here")).newest()
    assert newest is not None
    waiting: list[PendingCommit] = [commit for sink in newest.sinks.values() for commit in sink.pending]
    assert waiting
    fork = reader_of(run, tmp_path / "here").start(
        keyed_slow(clock, f"{table}-fork"), checkpoint=tmp_path / "fork", restore=tmp_path / "here", fork=True,
        epoch="100 ms",
    )  # fmt: skip
    fork.await_termination(60)
    assert len(numbers(f"{table}-fork")) == ROWS - sum(commit.rows for commit in waiting)
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="100 ms").await_termination(60)
    assert_exact(table, ROWS)


def test_a_fork_into_the_originals_table_is_refused_before_anything_is_changed(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """F7: also under another name of the sink."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    before, rows = tree(tmp_path), memory_table(table).rows()
    same = keyed_slow(clock, table)
    renamed = stream_of(SCHEMA).key_by("user").process(same_process(clock), name="slow").write(Memory(table), name="x")
    for output in (same, renamed):
        with pytest.raises(ForkRefused, match=r"PEN-019.*points to memory table") as caught:
            run.start(output, checkpoint=tmp_path / "fork", restore=tmp_path / "here", fork=True)
        assert "a table of its own" in caught.value.next_step
        with pytest.raises(ForkRefused):
            output.start(tmp_path / "fork", restore=tmp_path / "here", fork=True, dry_run=True)
    assert tree(tmp_path) == before
    assert memory_table(table).rows() == rows


def same_process(clock: FakeClock) -> type[pen.KeyedProcess]:
    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * 0.001
            state.seen = (state.seen or 0) + len(rows)
            out.emit_many(rows)

    return Slow


@pytest.mark.parametrize("restore", [None, 4])
def test_a_fork_needs_the_place_of_an_original(
    tmp_path: Path, clock: FakeClock, table: str, restore: int | None
) -> None:
    with pytest.raises(ConfigError, match="fork=True with a restore of"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path / "x", restore=restore, fork=True)
    with pytest.raises(ConfigError, match="fork"):
        Config.of(tmp_path, restore="there", fork="yes")  # type: ignore[typeddict-item]


def test_a_fork_needs_a_folder_and_a_checkpoint_that_can_be(tmp_path: Path, clock: FakeClock, table: str) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    other = keyed_slow(clock, f"{table}-fork")
    before = tree(tmp_path)
    with pytest.raises(RestoreRefused) as caught:
        run.start(other, checkpoint=tmp_path / "here", restore=tmp_path / "here", fork=True)
    assert "a checkpoint folder of its own" in caught.value.next_step
    with pytest.raises(NoSuchCheckpoint, match="checkpoint 77"):
        run.start(other, checkpoint=tmp_path / "fork", restore=f"{tmp_path / 'here'}@77", fork=True)
    assert tree(tmp_path) == before


def test_the_dry_run_of_a_fork_tells_what_stays_with_the_original(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F2, F7."""
    with_rows_in_flight(tmp_path / "here", clock, table)
    before = tree(tmp_path)
    pipeline = compile_pipeline([keyed_slow(clock, f"{table}-fork").node])
    plan = plan_start(pipeline, Config.of(tmp_path / "fork", restore=tmp_path / "here", fork=True))
    assert plan.fits
    words = {f"{line.kind} {line.name}": line.word for line in plan.lines}
    assert words["operator slow"] == "carried"
    assert words["rows in flight source-to-slow"] == "carried"
    assert [word for name, word in words.items() if name.startswith("sink")] == ["new"]
    assert tree(tmp_path) == before


class Died(BaseException):
    """The driver is gone."""


def _die(**_: object) -> None:
    raise Died


def test_a_fork_that_dies_at_any_step_is_finished_by_the_next_start(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: with one identity, whatever was made last; a start without `restore` is refused until it is finished."""
    run = with_rows_in_flight(tmp_path / "here", clock, table, retain=9)
    written = numbers(table)
    source = tmp_path / "here" / "source"
    (source / "offsets").mkdir(parents=True)
    (source / "offsets" / "0").write_text("offsets")
    (source / "offsets" / "7").write_text("beyond")
    (source / "metadata").write_text(json.dumps({"id": "the original's"}))
    (source / ".metadata.crc").write_text("sum")
    before, place = contents(tmp_path / "here"), tmp_path / "fork"
    fork = keyed_slow(clock, f"{table}-fork")
    identities, died, published = set(), 0, False
    for step in range(100):
        calls = [step]

        def stumble(original, calls=calls):
            def call(self, path, *args, **kwargs):
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
            # The original may have gone on between two tries.
            origin = tmp_path / "here" if step % 3 else f"{tmp_path / 'here'}@3"
            with pytest.raises(Died):
                run.start(fork, checkpoint=place, restore=origin, fork=True, epoch="100 ms")
        identities.add(json.loads((place / "restored.json").read_bytes())["fork"])
        published = bool(list(place.glob("manifests/*")))
        if published:
            break
        died += 1
        with pytest.raises(RestoreRefused, match="was begun and not finished") as caught:
            run.start(fork, checkpoint=place)
        assert "fork=True" in caught.value.next_step
        with pytest.raises(RestoreRefused, match="was begun"):
            run.start(keyed_slow(clock, table), checkpoint=place, restore=tmp_path / "here")
    assert published
    assert died >= 5
    assert len(identities) == 1
    assert contents(tmp_path / "here") == before
    assert not (place / "source" / "offsets" / "7").exists()
    assert json.loads((place / "source" / "metadata").read_bytes())["id"].replace("-", "") in identities
    assert not (place / "source" / ".metadata.crc").exists()
    manifest = Checkpoints(LocalStore(place)).newest()
    assert manifest is not None
    reader = InlineRun(run.batches, clock, accepted=list(range((manifest.source.batch_id or 0) + 1)))
    reader.start(fork, checkpoint=place, epoch="100 ms", parallelism=3).await_termination(60)
    missing = set(range(ROWS)) - set(numbers(f"{table}-fork"))
    assert missing <= set(written)
    assert len(numbers(f"{table}-fork")) == len(set(numbers(f"{table}-fork")))


def test_a_fork_that_goes_on_from_a_newer_checkpoint_never_passes_for_a_new_folder(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: a second try, with a later checkpoint of the original, dies after anything that it deletes."""
    run = with_rows_in_flight(tmp_path / "here", clock, table, retain=9)
    place, fork = tmp_path / "fork", keyed_slow(clock, f"{table}-fork")
    delete = LocalStore.delete

    def died(self: LocalStore, paths: Iterable[str]) -> None:
        delete(self, paths)
        if self.root == place:
            raise Died

    def cut_off(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", died)
        patch.setattr("penstock.engine.origin.Transfer", cut_off)
        for origin in (f"{tmp_path / 'here'}@3", tmp_path / "here"):
            with pytest.raises(Died):
                run.start(fork, checkpoint=place, restore=origin, fork=True)
    with pytest.raises(RestoreRefused, match="was begun and not finished"):
        run.start(fork, checkpoint=place)


def test_the_original_may_go_on_and_delete_files_while_they_are_brought(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7, B13: the fork then goes on from a newer checkpoint; what the first try brought is removed."""
    run = with_rows_in_flight(tmp_path / "here", clock, table, retain=1)
    original = transfer.Transfer.step
    went_on: list[CheckpointId] = []
    done: list[int] = []

    def step(self: transfer.Transfer) -> bool:
        if len(went_on) < 2:
            until = 8 + 4 * len(went_on)
            query = run_until(
                run, keyed_slow(clock, table), lambda e: e.checkpoint >= until,
                checkpoint=tmp_path / "here", epoch="100 ms", retain=1,
            )  # fmt: skip
            went_on.append(query.manifest().checkpoint)
            done[:] = numbers(table)
        return original(self)

    monkeypatch.setattr(transfer.Transfer, "step", step)
    reader = InlineRun(run.batches, clock, accepted=[0, 1])
    fork = reader.start(
        keyed_slow(clock, f"{table}-fork"), checkpoint=tmp_path / "fork", restore=tmp_path / "here", fork=True,
        epoch="100 ms", retain=1,
    )  # fmt: skip
    fork.await_termination(60)
    begun = json.loads((tmp_path / "fork" / "restored.json").read_bytes())["checkpoint"]
    assert begun < went_on[-1], "it stays as it was"
    assert fork.manifest().checkpoint > went_on[-1]
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="100 ms").await_termination(60)
    assert_exact(table, ROWS)
    newest = fork.manifest()
    there = {path for path in tree(tmp_path / "fork") if path.startswith(("segments/", "state/"))}
    assert there == newest.files()
    assert sorted([*done, *numbers(f"{table}-fork")]) == list(range(ROWS))


def test_a_named_checkpoint_that_is_retired_meanwhile_is_told(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table, retain=1)
    original = transfer.Transfer.step

    def step(self: transfer.Transfer) -> bool:
        monkeypatch.setattr(transfer.Transfer, "step", original)
        run_until(
            run, keyed_slow(clock, table), lambda e: e.checkpoint >= 9, checkpoint=tmp_path / "here", epoch="100 ms",
            retain=1,
        )  # fmt: skip
        return original(self)

    monkeypatch.setattr(transfer.Transfer, "step", step)
    with pytest.raises(NoSuchCheckpoint, match="checkpoint 4 is not in"):
        run.start(
            keyed_slow(clock, f"{table}-fork"), checkpoint=tmp_path / "fork", restore=f"{tmp_path / 'here'}@4",
            fork=True,
        )  # fmt: skip


def test_a_fork_beside_a_running_original_disturbs_neither(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F7: the original publishes and deletes at full speed, with one checkpoint kept."""
    batches = batches_of(1000, 4)
    reached, box, events = threading.Event(), [], []

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, EpochPublished) and event.checkpoint == 5:
            reached.set()

    run = InlineRun(batches, clock)
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path / "here", epoch="50 ms", retain=1, on_event=listen
    )  # fmt: skip
    box.append(query)
    assert reached.wait(60)
    fork_clock = FakeClock()
    begun = query.manifest().checkpoint
    fork = InlineRun(batches, fork_clock, accepted=list(range(4))).start(
        keyed_slow(fork_clock, f"{table}-fork"), checkpoint=tmp_path / "fork", restore=tmp_path / "here", fork=True,
        epoch="50 ms", retain=1,
    )  # fmt: skip
    fork.await_termination(60)
    wait_until(lambda: not query.is_active or query.manifest().checkpoint > begun, query)
    query.await_termination(60)
    assert_exact(table, 4000)
    restored = json.loads((tmp_path / "fork" / "restored.json").read_bytes())
    published = [event for event in events if isinstance(event, EpochPublished)]
    (known,) = [event for event in published if event.checkpoint == restored["checkpoint"]]
    assert known.checkpoint >= 5
    written = {n for s in memory_table(table).snapshots if s.receipt.checkpoint <= known.checkpoint for n in _in(s)}
    assert sorted([*numbers(f"{table}-fork"), *written]) == list(range(4000))


def _in(snapshot: Snapshot) -> list[int]:
    return [number for batch in snapshot.batches for number in batch.column("number").to_pylist()]
