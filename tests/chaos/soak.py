"""Soak: one pipeline under steady load with faults, and nothing may grow.

    python -m tests.chaos.soak [--minutes N] [--seed SEED]

One line per minute. Early on the driver is killed once; the next one stays, so that its figures mean something. Workers
are killed youngest first, so that the oldest shows what a worker comes to hold. `growth` says what growing is, `watch`
what each figure may grow.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos import messages, processes
from tests.chaos.acts import JOB_FAILED
from tests.chaos.drivers import Driver, Drivers
from tests.chaos.growth import growth
from tests.chaos.messages import Ended, Refused
from tests.chaos.soak_job import SOAK, soak_faults
from tests.chaos.verdict import Wrong, require_understandable
from tests.chaos.watch import Sample, Watch

COST_S = 0.0002
EPOCH_S = 1.0
"""Light work: what is looked for grows with epochs, not with rows, and the machine may be busy with something else."""
EARLY_SHARE = 1 / 6
"""Of the time, before the driver is killed; starting Spark does not count."""
EPOCHS_MIN = 30
SAMPLE_S = 5.0
FAULT_S = (8.0, 20.0)
HANG_S = 120.0
PARALLELISM_MAX = 4


class Soak:
    """One pipeline, for so many seconds."""

    def __init__(self, folder: Path, drivers: Drivers, seconds: float, seed: int) -> None:
        self._folder, self._drivers, self._seconds = folder, drivers, seconds
        self._chance = random.Random(f"soak {seed}")
        self._driver: Driver = drivers.take()
        self._samples: list[Sample] = []
        self._faults: list[str] = []

    def __call__(self) -> list[str]:
        """What is wrong, in the end; nothing, if all is well."""
        self._start()
        self._let_pass(self._seconds * EARLY_SHARE)
        self._driver.kill()
        self._note("killed the driver")
        self._samples.clear()
        self._driver = self._drivers.take()
        self._start()
        self._let_pass(self._seconds * (1 - EARLY_SHARE))
        epochs = sum(isinstance(told, messages.Epoch) for told in self._driver.all_told)
        self._driver.tell(messages.Stop(drain=True))
        outcome = self._await_end()
        if outcome.code:
            raise Wrong(f"it does not stop: {outcome.message}")
        few = [f"only {epochs} epochs: too few to tell"] if epochs < EPOCHS_MIN else []
        return [*few, *self._grown(), *soak_faults(self._folder)]

    def _let_pass(self, seconds: float) -> None:
        """Faults, samples and a line per minute from the first epoch on."""
        driver = self._driver
        driver.require(lambda: bool(driver.epochs), "first epoch", HANG_S)
        watch = Watch(driver, self._folder)
        began = time.monotonic()
        next_sample_s = next_fault_s = 0.0
        minute = 1
        while (now_s := time.monotonic() - began) < seconds:
            self._ensure_runs()
            if now_s >= next_fault_s:
                self._fault()
                next_fault_s = now_s + self._chance.uniform(*FAULT_S)
            if now_s >= next_sample_s:
                self._samples.append(watch.sample(now_s))
                next_sample_s = now_s + SAMPLE_S
            if now_s >= 60.0 * minute:
                self._say(f"minute {minute}")
                minute += 1
            pause_s = min(next_sample_s, next_fault_s, seconds, 60.0 * minute) - (time.monotonic() - began)
            driver.wait(self._has_ended, max(0.0, pause_s))
        self._say(f"after {now_s / 60:.1f} minutes")

    def _has_ended(self) -> bool:
        return self._driver.outcome is not None

    def _say(self, when: str) -> None:
        print(f"{when}: {self._samples[-1]}; {', '.join(self._faults) or 'no fault'}", flush=True)
        self._faults.clear()

    def _note(self, fault: str) -> None:
        self._faults.append(fault)

    def _fault(self) -> None:
        match self._chance.choice(("worker", "worker", "jobs", "pause", "rescale")):
            case "worker":
                workers = processes.workers(self._driver.pid)
                if workers:
                    processes.send(max(workers), signal.SIGKILL)
                    self._note("killed a worker")
            case "jobs":
                self._driver.tell(messages.CancelJobs())
                self._note("failed Spark's jobs")
            case "pause":
                seconds = self._chance.uniform(0.5, 2.0)
                processes.send_all(self._driver.pid, signal.SIGSTOP)
                time.sleep(seconds)  # the fault itself
                processes.send_all(self._driver.pid, signal.SIGCONT)
                self._note(f"paused everything for {seconds:.1f} s")
            case "rescale":
                parallelism = self._chance.randint(1, PARALLELISM_MAX)
                self._driver.tell(messages.Rescale(parallelism))
                self._note(f"rescaled to {parallelism}")

    def _ensure_runs(self) -> None:
        outcome = self._driver.outcome
        if outcome is None:
            return
        require_understandable(outcome)
        if outcome.code != JOB_FAILED:
            raise Wrong(f"it ended without a reason for it: {outcome.message or 'well'}")
        self._note(f"restarted after {outcome.code}")
        self._start()

    def _start(self) -> None:
        driver = self._driver
        driver.tell(
            messages.Start(
                shape=SOAK,
                folder=str(self._folder),
                cost_s=COST_S,
                parallelism=self._chance.randint(1, PARALLELISM_MAX),
                epoch_s=EPOCH_S,
                finish=False,
            )
        )
        answers = (messages.Started, Refused)
        driver.require(lambda: any(isinstance(told, answers) for told in driver.told), "answer to a start", HANG_S)
        if isinstance(driver.outcome, Refused):
            raise Wrong(f"it does not start: {driver.outcome.message}")

    def _await_end(self) -> Ended | Refused:
        self._driver.require(self._has_ended, "end of the query", HANG_S)
        outcome = self._driver.outcome
        assert outcome is not None
        return outcome

    def _grown(self) -> list[str]:
        """A table of all figures, and those that grow."""
        found = []
        at_s = [sample.at_s for sample in self._samples]
        for name, limit in Sample.limits().items():
            grew = growth(at_s, [getattr(sample, name) for sample in self._samples], limit)
            line = f"{name}: {grew.level:.2f} {limit.unit}, {grew.grown:+.2f}, allowed {grew.allowed:.2f} ({limit.why})"
            print(f"{'flat ' if grew.is_flat else 'GROWS'} {line}", flush=True)
            if not grew.is_flat:
                found.append(f"{name} grows by {grew.grown:.2f} {limit.unit}, allowed are {grew.allowed:.2f}")
        return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="soak")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-"))
    print(f"seed {options.seed}, {options.minutes:g} minutes, in {folder}", flush=True)
    drivers = Drivers(folder / "drivers", spares=0)
    try:
        wrong = Soak(folder, drivers, options.minutes * 60, options.seed)()
    except AssertionError as error:
        wrong = [f"{type(error).__name__}: {error}"]
    finally:
        drivers.close()
    for line in wrong:
        print(f"FAIL {line}", flush=True)
    if wrong:
        print(f"kept in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    print("flat, every row exactly once")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
