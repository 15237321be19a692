"""``python -m benchmarks.kill [runs] [seed] [driver|worker]``: SIGKILL at random moments, and every click once.

First the driver with its JVM, at any moment from its start on, restarted at a random parallelism; then Python workers
under a driver that lives on. One line per kill, one per table that was read back.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.workers import python_workers
from penstock.cli.demo import audit, generate, start_job

CLICKS = 60_000
STARTS_SHARE = 0.25
LONGEST_START_S = 8.0
LONGEST_EPOCH_S = 5.0
MAX_RESTARTS = 5
GIVE_UP_S = 300.0


def main(runs: int, seed: int, victims: list[str]) -> int:
    rng = random.Random(seed)
    print(f"seed {seed}", flush=True)
    verdicts: list[bool] = []
    if "driver" in victims:
        verdicts += _until(runs, lambda number, left: _kill_driver(rng, number, left))
    if "worker" in victims:
        verdicts += _until(runs, lambda number, left: _kill_workers(rng, number, left))
    failed = verdicts.count(False)
    print(f"{len(verdicts) - failed} passed, {failed} failed")
    return 1 if failed else 0


def _until(runs: int, job: Callable[[int, int], tuple[int, bool]]) -> list[bool]:
    """Runs jobs until enough kills happened; each job's table counts as one verdict per kill in it."""
    verdicts: list[bool] = []
    while len(verdicts) < runs:
        kills, ok = job(len(verdicts), runs - len(verdicts))
        verdicts += [ok] * max(1, kills)
    return verdicts


def _kill_driver(rng: random.Random, number: int, left: int) -> tuple[int, bool]:
    with tempfile.TemporaryDirectory(prefix="penstock-kill-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        generate(folder / "input", CLICKS)
        kills = 0
        while True:
            parallelism = rng.randint(1, 6)
            job = start_job(folder, parallelism)
            epochs = _Reader(job)
            code = _live(rng, job, epochs) if kills < left else job.wait(GIVE_UP_S)
            if code is not None:
                epochs.join()
                return kills, _verdict("driver", folder, code, epochs)
            os.killpg(job.pid, signal.SIGKILL)
            job.wait()
            epochs.join()
            kills += 1
            _say("driver", number + kills, f"{parallelism} subtasks, {epochs.last}")


def _live(rng: random.Random, job: subprocess.Popen[str], epochs: _Reader) -> int | None:
    """Waits for a random moment: of the start, or of one of the first epochs. The exit code if the job ended before."""
    if rng.random() < STARTS_SHARE:
        wait_s = rng.uniform(0.5, LONGEST_START_S)
    else:
        epochs.await_epoch(rng.randint(1, 6), GIVE_UP_S)
        wait_s = rng.uniform(0.0, 1.2)
    try:
        return job.wait(wait_s)
    except subprocess.TimeoutExpired:
        return None


def _kill_workers(rng: random.Random, number: int, left: int) -> tuple[int, bool]:
    """A kill after each epoch or so; a job whose Spark gives up because the same task died four times is restarted."""
    with tempfile.TemporaryDirectory(prefix="penstock-kill-", ignore_cleanup_errors=True) as place:
        folder = Path(place)
        generate(folder / "input", CLICKS)
        kills = restarts = 0
        while True:
            job = start_job(folder, rng.randint(1, 6))
            epochs = _Reader(job)
            while kills < left and job.poll() is None:
                epochs.await_epoch(epochs.seen + 1, LONGEST_EPOCH_S)
                try:
                    job.wait(rng.uniform(0.0, 1.0))
                except subprocess.TimeoutExpired:
                    workers = [pid for pid in python_workers() if _is_below(pid, job.pid)]
                    if workers and _killed(rng.choice(workers)):
                        kills += 1
                        _say("worker", number + kills, epochs.last)
            code = job.wait(GIVE_UP_S)
            epochs.join()
            if code != 0 and restarts < MAX_RESTARTS and "PEN-033" in epochs.errors:
                restarts += 1
                print("worker: Spark gave up on a task that was killed again and again; restarted", flush=True)
                continue
            return kills, _verdict("worker", folder, code, epochs)


def _verdict(what: str, folder: Path, code: int, epochs: _Reader) -> bool:
    if code != 0:
        print(f"{what}: the job ended with {code}: {epochs.errors[-2000:]}", flush=True)
        return False
    found = audit(folder, CLICKS)
    print(f"{what}: {'ok  ' if found.ok else 'FAIL'} {found}", flush=True)
    return found.ok


def _say(what: str, number: int, text: str) -> None:
    print(f"{what} kill {number:>3}: {text}", flush=True)


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            return False
    return False


class _Reader:
    """Reads a job's output while it runs, so that it never blocks on a full pipe."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self.last = "before the first epoch"
        self.errors = ""
        self._job = job
        self._epochs = 0
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=read, daemon=True) for read in (self._read_epochs, self._read_errors)]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """The daemon of Python workers may hold the pipes for a moment after the job died."""
        for thread in self._threads:
            thread.join(5.0)

    def _read_epochs(self) -> None:
        assert self._job.stdout is not None
        for line in self._job.stdout:
            if line.startswith("epoch"):
                self.last = " ".join(line.split()[:3])
                self._count(1)
        self._count(1000)  # the job has ended: nobody needs to wait any longer

    def _count(self, more: int) -> None:
        with self._changed:
            self._epochs += more
            self._changed.notify_all()

    @property
    def seen(self) -> int:
        return self._epochs

    def await_epoch(self, number: int, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._epochs >= number, timeout_s)

    def _read_errors(self) -> None:
        assert self._job.stderr is not None
        for line in self._job.stderr:
            self.errors += line


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:] if argument.isdigit()]
    names = [argument for argument in sys.argv[1:] if not argument.isdigit()]
    chosen = numbers[1] if len(numbers) > 1 else random.SystemRandom().randrange(10**6)
    sys.exit(main(numbers[0] if numbers else 50, chosen, names or ["driver", "worker"]))
