"""One run of a crowd: drivers come and go, the number of subtasks changes, and in the end every number is there once.

From one seed, in one thread. `CheckFailed` tells what was not right.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.engine.background import Step
from penstock.engine.loop import Offer
from penstock.engine.options import Config
from penstock.engine.start import Surroundings, start_supervisor
from penstock.errors import Fenced, PenstockError, StorageFailed
from penstock.protocol.layout import DATA_FOLDERS
from penstock.store.memory import MemoryStore
from penstock.testing.simulate.crowd.driver import (
    SINK,
    CrowdCluster,
    CrowdDriver,
    CrowdFeed,
    Faults,
    FaultyStore,
    Killed,
    ManualBackground,
    hook_table,
    offered,
    pipeline_of,
)
from penstock.testing.simulate.crowd.model import Rows
from penstock.testing.simulate.fibers import CheckFailed
from penstock.testing.tables import memory_table

RESCALES, REPLACED = 0.1, 0.06
"""Per step of the loop: another number of subtasks; another driver, while this one is only paused."""
STEPS_PER_EPOCH_MAX = 20
"""A run that needs more than this is not getting on."""
SHARE = 0.3
"""Of the key groups, in each micro-batch: about one record of each subtask at the largest parallelism."""
_runs = itertools.count()


@dataclass(slots=True)
class Tally:
    """What a run has seen."""

    epochs: int = 0
    drivers: int = 0
    killed: int = 0
    fenced: int = 0
    rescaled: int = 0
    rows: int = 0


class Crowd:
    """A source, a table, a checkpoint folder, and the drivers that work on them."""

    def __init__(
        self,
        seed: int,
        subtasks: int,
        max_parallelism: int,
        epochs: int,
        *,
        faulty: bool = True,
        rows_max: Callable[[], int] | None = None,
        outside: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        """`rows_max` says how many rows a subtask takes; `outside` is entered where a driver would wait."""
        self.subtasks, self.max_parallelism, self.epochs, self.faulty = subtasks, max_parallelism, epochs, faulty
        self.rng = random.Random(seed)
        self.tally = Tally()
        self.faults = Faults(random.Random(seed + 1), on=faulty)
        self.place = f"crowd-{next(_runs)}-{seed}"
        self.store = MemoryStore(self.place)
        hook_table(self.place, self.faults, outside)
        self.pipeline, self.names = pipeline_of(self.place)
        self._rows_max, self._outside = rows_max or self._some, outside
        self.cluster: CrowdCluster | None = None
        self._batches: list[Rows] = []
        self._numbers = np.zeros(self.max_parallelism, np.int32)
        self._now_s = 0.0
        self._zombies: list[CrowdDriver] = []
        self._offer: Offer | None = None

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> Tally:
        """Raises: `CheckFailed`."""
        driver = self.start()
        for _ in range(STEPS_PER_EPOCH_MAX * self.epochs):
            if self.tally.epochs >= self.epochs:
                break
            driver = self._step(driver)
        else:
            raise CheckFailed(f"liveness: {self.tally.epochs} epochs in {STEPS_PER_EPOCH_MAX * self.epochs} steps")
        self.faults.on = False
        driver = self._drained(driver)
        self._step_zombies()
        self._check_table()
        self._check_files(driver)
        return self.tally

    def _step(self, driver: CrowdDriver) -> CrowdDriver:
        """One look of the loop, and what people and schedulers do meanwhile."""
        try:
            self.offer(driver)
            self.epoch(driver)
        except Killed:
            self.tally.killed += 1
            return self._restarted()
        if driver.supervisor.loop.ended:
            self._require_reason(driver)
            return self._restarted()
        if self.faulty and self.rng.random() < RESCALES:
            self.tally.rescaled += 1
            driver.supervisor.rescale(self.rng.choice((self.subtasks, self.subtasks // 2 + 1, self.subtasks * 3 // 4)))
        if self.faulty and self.rng.random() < REPLACED:
            self._zombies.append(driver)
            return self._restarted()
        return driver

    def epoch(self, driver: CrowdDriver) -> None:
        """One step of everything; an epoch, if there is something to do."""
        self._now_s += 1.0
        before = driver.supervisor.runner.manifest.checkpoint
        driver.step("epochs")
        if driver.supervisor.runner.manifest.checkpoint > before:
            self.tally.epochs += 1
        for _ in range(3):  # commit, tell listeners, tidy up
            driver.step(f"commit-{SINK}")
        driver.step("collector")

    def _restarted(self) -> CrowdDriver:
        while True:
            try:
                return self.start()
            except Killed:
                self.tally.killed += 1
            except StorageFailed:
                self._now_s += 1.0

    def start(self) -> CrowdDriver:
        """A new driver takes over."""
        self.tally.drivers += 1
        self._offer = None
        backgrounds: dict[str, ManualBackground] = {}

        def spawn(name: str, step: Step, on_death: Callable[[BaseException], None]) -> ManualBackground:
            made = backgrounds[name] = ManualBackground(name, step, on_death)
            return made

        store = FaultyStore(self.place, self.faults)
        self.cluster = CrowdCluster(store, self.names, self.faults, self._rows_max, self._outside)
        cluster = self.cluster
        surroundings = Surroundings(
            cluster=lambda _, __: cluster,
            feed=lambda _: CrowdFeed(),
            store=lambda _: store,
            spawn=spawn,
            clock=lambda: self._now_s,
            now_us=lambda: int(self._now_s * 1e6),
        )
        config = Config.of(
            f"memory://{self.place}",
            parallelism=self.subtasks,
            max_parallelism=self.max_parallelism,
            max_in_flight_segments=10 * self.max_parallelism,
            epoch="1 s",
        )
        return CrowdDriver(start_supervisor(self.pipeline, config, surroundings), backgrounds)

    def _some(self) -> int:
        return self.rng.choice((0, 1, 1, 2, 5, 1000))

    # -- the source ----------------------------------------------------------------------------------------------

    def offer(self, driver: CrowdDriver) -> None:
        """The next micro-batch, unless one is on offer."""
        if self._offer is not None and not self._offer.done:
            return
        last = driver.supervisor.runner.manifest.source.batch_id
        number = 0 if last is None else last + 1
        self._offer = driver.supervisor.loop.propose(offered(number, self._batch(number)))

    def _batch(self, number: int) -> Rows:
        while len(self._batches) <= number:
            chosen = self.chosen()
            self._numbers[chosen] += 1
            self._batches.append(np.stack([chosen, self._numbers[chosen]], axis=1))
        return self._batches[number]

    def chosen(self) -> npt.NDArray[np.int32]:
        """The key groups that have a record in the next micro-batch."""
        return np.array(self.rng.sample(range(self.max_parallelism), int(SHARE * self.max_parallelism)), np.int32)

    # -- the end -------------------------------------------------------------------------------------------------

    def _drained(self, driver: CrowdDriver) -> CrowdDriver:
        """Faults are over: what is in flight is processed and committed."""
        for _ in range(STEPS_PER_EPOCH_MAX * self.epochs):
            if driver.supervisor.loop.ended:
                self._require_reason(driver)
                driver = self._restarted()
            manifest = driver.supervisor.runner.manifest
            waits = self._offer is not None and not self._offer.done
            if not manifest.rows_in_flight and not waits and not driver.supervisor.coordinator.uncommitted():
                return driver
            self.epoch(driver)
        raise CheckFailed("liveness: rows stay in flight, or commits wait")

    def _require_reason(self, driver: CrowdDriver) -> None:
        error = driver.supervisor.loop.error
        if isinstance(error, Fenced):
            self.tally.fenced += 1
        else:
            raise CheckFailed(f"query: ended with {error}")

    def _step_zombies(self) -> None:
        """Drivers that were replaced go on, and find that out."""
        published = memory_table(self.place).snapshots[-1].receipt
        for zombie in self._zombies:
            with suppress(PenstockError):
                zombie.supervisor.loop.propose(offered(len(self._batches) + 1, self._batches[0]))
            zombie.step("epochs")
            zombie.step(f"commit-{SINK}")
            self._now_s += 100.0  # a driver that only waits looks for a newer one now and then
            zombie.step("epochs")
            if not isinstance(zombie.supervisor.loop.error, Fenced):
                raise CheckFailed(f"fence: a driver that was replaced goes on: {zombie.supervisor.loop.error}")
            self.tally.fenced += 1
        if memory_table(self.place).snapshots[-1].receipt != published:
            raise CheckFailed("fence: a driver that was replaced has committed")

    def _check_table(self) -> None:
        """Every number of every key group once, in order."""
        rows = memory_table(self.place).rows()
        groups, numbers = (rows.column(name).to_numpy() for name in rows.schema.names)
        self.tally.rows = len(groups)
        order = np.argsort(groups, kind="stable")
        groups, numbers = groups[order], numbers[order]
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        wanted = np.arange(len(groups)) - np.repeat(first, np.diff(np.append(first, len(groups)))) + 1
        if not np.array_equal(numbers, wanted):
            raise CheckFailed("results: a number is missing, doubled or out of order")
        counts = np.bincount(groups, minlength=self.max_parallelism)
        if not np.array_equal(counts, self._numbers):
            raise CheckFailed(f"results: {counts.sum()} rows in the table, {self._numbers.sum()} were read")

    def _check_files(self, driver: CrowdDriver) -> None:
        """A new driver's first sweep leaves what retained checkpoints need, and nothing else."""
        driver = self.start()
        driver.step("collector")
        checkpoints = driver.supervisor.runner.checkpoints
        needed = frozenset().union(*(checkpoints.read(number).files() for number in checkpoints.ids()))
        there = {entry.path for folder in DATA_FOLDERS for entry in self.store.list(folder)}
        if there != needed:
            raise CheckFailed(f"garbage: {len(there - needed)} files too many, {len(needed - there)} are missing")
