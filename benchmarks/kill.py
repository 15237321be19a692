"""``python -m benchmarks.kill [runs] [seed] [driver|worker]``: SIGKILL at random moments, and every click once.

The driver with its JVM, at any moment from its start on, restarted at a random parallelism; and Python workers under a
driver that lives on. One line per kill, one per table that was read back. A driver that starts mostly waits, so several
jobs run at once, each with a folder of its own; `--at-once 1` runs them one after another.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.workers import python_workers
from penstock.cli.demo import audit, generate, start_job

CLICKS = 60_000
KILLS_PER_JOB = 10
"""Then a job may run to its end, and its table is read back: so many kills share one input."""
STARTS_SHARE = 0.25
LONGEST_START_S = 8.0
LONGEST_EPOCH_S = 5.0
MAX_RESTARTS = 5
GIVE_UP_S = 300.0


def main(runs: int, seed: int, victims: list[str], at_once: int) -> int:
    # JVMs live for seconds here: compiling well what runs a few times takes half of their time.
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    print(f"seed {seed}, {at_once} jobs at once", flush=True)
    jobs = {"driver": _kill_driver, "worker": _kill_workers}
    started = time.monotonic()
    with ThreadPoolExecutor(at_once * len(victims)) as pool:
        # Both kinds side by side: while a driver starts, workers of another are at work.
        tallies = {what: _Tally(what, runs) for what in victims}
        lines = [
            pool.submit(_until, tallies[what], jobs[what], f"{seed} {what} {line}")
            for line in range(at_once)
            for what in victims
        ]
        for line in lines:
            line.result()
    kills, failed = sum(tally.kills for tally in tallies.values()), sum(tally.failed for tally in tallies.values())
    seconds = time.monotonic() - started
    print(f"{kills - failed} passed, {failed} failed, {seconds:.0f} s, {seconds / max(1, kills):.1f} s per kill")
    return 1 if failed else 0


class _Tally:
    """How many kills are still wanted, over all jobs of a kind; a table's verdict counts once per kill before it."""

    def __init__(self, what: str, wanted: int) -> None:
        self._what, self._left, self._lock = what, wanted, threading.Lock()
        self.kills = self.failed = self._said = 0

    def take(self) -> int:
        """Kills for one more job, 0 when there are enough."""
        with self._lock:
            mine = min(self._left, KILLS_PER_JOB)
            self._left -= mine
            return mine

    def give_back(self, kills: int) -> None:
        """A job ended before it was killed so often."""
        with self._lock:
            self._left += kills

    def judged(self, kills: int, *, ok: bool) -> None:
        with self._lock:
            self.kills += kills
            self.failed += 0 if ok else max(1, kills)

    def say(self, text: str) -> None:
        with self._lock:
            self._said += 1
            print(f"{self._what} kill {self._said:>3}: {text}", flush=True)


def _until(
    tally: _Tally, job: Callable[[random.Random, int, Callable[[str], None]], tuple[int, bool]], seed: str
) -> None:
    """Runs jobs one after another until enough kills happened."""
    rng = random.Random(seed)
    while wanted := tally.take():
        kills, ok = job(rng, wanted, tally.say)
        tally.judged(kills, ok=ok)
        tally.give_back(wanted - kills if ok else 0)


def _kill_driver(rng: random.Random, left: int, say: Callable[[str], None]) -> tuple[int, bool]:
    folder = _new_folder()
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
        say(f"{parallelism} subtasks, {epochs.last}")


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


def _kill_workers(rng: random.Random, left: int, say: Callable[[str], None]) -> tuple[int, bool]:
    """A kill after each epoch or so; a job whose Spark gives up because the same task died four times is restarted."""
    folder = _new_folder()
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
                    say(epochs.last)
        code = job.wait(GIVE_UP_S)
        epochs.join()
        if code != 0 and restarts < MAX_RESTARTS and "PEN-033" in epochs.errors:
            restarts += 1
            print("worker: Spark gave up on a task that was killed again and again; restarted", flush=True)
            continue
        return kills, _verdict("worker", folder, code, epochs)


def _new_folder() -> Path:
    """With the input in it."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-kill-"))
    generate(folder / "input", CLICKS)
    return folder


def _verdict(what: str, folder: Path, code: int, epochs: _Reader) -> bool:
    """A folder with a wrong result is kept."""
    if code != 0:
        print(f"{what}: the job ended with {code}, kept in {folder}: {epochs.errors[-2000:]}", flush=True)
        return False
    found = audit(folder, CLICKS)
    print(f"{what}: {'ok  ' if found.ok else f'FAIL (kept in {folder})'} {found}", flush=True)
    if found.ok:
        shutil.rmtree(folder, ignore_errors=True)
    return found.ok


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
    parser = argparse.ArgumentParser(prog="kill")
    parser.add_argument("runs", type=int, nargs="?", default=50)
    parser.add_argument("seed", type=int, nargs="?", default=random.SystemRandom().randrange(10**6))
    parser.add_argument("victims", nargs="*", choices=["driver", "worker", []], default=[])
    parser.add_argument("--at-once", type=int, default=2, help="jobs of each kind")
    options = parser.parse_args()
    sys.exit(main(options.runs, options.seed, options.victims or ["driver", "worker"], options.at_once))
