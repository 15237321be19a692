"""Readers outside of the query: the collector keeps what they read, and never for ever (B13, G6)."""

from __future__ import annotations

import pytest

from penstock.errors import NoSuchCheckpoint, StorageFailed
from penstock.observe.tables import holding
from penstock.observe.tables.holding import Holding
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import READERS, Lease, generation_path, manifest_path, read_lease
from penstock.protocol.leases import HELD_MAX, HELD_S_MAX, LEASE_S, Leases, looked, stale
from penstock.protocol.manifest import Manifest
from penstock.store import MemoryStore
from tests.unit.engine.test_collect import World


def begun(store: MemoryStore | None = None) -> World:
    world = World(store or MemoryStore(), seed=2)
    world.store.create(generation_path(Generation(1)), b"{}")
    while not world.manifest.files():
        go_on(world)
    return world


def go_on(world: World, epochs: int = 1, *, every_s: float = 1.0) -> None:
    for _ in range(epochs):
        world.now_s += every_s
        world.epoch()
        world.collect()


def is_whole(world: World, manifest: Manifest) -> bool:
    return manifest.files() <= world.there()


def test_a_checkpoint_that_is_read_stays_whole_until_it_is_released() -> None:
    world = begun()
    read = world.manifest
    hold = Holding(world.store, read.checkpoint)
    go_on(world, 40)
    assert is_whole(world, read)
    assert world.retained()[0].checkpoint == read.checkpoint
    hold.release()
    go_on(world, 2)
    assert len(world.retained()) == world.retain
    needed = set().union(*(manifest.files() for manifest in world.retained()))
    assert {path for path in read.files() if path not in needed}.isdisjoint(world.there())


def test_a_reader_that_died_is_forgotten_after_its_lease() -> None:
    world = begun()
    read = world.manifest
    Holding(world.store, read.checkpoint)
    go_on(world, 3, every_s=LEASE_S / 4)
    assert is_whole(world, read)
    go_on(world, 3, every_s=LEASE_S / 2)
    assert len(world.retained()) == world.retain
    assert world.store.list(READERS) == []


def test_a_reader_that_renews_is_kept_but_no_longer_than_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    monkeypatch.setattr(holding.time, "monotonic", lambda: world.now_s)
    read = world.manifest
    hold = Holding(world.store, read.checkpoint)
    while world.now_s < HELD_S_MAX - 60:
        go_on(world, every_s=30.0)
        hold.renew()
        assert is_whole(world, read), f"lost after {world.now_s} s"
        assert len(world.store.list(READERS)) == 1
    for _ in range(10):
        go_on(world, every_s=30.0)
        hold.renew()
    assert len(world.retained()) == world.retain


def test_a_driver_that_starts_anew_honours_the_leases_it_finds() -> None:
    world = begun()
    read = world.manifest
    Holding(world.store, read.checkpoint)
    go_on(world, 5)
    world.begin(retain=2)
    go_on(world, 20)
    assert is_whole(world, read)


def test_readers_hold_a_bounded_number_of_checkpoints_the_first_ones_first() -> None:
    world = begun()
    held = []
    for _ in range(3 * HELD_MAX):
        held.append(world.manifest.checkpoint)
        Holding(world.store, world.manifest.checkpoint)
        go_on(world)
    go_on(world, 5)
    assert [m.checkpoint for m in world.retained()][: -world.retain] == held[:HELD_MAX]


class LeaseAtDeletion(MemoryStore):
    """A reader comes between the collector's look at leases and the deletion of a manifest."""

    comes: CheckpointId | None = None

    def delete(self, paths: object) -> None:
        paths = list(paths)  # type: ignore[call-overload]
        if self.comes is not None and manifest_path(self.comes) in paths:
            self.create(Lease(self.comes, 1_800_000_000, "00c0ffee00c0ffee").path, b"")
            self.found = self.exists(manifest_path(self.comes))
        super().delete(paths)


def test_a_lease_that_comes_while_the_manifest_is_deleted_still_holds_its_files() -> None:
    """The reader saw the manifest after it left its lease, so it reads on."""
    store = LeaseAtDeletion()
    world = begun(store)
    read = world.manifest
    store.comes = read.checkpoint
    go_on(world, 20)
    assert store.found
    assert is_whole(world, read)
    go_on(world, 3, every_s=LEASE_S)
    needed = set().union(*(manifest.files() for manifest in world.retained()))
    assert set(read.files()) & world.there() <= needed


def test_a_checkpoint_that_was_retired_before_the_lease_is_refused() -> None:
    world = begun()
    read = world.manifest
    go_on(world, 5)
    with pytest.raises(NoSuchCheckpoint, match="was retired before it could be read"):
        Holding(world.store, read.checkpoint)
    assert world.store.list(READERS) == []


def test_a_reader_that_may_not_write_reads_without_a_lease() -> None:
    class ReadOnly(MemoryStore):
        def create(self, path: str, data: bytes) -> None:
            if path.startswith(READERS):
                raise StorageFailed("read-only", cause="a test", next_step="none")
            super().create(path, data)

    world = begun(ReadOnly())
    hold = Holding(world.store, world.manifest.checkpoint)
    hold.renew()
    hold.release()
    assert world.store.list(READERS) == []


def test_nothing_is_written_into_a_savepoint() -> None:
    """No driver runs there, so nothing is deleted."""
    world = begun()
    world.store.delete([generation_path(Generation(1))])
    Holding(world.store, world.manifest.checkpoint).release()
    assert world.store.list(READERS) == []


def test_leases_of_yesterday_are_removed_by_the_next_reader() -> None:
    world = begun()
    old = Lease(world.manifest.checkpoint, 1_000_000_000, "00c0ffee00c0ffee").path
    world.store.create(old, b"")
    assert stale([old, "readers/strange"], 1_800_000_000.0) == (old,)
    Holding(world.store, world.manifest.checkpoint)
    (left,) = world.store.list(READERS)
    assert left.path != old


def test_names_that_are_no_leases_hold_nothing_and_are_left_alone() -> None:
    strange = ["readers/x", "readers/0000000042-1800000000-00C0FFEE00C0FFEE.lease", "readers/../manifests/1.json"]
    assert all(read_lease(path) is None for path in strange)
    found = looked(Leases(), strange, 0.0)
    assert (found.held, found.over, dict(found.seen)) == (frozenset(), (), {})
