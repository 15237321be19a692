"""Savepoints of a simulated run: asked for at some moment, and in the end each is whole or no checkpoint at all."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.savepoint import SavepointJob
from penstock.engine.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.store.arrowfile import ArrowFile
from penstock.testing.simulate.fibers import Process
from penstock.testing.simulate.moving import Log, Place, log_until
from penstock.testing.simulate.storage import Disk, SimStore

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World


class SimSavepoints:
    """The savepoints of one seed, each on a disk of its own."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._disks: dict[str, Disk] = {}
        self._jobs: list[tuple[Process, SavepointJob]] = []
        self._logs: dict[str, Log | None] = {}

    def take(self, supervisor: Supervisor, process: Process) -> None:
        """Has a running query begin a savepoint."""
        path = f"memory://savepoint-{len(self._disks) + 1}"
        self._disks[path] = Disk(latency_s=self._world.rng.choice((0.0, 0.1, 1.0)))
        self._world.log(f"savepoint {path}")

        def ask() -> None:
            with suppress(PenstockError):
                job = supervisor.savepoints.begin(path)
                self._jobs.append((process, job))
                self._logs[path] = log_until(self._world, job.manifest)

        self._world.scheduler.spawn(process, "user", ask)

    def places(self) -> list[Place]:
        """Those that are finished and can be restored."""
        done = [job for _, job in self._jobs if job.savepoint is not None]
        return [Place(job.path, job.manifest, log) for job in done if (log := self._logs[job.path]) is not None]

    def disk_at(self, url: str) -> Disk | None:
        return self._disks.get(url)

    def needed(self, process: Process) -> frozenset[str]:
        """Files that a driver is copying right now."""
        running = (job for owner, job in self._jobs if owner is process and not job.done)
        return frozenset[str]().union(*(job.manifest.files() for job in running))

    def check(self) -> None:
        """Raises: `CheckFailed`."""
        finished = {job.path: job.checkpoint for _, job in self._jobs if job.savepoint is not None}
        for path, disk in self._disks.items():
            disk.list_everything()
            store = SimStore(self._world, Process("reader"), disk)
            manifest = Checkpoints(store).newest()
            if path in finished and (manifest is None or manifest.checkpoint != finished[path]):
                self._world.scheduler.fail(f"savepoint: {path} does not hold checkpoint {finished[path]}")
            try:
                for entry in manifest.entries() if manifest is not None else ():
                    with ArrowFile(store, entry.path, entry.checksum) as file:
                        file.verify()
            except PenstockError as error:
                self._world.scheduler.fail(f"savepoint: {path} is not whole: {error}")
