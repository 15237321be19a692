"""Garbage: files live exactly as long as a retained checkpoint, a pin or a running epoch needs them (B13)."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec
import pytest

from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.collect import LEFTOVER_S, SWEEP_EVERY, Collector
from penstock.errors import Fenced, StorageFailed
from penstock.protocol.garbage import written_for
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import DATA_FOLDERS, AttemptId, DataFile, manifest_path
from penstock.protocol.manifest import Manifest, PipelineShape, StateFile
from penstock.protocol.recover import first_manifest
from penstock.store import LocalStore, MemoryStore, Store

EMPTY = first_manifest(
    identity="0" * 32,
    library="0",
    max_parallelism=4,
    shape=PipelineShape(sources={}, operators={}, edges={}, sinks=()),
    created_at="",
)


class Died(BaseException):
    """The driver is gone."""


class Steps:
    """A background that makes its steps only when it is told to."""

    def __init__(self, name: str, step: Callable[[], float | None], on_death: Callable[[BaseException], None]) -> None:
        del name, on_death
        self.step = step

    def start(self) -> None: ...
    def wake(self) -> None: ...
    def join(self, timeout_s: float | None = None) -> bool:
        del timeout_s
        return True


class Mortal(MemoryStore):
    """Dies after a number of deletions, between any two of them."""

    deletions_left: float = float("inf")

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            if self.deletions_left <= 0:
                raise Died
            self.deletions_left -= 1
            super().delete([path])


class World:
    """A driver that publishes checkpoints over files that come and go, without an engine around it."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.choose = store, random.Random(seed)
        self.checkpoints = Checkpoints(store)
        self.pinned: frozenset[str] = frozenset()
        self.generation = 0
        self.now_s = 0.0
        self.manifest = EMPTY
        self.begin(retain=2)

    def begin(self, retain: int) -> None:
        self.generation += 1
        self.retain = retain
        self.collector = Collector(
            self.checkpoints,
            Generation(self.generation),
            retain,
            self._failed,
            Steps,
            lambda: self.pinned,
            lambda: self.now_s,
        )
        self.collector.start(CheckpointId(self.manifest.checkpoint + 1))

    @staticmethod
    def _failed(error: BaseException) -> None:
        raise error

    def write(self, checkpoint: int, attempt: int) -> StateFile:
        path = DataFile("state", "op", AttemptId(checkpoint, self.generation, 0, str(attempt)), 0).path
        writer = self.store.open_writer(path)
        writer.write(b"x")
        writer.close()
        return StateFile(path=path, rows=1, bytes=1, checksum="", ranges=(KeyGroupRange(0, 4),))

    def epoch(self) -> None:
        """New files, some of them of attempts that lost; some old ones are replaced."""
        number = self.manifest.checkpoint + 1
        kept = [file for file in self.manifest.state.get("op", ()) if self.choose.random() < 0.7]
        added = [self.write(number, attempt) for attempt in range(self.choose.randrange(3))]
        losers = [self.write(number, attempt) for attempt in range(10, 10 + self.choose.randrange(2))]
        del losers
        self.manifest = msgspec.structs.replace(
            self.manifest, checkpoint=number, generation=self.generation, state={"op": (*kept, *added)}
        )
        self.checkpoints.publish(self.manifest)
        running = self.write(number + 1, 20)  # of the epoch that already runs while garbage is collected
        self.collector.published(self.manifest)
        self.running = running.path

    def collect(self) -> None:
        self.collector.step()

    def there(self) -> set[str]:
        return {entry.path for folder in DATA_FOLDERS for entry in self.store.list(folder)}

    def retained(self) -> list[Manifest]:
        return [self.checkpoints.read(number) for number in self.checkpoints.ids()]

    def assert_nothing_needed_is_gone(self) -> None:
        there = self.there()
        for manifest in self.retained():
            assert manifest.files() <= there, f"checkpoint {manifest.checkpoint} lost files"
        assert self.pinned <= there
        assert self.running in there


def test_a_crash_between_any_two_deletions_loses_nothing_and_leaves_nothing() -> None:
    """B13: the next run's sweep finds what the crash left; a pin outlives its checkpoint."""
    for deaths in range(25):
        store = Mortal()
        world = World(store, seed=deaths)
        for _ in range(4):
            world.epoch()
            world.collect()
        world.pinned = world.manifest.files()
        store.deletions_left = deaths
        try:
            for _ in range(8):
                world.epoch()
                world.assert_nothing_needed_is_gone()
                world.collect()
        except Died:
            pass
        store.deletions_left = float("inf")
        world.assert_nothing_needed_is_gone()
        world.pinned = frozenset()
        world.begin(retain=2)
        world.epoch()
        world.collect()
        world.assert_nothing_needed_is_gone()
        assert len(world.retained()) == 2
        needed = set().union(*(manifest.files() for manifest in world.retained()))
        assert world.there() == needed | {world.running}


def test_files_that_were_pinned_go_with_the_next_sweep_after_the_pin() -> None:
    """B13, B14."""
    world = World(MemoryStore(), seed=3)
    while not world.manifest.files():
        world.epoch()
        world.collect()
    world.pinned = world.manifest.files()
    for _ in range(SWEEP_EVERY + 5):
        world.epoch()
        world.collect()
    world.assert_nothing_needed_is_gone()
    world.pinned = frozenset()
    for _ in range(SWEEP_EVERY):
        world.epoch()
        world.collect()
    newer = [path for path in world.there() if int(path.rpartition("/")[2][:10]) <= 3]
    needed = set().union(*(manifest.files() for manifest in world.retained()))
    assert set(newer) <= needed


@pytest.mark.parametrize("seed", range(5))
def test_raising_and_lowering_retain_between_runs_keeps_what_is_retained(seed: int) -> None:
    """B13."""
    world = World(MemoryStore(), seed)
    for retain in (1, 5, 2, 7):
        world.begin(retain)
        for _ in range(9):
            world.epoch()
            if world.choose.random() < 0.6:
                world.collect()
            world.assert_nothing_needed_is_gone()
        world.collect()
        assert len(world.retained()) == retain


def test_temporary_files_of_a_crash_are_swept_and_those_in_use_are_not(tmp_path: Path) -> None:
    """B13: a crash inside `create` or `adopt` leaves them."""
    world = World(LocalStore(tmp_path), seed=1)
    old, young = tmp_path / "manifests" / ".tmp-old", tmp_path / "state" / "op" / ".tmp-young"
    for path in (old, young):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    hours_ago = time.time() - 2 * LEFTOVER_S
    os.utime(old, (hours_ago, hours_ago))
    world.epoch()
    world.collect()
    assert not old.exists()
    assert young.exists()


def test_files_that_a_damaged_manifest_may_need_stay() -> None:
    """B12, B13: what it needs is not known."""
    world = World(MemoryStore(), seed=5)
    for _ in range(3):
        world.epoch()
    world.collect()
    store = world.store
    oldest = world.checkpoints.ids()[0]
    damaged = f"manifests/{oldest:010d}.json"
    store.delete([damaged])
    store.create(damaged, b"{}\n{}\n")
    before = {path for path in world.there() if written_for(path) <= oldest}
    assert before
    world.begin(retain=9)
    for _ in range(SWEEP_EVERY + 1):
        world.epoch()
        world.collect()
    assert before <= world.there()


def test_ids_and_generations_decide_what_a_running_epoch_may_need() -> None:
    """B13: exhaustive over names around the running epoch."""
    from penstock.protocol.garbage import garbage

    for checkpoint, generation in itertools.product(range(1, 6), range(1, 5)):
        path = DataFile("state", "op", AttemptId(checkpoint, generation, 0, "1"), 0).path
        found = garbage([path], frozenset(), generation=Generation(2), published=CheckpointId(3))
        may_be_needed = generation > 2 or (generation == 2 and checkpoint > 3)
        assert (found == ()) == may_be_needed
        assert garbage([path], frozenset({path}), generation=Generation(9), published=CheckpointId(9)) == ()


def test_an_unreadable_manifest_is_read_again_and_its_files_are_spared_until_then() -> None:
    """B13: a storage that failed for a moment at the start must not cost a retained checkpoint its files."""

    class Moody(MemoryStore):
        fails: str | None = None

        def read(self, path: str) -> bytes:
            if path == self.fails:
                raise StorageFailed(path, cause="a test", next_step="none")
            return super().read(path)

    store = Moody()
    world = World(store, seed=8)
    for _ in range(4):
        world.epoch()
        world.collect()
    store.fails = f"manifests/{world.checkpoints.ids()[-1]:010d}.json"
    world.begin(retain=2)
    store.fails = None
    for _ in range(5):
        world.epoch()
        world.assert_nothing_needed_is_gone()
        world.collect()
    assert len(world.retained()) == 2


def test_a_manifest_that_went_after_it_was_listed_holds_nothing_back() -> None:
    """B13: the driver before this one may still be retiring checkpoints."""

    class Racing(Checkpoints):
        left = 1

        def ids(self) -> list[CheckpointId]:
            found = super().ids()
            if self.left:
                self.left -= 1
                self.store.delete([manifest_path(found[-1])])
            return found

    world = World(MemoryStore(), seed=3)
    for _ in range(4):
        world.epoch()
        world.collect()
    world.checkpoints = Racing(world.store)
    world.begin(retain=2)
    for _ in range(9):
        world.epoch()
        world.collect()
    needed = set().union(*(manifest.files() for manifest in world.retained()))
    assert {path for path in world.there() if "-g1-" in path} <= needed


@pytest.mark.parametrize("collected", [4, SWEEP_EVERY - 1], ids=["retired", "swept"])
def test_an_older_driver_leaves_the_files_alone_that_a_newer_one_went_back_to(collected: int) -> None:
    """B13: it was paused after it published a checkpoint, before it retired the one that the newer driver restores."""
    for seed in range(9):
        world = World(MemoryStore(), seed)
        for _ in range(collected):
            world.epoch()
            world.collect()
        world.epoch()
        back_to = world.retained()[0]
        newer = world.checkpoints.claim_generation(Driver("host", 1, "now", "0"), Generation(world.generation))
        takeover = msgspec.structs.replace(back_to, checkpoint=world.manifest.checkpoint + 1, generation=newer)
        world.checkpoints.publish(takeover)
        world.collect()
        assert back_to.checkpoint not in world.checkpoints.ids()
        assert takeover.files() <= world.there()


def test_the_name_of_a_takeover_stays_taken() -> None:
    """C9: an older driver that was paused needs it next, however many checkpoints were retired since."""
    world = World(MemoryStore(), seed=2)
    for _ in range(3):
        world.epoch()
        world.collect()
    paused = world.manifest
    world.begin(retain=2)
    for _ in range(9):
        world.epoch()
        world.collect()
    late = msgspec.structs.replace(paused, checkpoint=paused.checkpoint + 1, created_at="late")
    with pytest.raises(Fenced):
        world.checkpoints.publish(late)
    assert paused.checkpoint + 1 not in world.checkpoints.ids()


def test_the_last_name_before_a_takeover_stays_taken() -> None:
    """C9: an older driver that does not know whether it published that checkpoint was paused before it tries again."""
    world = World(MemoryStore(), seed=2)
    for _ in range(3):
        world.epoch()
        world.collect()
    unsure = world.manifest
    world.begin(retain=2)
    for _ in range(9):
        world.epoch()
        world.collect()
    world.checkpoints.publish(unsure)
    assert unsure.checkpoint not in world.checkpoints.ids()


def test_a_takeover_under_a_freed_name_is_retired_by_the_next_sweep() -> None:
    """B13: its driver was paused before it, found itself replaced, and could not know that nobody began with it."""
    world = World(MemoryStore(), 0)
    world.begin(retain=2)
    for _ in range(9):
        world.epoch()
        world.collect()
    late = msgspec.structs.replace(world.manifest, checkpoint=4, created_at="late")
    world.checkpoints.publish(late)
    for _ in range(SWEEP_EVERY):
        world.epoch()
        world.collect()
    assert world.checkpoints.ids() == [world.manifest.checkpoint - 1, world.manifest.checkpoint]
    with pytest.raises(Fenced):
        world.checkpoints.publish(msgspec.structs.replace(late, created_at="later"))


def test_a_takeover_under_a_freed_name_does_not_count_as_the_publisher_of_that_checkpoint() -> None:
    """C5: its driver died before it took the name back; files of the real publisher's winners must not look lost."""
    checkpoints = Checkpoints(MemoryStore())
    for number, generation in ((3, 5), (4, 2), (6, 4), (7, 4), (8, 6)):
        checkpoints.publish(msgspec.structs.replace(EMPTY, checkpoint=number, generation=generation))
    assert checkpoints.owners() == {4: 2, 6: 4, 7: 4, 8: 6}
