"""Going on elsewhere: everything ends, and a query starts in a new folder from a savepoint or a copy of the old one.

If the tables are ahead of what is restored, the start is refused, and the old folder is used again. A fork never is.
Its tables are copies of the old ones as of that checkpoint, with what was still to be committed, made by somebody else.
So the results in the end must be the same as without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.errors import PenstockError
from penstock.protocol.fork import forked
from penstock.protocol.layout import MANIFESTS, top_of
from penstock.protocol.manifest import Manifest, SinkState
from penstock.testing.simulate.checks import Checks, pending_of
from penstock.testing.simulate.fibers import Process
from penstock.testing.simulate.source import Offsets
from penstock.testing.simulate.storage import Disk, File, SimStore
from penstock.testing.simulate.table import SimTable, Written

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

FORK = "f" * 32
"""Stands for the identity of a fork, which its driver draws."""
COPIED = "copied"
"""Who filled the tables of a fork."""
REFUSALS = frozenset({"TablePositionMismatch", "NoSuchCheckpoint"})
"""Why a start elsewhere may be refused."""


@dataclass(frozen=True, slots=True)
class Log:
    """A streaming source's own log."""

    offsets: dict[int, Offsets]
    commits: frozenset[int]


@dataclass(frozen=True, slots=True)
class Place:
    """A folder to restore from: its newest checkpoint, and the source's log up to that."""

    path: str
    manifest: Manifest
    log: Log

    @property
    def folder(self) -> str:
        return self.path.partition("@")[0]


@dataclass(frozen=True, slots=True)
class _Left:
    """The folder that was left, to be used again if the new one is refused."""

    disk: Disk
    checks: Checks
    log: Log
    tables: dict[str, SimTable]


class Moving:
    """Where the query of one world lives."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: _Left | None = None
        self._copies: dict[str, Disk] = {}
        self.origin: str | None = None
        self.forks = False
        self._read_only: list[tuple[Disk, dict[str, bytes]]] = []
        """Originals of forks, as they were."""

    def disk_at(self, url: str) -> Disk | None:
        return self._copies.get(url)

    @property
    def begun(self) -> bool:
        """Whether the current folder has a checkpoint of its own."""
        return any(top_of(path) == MANIFESTS for path in self._world.disk.files)

    def restores(self) -> str | None:
        """What a new driver has to restore, until one has."""
        return self.origin if self.origin is not None and not self.begun else None

    def go(self, *, fork: bool = False) -> None:
        """Ends everything and makes a new folder, if there is anything to restore from."""
        world = self._world
        if not self.begun or self.restores() is not None:
            return
        world.end_everything()
        world.others.bring_back()
        place = self._place()
        if place is None:
            return
        tables = {name: copied(table, place.manifest) for name, table in world.tables.items()} if fork else {}
        self.forks = fork and None not in tables.values()
        world.log(f"moves to a new folder, {'forking' if self.forks else 'restoring'} {place.path}")
        source = world.source
        log = Log(dict(source.offsets), frozenset(source.commits))
        self._left = _Left(world.disk, world.checks, log, world.tables)
        self.origin = place.path
        source.offsets, source.commits = dict(place.log.offsets), set(place.log.commits)
        if self.forks:
            begun = forked(place.manifest, FORK)
            world.disk, world.checks = Disk(), world.checks.elsewhere(begun)
            world.tables = {name: table for name, table in tables.items() if table is not None}
            disk = world.savepoints.disk_at(place.folder) or self._copies[place.folder]
            self._read_only.append((disk, _contents(disk)))
            return
        world.disk, world.checks = Disk(), world.checks.elsewhere(place.manifest)
        for table in world.tables.values():
            table.fenced_below = 0
            wanted = {msgspec.json.decode(c.payload, type=Written).file for c in pending_of(place.manifest, table.sink)}
            table.made_too_late |= set(table.files) - table.committed() - wanted

    def go_back(self, error: PenstockError) -> None:
        """After a start was refused: the tables hold more than what was to be restored."""
        if self.restores() is None or type(error).__name__ not in REFUSALS:
            return
        world, left = self._world, self._left
        assert left is not None
        world.log("goes back to the old folder")
        world.end_everything()
        world.disk, world.checks, world.tables, self.origin = left.disk, left.checks, left.tables, None
        world.source.offsets, world.source.commits = left.log.offsets, set(left.log.commits)

    def check(self) -> None:
        """Raises: `CheckFailed` when a fork changed its original."""
        for disk, before in self._read_only:
            if _contents(disk) != before:
                self._world.scheduler.fail("fork: it changed the folder of its original")

    def _place(self) -> Place | None:
        world = self._world
        places = world.savepoints.places()
        path = f"memory://copy-{len(self._copies) + 1}"
        files = {name: File(file.data, file.durable, 0.0) for name, file in world.disk.files.items()}
        manifest = newest_in(world, Disk(files=files))
        log = None if manifest is None else log_until(world, manifest)
        if manifest is not None and log is not None and (not places or world.rng.random() < 0.5):
            self._copies[path] = Disk(files=files)
            named = f"{path}@{manifest.checkpoint}" if world.rng.random() < 0.5 else path
            return Place(named, manifest, log)
        return world.rng.choice(places) if places else None


def copied(table: SimTable, manifest: Manifest) -> SimTable | None:
    """A table with what a query had written up to a checkpoint; None where that cannot be told from the table any more.

    What is pending in the checkpoint counts: the original commits it, and no fork does.
    """
    state = manifest.sinks.get(table.sink, SinkState())  # no program of this world writes to some tables
    last = -1 if state.committed is None else state.committed
    whole = [made for made in table.history if made.user == COPIED or 0 < made.checkpoint <= last]
    files = [file for snapshot in whole for file in snapshot.added]
    files += [msgspec.json.decode(c.payload, type=Written).file for c in pending_of(manifest, table.sink)]
    if not set(files) <= table.files.keys():
        return None
    made = SimTable(table.name, table.sink, table.world, files_begun=table.files_begun)
    made.files = {file: table.files[file] for file in files}
    if files:
        made.publish(COPIED, added=tuple(files), rows=sum(len(made.files[file]) for file in files))
    return made


def _contents(disk: Disk) -> dict[str, bytes]:
    return {path: bytes(file.data) for path, file in disk.files.items()}


def newest_in(world: World, disk: Disk) -> Manifest | None:
    """The newest checkpoint of a folder, looked at from outside of the world."""
    return Checkpoints(SimStore(world, Process("reader"), disk, aside=True)).newest()


def log_until(world: World, manifest: Manifest) -> Log | None:
    """The source's log up to a checkpoint; None where it has another past by now."""
    batch, source = manifest.source.batch_id, world.source
    if batch is not None and str(source.offsets.get(batch)) != manifest.source.offsets_digest:
        return None
    last = -1 if batch is None else batch
    offsets = {number: cut for number, cut in source.offsets.items() if number <= last}
    return Log(offsets, frozenset(offsets))
