"""One chaos run: a pipeline on real Spark, its input, the faults of its schedule, and the judgement."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from penstock.engine.checkpoints import Checkpoints
from penstock.store import open_store
from tests.chaos import messages
from tests.chaos.acts import ACTS
from tests.chaos.disk import Disk
from tests.chaos.drivers import CLUSTER, LOCAL, Driver, Drivers
from tests.chaos.messages import Ended, Refused
from tests.chaos.schedule import Schedule, What
from tests.chaos.shapes import SHAPES, TIMERS
from tests.chaos.verdict import Wrong, require_understandable
from tests.spark.matrix import Case
from tests.spark.matrix_data import Faults, make_input
from tests.support.spark_streams import write_files

HANG_S = 90.0
"""What takes longer hangs. Far above what it should take: the machine may be busy, and is made so on purpose."""
PROGRESS_S = 10.0
FINISH_EPOCH_S = 2.0
"""Short epochs are for faults to meet rows in flight; in the end there are none to meet."""
RESTARTS_MAX = 4
PARALLELISM_MAX = 7
FEED_MORE: frozenset[What] = frozenset({"pause driver", "fill disk"})
"""Acts that want input while they last."""


@dataclass(slots=True)
class Outcome:
    """What a run found, and what it went through."""

    faults: Faults
    done: list[str]
    checkpoints: int
    restarts: int
    errors: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{'; '.join(self.done)}: {self.faults}; {self.checkpoints} checkpoints, {self.restarts} restarts, "
            f"{self.seconds:.1f} s"
        )


class Run:
    """Acts a schedule out. Like a supervisor, it starts a query again that ended with an error it may end with."""

    driver: Driver

    def __init__(self, schedule: Schedule, folder: Path, drivers: Drivers) -> None:
        self.schedule, self.folder, self.drivers = schedule, folder, drivers
        # What was done so far, also for whoever reads why the run failed; messages as a user would see them.
        self.done: list[str] = []
        self.errors: list[str] = []
        self.clock_s = 0.0
        self.disk: Disk | None = None
        # With what a query may end; acts add to it.
        self.tolerated: set[str] = set()
        self._chance = random.Random(f"run {schedule.seed}")
        self._shape = SHAPES[schedule.shape]
        sources = self._shape.sources
        files = 1 + sum(1 + (act.what in FEED_MORE) for act in schedule.acts)
        rows = max(1, schedule.rows // len(sources)) * files
        self._input = make_input(sources, rows, schedule.seed, self._shape.pads, files)
        self._burners: list[subprocess.Popen[bytes]] = []
        self._used: list[Driver] = []
        self._fed = 0
        self._starts = 0
        # The driver that was last told to start the query: what another one says is about another query.
        self._started_on: Driver | None = None

    def __call__(self) -> Outcome:
        started = time.monotonic()
        if self.schedule.small is not None:
            self.disk = Disk(self.folder / self.schedule.small)
        self.take_driver()
        for act in self.schedule.acts:
            self.let_run(act.epochs)
            time.sleep(act.delay_s)  # a random moment
            self.done.append(act.what)
            self.done[-1] += f" ({ACTS[act.what](self, random.Random(act.roll))})"
        self._finish()
        faults = self._shape.check(self.folder, self._input)
        newest = Checkpoints(open_store(str(self.checkpoint))).ids()[-1]
        return Outcome(faults, self.done, int(newest), self._starts - 1, self.errors, time.monotonic() - started)

    def close(self, *, keep: bool) -> list[Path]:
        """Ends everything this run has started; returns the logs of the drivers that worked for it."""
        for burner in self._burners:
            burner.kill()
            burner.wait()
        for driver in self._used:
            if driver.outcome is None and driver.is_alive:
                driver.kill()
            self.drivers.give_back(driver)
        if self.disk is not None:
            self.disk.remove(keep=keep)
        return [driver.log for driver in self._used]

    # -- for acts --------------------------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def take_driver(self) -> Driver:
        """Another process takes part; the one before is left to whoever asked."""
        first = not self._used
        self.driver = self.drivers.take(CLUSTER if self.schedule.cluster and first else LOCAL)
        if self.driver not in self._used:
            self._used.append(self.driver)
        return self.driver

    def feed(self) -> None:
        """The next file of each source, as long as there is one."""
        for source, files in self._input.files.items():
            write_files(self.folder / "in" / source, files[self._fed : self._fed + 1], first=self._fed)
        self._fed += 1

    def let_run(self, epochs: int) -> None:
        """More input, and so many epochs of a running query; fewer if they are enough for everything."""
        before = len(self.driver.epochs) if self._runs() else 0
        self.feed()
        driver = self.driver
        if self.ensure_runs():
            before = 0

        def progressed() -> bool:
            new = driver.epochs[before:]
            drained = any(epoch.rows_in for epoch in new) and new[-1].in_flight == 0
            return len(new) >= epochs or drained or driver.outcome is not None

        driver.wait(progressed, PROGRESS_S)

    def ensure_runs(self, after: Ended | Refused | None = None) -> bool:
        """Starts the query if it does not run; whether it had to. `after` is an outcome that was judged already.

        Raises: `Wrong` when it ended in a way it must not, or does not come back.
        """
        if self._runs():
            return False
        for _ in range(RESTARTS_MAX):
            outcome = self.driver.outcome if self.driver is self._started_on else None
            if outcome is not None and outcome is not after:
                self.tolerate(outcome)
            if isinstance(self.begin(), messages.Started):
                return True
        raise Wrong(f"the query does not come back: {self.errors[-1]}")

    def send_start(self, *, finish: bool = False, restore: int | None = None) -> None:
        """Tells the driver to start the query, at a random parallelism after the first time."""
        parallelism = self._chance.randint(1, PARALLELISM_MAX) if self._starts else self.schedule.parallelism
        self._starts += 1
        self._started_on = self.driver
        self.driver.tell(
            messages.Start(
                shape=self.schedule.shape,
                folder=str(self.folder),
                cost_s=self.schedule.cost_s,
                parallelism=self.of_stages(parallelism),
                epoch_s=FINISH_EPOCH_S if finish else self.schedule.epoch_s,
                finish=finish,
                clock_s=self.clock_s,
                restore=restore,
            )
        )

    def begin(self, *, finish: bool = False, restore: int | None = None) -> messages.Started | Refused:
        """Starts the query and waits until it has taken over, or was refused."""
        self.send_start(finish=finish, restore=restore)
        answers = (messages.Started, Refused)
        driver = self.driver
        driver.require(lambda: any(isinstance(told, answers) for told in driver.told), "answer to a start", HANG_S)
        answer = next(told for told in driver.told if isinstance(told, answers))
        if isinstance(answer, Refused):
            self.errors.append(answer.message)
        return answer

    def stop(self) -> None:
        """Stops the query after its epoch."""
        self.tolerate(self.end())

    def end(self) -> Ended | Refused:
        """How the query ended, or ends when it is told to stop."""
        if self._runs():
            self.driver.tell(messages.Stop())
        return self.await_end(self.driver)

    def await_end(self, driver: Driver) -> Ended | Refused:
        """How the query of a driver ends."""
        driver.require(lambda: driver.outcome is not None, "end of the query", HANG_S)
        outcome = driver.outcome
        assert outcome is not None
        if outcome.message:
            self.errors.append(outcome.message)
        return outcome

    def tolerate(self, outcome: Ended | Refused) -> None:
        """Raises: `Wrong` for an error that no fault so far explains, or that a user would not understand."""
        require_understandable(outcome)
        if outcome.code and outcome.code not in self.tolerated:
            raise Wrong(f"ended without a reason for it: {outcome.message}")

    def of_stages(self, parallelism: int) -> int | dict[str, int]:
        other = self._chance.randint(1, PARALLELISM_MAX)
        return self._shape.parallelism(parallelism, Case(self.schedule.shape, parallelism, other))

    def burn(self, processes: int) -> None:
        """Others fight for the processors until the run ends."""
        command = [sys.executable, "-c", "while True: pass"]
        self._burners += [subprocess.Popen(command) for _ in range(processes)]

    # -- the end ---------------------------------------------------------------------------------------------------

    def _runs(self) -> bool:
        started = self.driver is self._started_on
        return started and self.driver.is_alive and self.driver.outcome is None

    def _finish(self) -> None:
        """All the rest of the input, then until nothing is left; what waits for processing time gets it."""
        while self._fed < max(map(len, self._input.files.values())):
            self.feed()
        self.stop()
        for _ in range(2 if self.schedule.shape == TIMERS else 1):
            self._run_to_the_end()
            self.clock_s += 3 * 3600.0

    def _run_to_the_end(self) -> None:
        for _ in range(RESTARTS_MAX):
            answer = self.begin(finish=True)
            outcome = answer if isinstance(answer, Refused) else self.await_end(self.driver)
            self.tolerate(outcome)
            if not outcome.code:
                assert isinstance(outcome, Ended)
                if outcome.in_flight:
                    raise Wrong(f"{outcome.in_flight} rows are in flight at the end")
                return
        raise Wrong(f"the query does not come to its end: {self.errors[-1]}")
