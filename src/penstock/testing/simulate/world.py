"""One simulated run: a driver that is started again whenever it ends, in surroundings that fail, until all is done.

First with faults, then without: then the pipeline must drain, and what it leaves must be right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from unittest.mock import patch

from penstock import slices
from penstock.engine.background import Step
from penstock.engine.loop import EpochLoop
from penstock.engine.options import Config, Options
from penstock.engine.start import Surroundings, start_supervisor
from penstock.engine.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.graph.stages import Stage
from penstock.protocol import processingtime
from penstock.protocol.layout import MANIFESTS, read_manifest_path
from penstock.store.base import Store
from penstock.subtask.attempt import Limits
from penstock.testing.simulate.backgrounds import SimBackground
from penstock.testing.simulate.changes import Variant
from penstock.testing.simulate.checks import Checks
from penstock.testing.simulate.cluster import SimCluster
from penstock.testing.simulate.faults import Fault, Faults, Rates
from penstock.testing.simulate.fibers import Crashed, Process, Scheduler
from penstock.testing.simulate.foreign import OtherEngines
from penstock.testing.simulate.hanging import Hanging
from penstock.testing.simulate.jobs import Records, Shape, pipeline_of
from penstock.testing.simulate.moving import Moving
from penstock.testing.simulate.results import check_results
from penstock.testing.simulate.savepoints import SimSavepoints
from penstock.testing.simulate.settings import draw_options
from penstock.testing.simulate.source import Offsets, SimFeed, SimSource
from penstock.testing.simulate.storage import Disk, SimStore
from penstock.testing.simulate.table import SimTable
from penstock.testing.simulate.trace import Trace
from penstock.testing.simulate.virtual import virtual_calls
from penstock.testing.simulate.wall import WallClock

TABLES = (("records", "records"), ("totals", "sums"), ("windows", "panes"), ("pairs", "pairs"))
"""Tables and the sinks that write to them."""
TIME_LIMIT_S = 4_000.0
EVENTS_MAX = 20_000
CALM = 0.1
"""Seeds without faults, for the cadence: rows are dear, and come in large batches."""
EPOCHS_MAX = 2.0
"""How long one may take for the cadence's check, where micro-batches are alike."""
HEALTHY_STARTS_MAX = 8
RESTORES = 0.25
"""Of restarts: by the number of a checkpoint."""
HOME = "memory://simulated"
"""The folder of the query, wherever it lies at the moment."""
BACK = (1, 2, 2, 2, 3, 5)
"""How many checkpoints back: tables are rarely ahead of the newest ones."""
MOVES = 0.15
"""Of restarts: in a new folder."""
FORKS = 0.5
"""Of moves, where programs change: as a fork into other tables."""
RESTORE_PAUSED = 0.3
"""Of those: soon after it took over, so that the next driver is ahead when it goes on."""
FAULTS_MAX_S = 150.0
FIRST_SLICES = (1, 1, 2, 5)
"""Rows of the first step after a start, when the cost of a row is not known yet. Worlds have few rows: with the
product's figure the barrier could never fire in the first epoch."""
UPKEEP = 0.2
"""Of worlds: their tables are kept by the query."""


@dataclass(eq=False, slots=True)
class SimDriver:
    """One run of the driver program."""

    process: Process
    restored: bool = False
    supervisor: Supervisor | None = None
    error: PenstockError | None = None
    stopped: bool = False
    ended: bool = False
    backgrounds: dict[str, SimBackground] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        return self.ended or not self.process.alive

    def loop(self) -> EpochLoop | None:
        return None if self.supervisor is None else self.supervisor.loop


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, show: Callable[[str], None] | None = None, *, changes: bool = False) -> None:
        """`changes`: each start may run another program with the same results."""
        self.seed = seed
        self._changes = random.Random(f"{seed} changes") if changes else None
        self._stages: dict[str, list[str]] = {}
        """By driver, the names of its stages."""
        self.rng = rng = random.Random(seed)
        self.trace = Trace(show)
        self.scheduler = Scheduler(random.Random(rng.random()), TIME_LIMIT_S)
        self.faults = Faults(rng, Rates.draw(rng))
        self.calm = rng.random() < CALM
        self.shape = Shape.draw(rng, calm=self.calm)
        self.records = Records.draw(rng, self.shape, rows_max=30 if self.calm else rng.choice((9, 15, 30)))
        self.source = SimSource(self.records.tables, seed)
        self.disk = Disk()
        branched = [(table, table) for branch in self.shape.branches for table in branch.tables()]
        self.tables = {name: SimTable(name, sink, self) for name, sink in (*TABLES, *branched)}
        self.others = OtherEngines(self, self.faults.rates.foreign_acts)
        self.upkeep = rng.random() < UPKEEP
        self.checks = Checks(self)
        self.savepoints = SimSavepoints(self)
        self.moving = Moving(self)
        self.max_parallelism = rng.choice((5, 7, 8, 13, 128))
        self.retain = rng.choice((1, 2, 4, 8))
        self._batch_rows = rng.choice((10, 80) if self.calm else (2, 4, 8, 20))
        epoch_s = rng.choice((0.1, 0.3, 1.0, 3.0, None))
        epoch_s = 0.3 if self.shape.crowded else epoch_s
        self.epoch_s = epoch_s or 1.0
        self.barrier = epoch_s is not None
        self.epochs_max = EPOCHS_MAX
        self._options = draw_options(
            rng,
            max_parallelism=self.max_parallelism,
            epoch_s=epoch_s,
            retain=self.retain,
            crowded=self.shape.crowded > 0,
        )
        self.hanging, self.wall = Hanging(self, calm=self.calm), WallClock(self, calm=self.calm)
        self._options["epoch_timeout"] = self.hanging.limit_s
        if self.shape.crowded:
            self._batch_rows = self.shape.crowded
        self._limits = Limits(segment_bytes=rng.choice((500, 3_000, 1_000_000)), prefetch_bytes=0)
        self.slots = rng.choice((1, 2, 4))
        self._first_slice_rows = slices.FIRST_SLICE_ROWS if self.calm else rng.choice(FIRST_SLICES)
        self._supervisor = self.scheduler.current
        self.drivers: list[SimDriver] = []
        self._executors: list[Process] = []
        self.table_stalls: set[str] = set()
        """Tables that take no commits for the time being."""
        self._stalled_until = 0.0

    # -- the run -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises: `CheckFailed`."""
        first_slice = patch.object(slices, "FIRST_SLICE_ROWS", self._first_slice_rows)
        believed = patch.object(processingtime, "CONFIRMED_S", self.wall.believed_s)
        with virtual_calls(self.scheduler, random.Random(self.seed)), first_slice, believed:
            try:
                self._supervise()
            finally:
                self.scheduler.close()

    def _supervise(self) -> None:
        self.log(f"{self.shape} {self.faults.rates}")
        done = not self.calm and self._with_faults(self.rng.uniform(3, 40), self.rng.uniform(0, 1.5))
        self.faults.on = False
        self.table_stalls = set()
        self.others.bring_back()
        self.disk.list_everything()
        self.log("faults off")
        if not done:
            self._without_faults()
        self._await_zombies()
        check_results(self)
        self._run_to_end(self.start_driver())
        self.checks.nothing_left_over()
        self.savepoints.check()
        self.moving.check()

    def _with_faults(self, at_least_s: float, part: float) -> bool:
        """Drivers come and go, until a part of the records was read; True when one of them got to the end."""
        driver = self.start_driver()
        while self.scheduler.now < (at_least_s if self.source.part_read() >= part else FAULTS_MAX_S):
            self.scheduler.wait(self.rng.uniform(0.1, 3))
            if self.faults.chance(self.faults.rates.foreign):
                self.others.act()
            if self.scheduler.now >= self._stalled_until:
                self.table_stalls = set()
            if driver.over:
                if driver.ended and driver.error is None and self._all_read() and not driver.stopped:
                    return True
                self._judge(driver)
                self.scheduler.pause(self.rng.choice((0.0, 0.5, 5.0)))
                if self.rng.random() < MOVES:
                    self.moving.go(fork=self._changes is not None and self._changes.random() < FORKS)
                driver = self.start_driver(restore=self.rng.random() < RESTORES)
            else:
                driver = self._meddle(driver)
        return False

    def _meddle(self, driver: SimDriver) -> SimDriver:
        """What people and schedulers do to a running query."""
        supervisor = driver.supervisor
        choice = self.rng.random()
        if driver.process.paused_until > self.scheduler.now and choice < 0.8:
            return self.start_driver()
        if supervisor is None:
            return driver
        if choice < 0.25:
            wanted = self._parallelism()
            self.log(f"rescale {wanted}")
            supervisor.rescale(wanted)
        elif choice < 0.28:
            self.log("a second driver")
            return self.start_driver()
        elif choice < 0.33:
            drain = self.rng.random() < 0.5
            self.log(f"stop drain={drain}")
            driver.stopped = True
            supervisor.request_stop(drain=drain)
        elif choice < 0.36:
            self.log("kill")
            self.crash(driver.process)
        elif choice < 0.41:
            self.savepoints.take(supervisor, driver.process)
        elif choice < 0.51:
            self.log("tables take no commits")
            self.table_stalls, self._stalled_until = set(self.tables), self.scheduler.now + self.rng.uniform(1, 30)
        return driver

    def _without_faults(self) -> None:
        """Liveness: whatever happened before, now it ends."""
        driver = next((driver for driver in reversed(self.drivers) if not driver.over), None)
        for _ in range(HEALTHY_STARTS_MAX):
            driver = driver or self.start_driver()
            if driver.process.paused_until > self.scheduler.now:
                driver = self.start_driver()
            self._await(driver)
            if driver.ended and driver.error is None and self._all_read() and not driver.stopped:
                return
            self._judge(driver)
            driver = None
        self.scheduler.fail(f"liveness: {HEALTHY_STARTS_MAX} starts without faults did not get to the end")

    def _all_read(self) -> bool:
        newest = max(self.source.offsets, default=-1)
        return self.source.used_up(newest) and (newest < 0 or newest in self.source.commits)

    def _run_to_end(self, driver: SimDriver) -> None:
        self._await(driver)
        if driver.error is not None:
            self.scheduler.fail(f"liveness: a start without faults ended with {driver.error}")

    def _await(self, driver: SimDriver) -> None:
        while not driver.over:
            self.scheduler.wait(50)

    def _await_zombies(self) -> None:
        """Paused drivers and attempts wake, find out that they were replaced, and end; those that hang are killed."""
        for process in self._executors:
            if process.hung_for_ever and process.alive:
                self.crash(process)
        while any(
            not fiber.ended
            for process in (*self._executors, *(driver.process for driver in self.drivers))
            for fiber in process.fibers
        ):
            self.scheduler.pause(5)
        for driver in self.drivers:
            self._judge(driver)

    def _judge(self, driver: SimDriver) -> None:
        if driver.error is not None:
            generation = driver.process.generation
            self.checks.query_error(
                driver.error,
                generation,
                restored=any(driver.restored for driver in self.drivers),
                refused=driver.restored and driver.supervisor is None,
            )
            self.moving.go_back(driver.error)
            if self.others.explains(type(driver.error).__name__):
                self.others.bring_back()

    # -- drivers -------------------------------------------------------------------------------------------------

    def start_driver(self, *, restore: bool = False) -> SimDriver:
        """A new run of the driver program, at some parallelism; with `restore` from some checkpoint."""
        driver = SimDriver(Process(f"d{len(self.drivers) + 1}"))
        self.drivers.append(driver)
        variant = Variant() if self._changes is None else Variant.draw(self._changes, len(self.drivers))
        options: Options = {**self._options, "parallelism": self._parallelism()}
        if self._changes is not None and self.shape.trunk:
            options |= variant.options()
        manifests = sorted(path for path in self.disk.files if read_manifest_path(path) is not None)
        if (origin := self.moving.restores()) is not None:
            driver.restored, options["restore"] = True, origin
            if self.moving.forks:
                options["fork"] = True
        elif restore and len(manifests) > 1:
            # A user who goes back on purpose has ended what ran before, and put the tables right.
            self.others.bring_back()
            for other in self.drivers:
                if other.process.alive:
                    self.crash(other.process)
            driver = self.drivers[-1] = SimDriver(Process(f"d{len(self.drivers)}"), restored=True)
            options["restore"] = read_manifest_path(manifests[-min(len(manifests), self.rng.choice(BACK))])
            if self.faults.chance(RESTORE_PAUSED):
                driver.process.late = True
        driver.process.outage, driver.process.healthy = self.faults.outage(manifests), not self.faults.on
        self.log(f"start {driver.process.name} {options}")
        config = Config.of(HOME, **options)
        self.scheduler.spawn(driver.process, "start", lambda: self._drive(driver, config, variant))
        return driver

    def _drive(self, driver: SimDriver, config: Config, variant: Variant) -> None:
        process = driver.process
        pipeline = pipeline_of(self.shape, self, variant)
        self._stages[process.name] = [stage.name for stage in pipeline.stages]

        def store(url: str) -> Store:
            return SimStore(self, process, self.disk if url == HOME else self._elsewhere(url))

        def spawn(name: str, step: Step, on_death: Callable[[BaseException], None]) -> SimBackground:
            made = driver.backgrounds[name] = SimBackground(self.scheduler, process, name, step, on_death)
            return made

        surroundings = Surroundings(
            cluster=lambda _, __: SimCluster(self, process, self._limits, self.slots),
            feed=lambda _: SimFeed(self, process, driver.loop),
            store=store,
            spawn=spawn,
            clock=self.scheduler.clock,
            now_us=self.wall.now_us,
        )
        self.wall.begins(process)
        try:
            driver.supervisor = start_supervisor(pipeline, config, surroundings)
            driver.backgrounds["penstock-query"].join()
            driver.error = driver.supervisor.loop.error
        except PenstockError as error:
            driver.error = error
        driver.ended = True
        self.log(f"ended: {type(driver.error).__name__ if driver.error else 'finished'}")
        self.scheduler.wake(self._supervisor)

    def _elsewhere(self, url: str) -> Disk:
        return self.savepoints.disk_at(url) or self.moving.disk_at(url) or Disk()

    def going_back(self) -> bool:
        """Whether some driver is about to restore an older checkpoint."""
        return any(driver.restored and not driver.over and driver.supervisor is None for driver in self.drivers)

    def end_everything(self) -> None:
        """Ends all drivers and all that they started."""
        for process in (*(driver.process for driver in self.drivers), *self._executors):
            if process.alive and not all(fiber.ended for fiber in process.fibers):
                self.crash(process)

    def crash(self, process: Process) -> None:
        """Raises: `Crashed` when the running fiber belongs to it."""
        self.log(f"CRASH of {process.name}")
        self.scheduler.kill(process)
        self.disk.lose_process(process, lambda size: None if self.rng.random() < 0.3 else self.rng.randint(0, size))
        self.scheduler.wake(self._supervisor)
        if self.scheduler.current.process is process:
            raise Crashed

    # -- for the simulated parts ---------------------------------------------------------------------------------

    def outside_call(self, process: Process, what: str) -> Fault:
        """A process asks for something outside: time passes, others run, and something may go wrong."""
        if self.trace.events > EVENTS_MAX:
            self.scheduler.fail(f"liveness: not at its end after {EVENTS_MAX} events")
        if process.outage is not None and process.outage.hits(what) and self.faults.on:
            fault = Fault.FAIL_BEFORE
        else:
            fault = self.faults.on_store(what, driver=process.name.startswith("d"))
        latency_s = 0.002 * self.rng.random()
        match fault:
            case Fault.SLOW:
                latency_s += self.rng.uniform(0.1, 6)
            case Fault.PAUSE:
                process.paused_until = self.scheduler.now + self.rng.uniform(0.5, 40)
                self.log(f"PAUSED until {process.paused_until:.3f} before {what}")
                self.scheduler.wake(self._supervisor)
            case Fault.NONE:
                pass
            case _:
                self.log(f"FAULT {fault.value}: {what}")
        self._wear(process, what)
        self.hanging.at_call(process)
        self.scheduler.pause(latency_s)
        if fault is Fault.CRASH_BEFORE:
            self.crash(process)
        return fault

    def _wear(self, process: Process, what: str) -> None:
        """Attempts that were drawn to die or to be late do so at some operation, drivers once they took over."""
        if process.late and process.calls_left is None and what.startswith(f"create {MANIFESTS}"):
            process.calls_left = self.rng.randint(2, 5)
        if process.calls_left is None:
            return
        process.calls_left -= 1
        if process.calls_left == 0:
            if process.late:
                process.paused_until = self.scheduler.now + self.rng.uniform(0.5, 60)
                self.log(f"PAUSED until {process.paused_until:.3f} before {what}")
                self.scheduler.wake(self._supervisor)
            else:
                self.crash(process)

    def executor(self) -> Process:
        """The process of a new attempt."""
        process = Process(f"a{len(self._executors) + 1}")
        self._executors.append(process)
        rates = self.faults.rates
        if self.faults.costly(rates.attempt_crash):
            process.calls_left = self.rng.randint(1, 10)
        elif self.faults.costly(rates.attempt_pause):
            process.calls_left, process.late = self.rng.randint(1, 10), True
        elif self.faults.chance(0.05):
            process.slowness = 10.0
        self.hanging.draw(process)
        return process

    def stage_number(self, process: Process, stage: Stage) -> int:
        """Stages that only bring in leftovers run first."""
        return -1 if stage.relays else self._stages[process.name].index(stage.name)

    def next_offsets(self, batch: int) -> Offsets:
        return self.source.next_offsets(batch, self.rng, self._batch_rows)

    def trigger_pause(self) -> float:
        often = self.faults.on and not self.shape.crowded
        return self.rng.choice((0.0, 0.0, 0.0, 0.3, 3.0)) if often else 0.0

    def log(self, what: str) -> None:
        current = self.scheduler.current
        self.trace.add(self.scheduler.clock(), current.process.name, current.name, what)

    def _parallelism(self) -> int:
        return self.rng.choice((1, 2, 2, 3))
