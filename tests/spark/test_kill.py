"""SIGKILL at random moments; `make kill` does the same a hundred times.

The demo's job is killed while it starts, loses its JVM, loses its Python driver, and loses Python workers, over one
input. In the end each click must be in the table once, numbered in its order.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli.demo import audit, generate, start_job

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes by ps as Linux has it")

CLICKS = 36_000
WORKER_KILLS = 5
GIVE_UP_S = 180.0


class Life:
    """One process of the job, read while it runs so that it never waits for us."""

    def __init__(self, folder: Path, parallelism: int) -> None:
        self.job = start_job(folder, parallelism)
        self.epochs = 0
        self.errors: list[str] = []
        self._changed = threading.Condition()
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read_output, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read_output(self) -> None:
        assert self.job.stdout is not None
        for line in self.job.stdout:
            with self._changed:
                self.epochs += line.startswith("epoch") and " takeover " not in line
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.job.stderr is not None
        self.errors += self.job.stderr

    def await_first_epoch(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.epochs > 0, GIVE_UP_S), "".join(self.errors)

    def wait(self, seconds: float) -> int | None:
        """The exit code, None if the job still runs after that time."""
        try:
            return self.job.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Nothing of the job may outlive its test; workers have a process group of their own, but the same session."""
        for pid in self.processes(""):
            kill(pid)
        self.job.wait()
        for reader in self._readers:
            reader.join(GIVE_UP_S)
        for stream in (self.job.stdout, self.job.stderr):
            assert stream is not None
            stream.close()

    def processes(self, what: str) -> dict[int, int]:
        """Processes of the job whose command line holds `what`, each with its parent."""
        listed = subprocess.check_output(["ps", "-ww", "-eo", "pid=,ppid=,sid=,args="], text=True)
        rows = (line.split(maxsplit=3) for line in listed.splitlines())
        mine = (row for row in rows if int(row[2]) == self.job.pid and what in row[3])
        return {int(pid): int(parent) for pid, parent, _, _ in mine}

    def workers(self) -> list[int]:
        """Python workers: children of Spark's daemons, which look alike."""
        found = self.processes("pyspark.daemon")
        return [pid for pid, parent in found.items() if parent in found]


@contextmanager
def life(folder: Path, rng: random.Random) -> Iterator[Life]:
    started = Life(folder, parallelism=rng.randint(1, 6))
    try:
        yield started
    finally:
        started.end()


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.drawn
def test_kills_of_driver_jvm_and_workers_lose_and_double_nothing(tmp_path: Path) -> None:
    """B1, B2, B6, B12, C4, C9, C11."""
    rng = random.Random(16_11)
    generate(tmp_path / "input", CLICKS)

    with life(tmp_path, rng) as young:
        assert young.wait(rng.uniform(0.3, 5.0)) is None

    with life(tmp_path, rng) as headless:
        headless.await_first_epoch()
        assert headless.wait(rng.uniform(0.0, 1.0)) is None
        (jvm,) = headless.processes("SparkSubmit")
        assert kill(jvm)
        assert headless.wait(GIVE_UP_S) not in (None, 0), "a driver without its JVM says so and ends"
    assert "the JVM of the driver does not answer" in "".join(headless.errors)

    with life(tmp_path, rng) as orphaned:
        orphaned.await_first_epoch()
        assert orphaned.wait(rng.uniform(0.0, 1.0)) is None
        assert kill(orphaned.job.pid)
        # Its JVM and its workers may still be at work while the next driver starts.
        with life(tmp_path, rng) as last:
            last.await_first_epoch()
            kill_workers(last, rng)
            assert last.wait(GIVE_UP_S) == 0, "".join(last.errors)[-5000:]

    found = audit(tmp_path, CLICKS)
    assert found.ok, found


def kill_workers(running: Life, rng: random.Random) -> None:
    kills = 0
    while kills < WORKER_KILLS:
        assert running.wait(rng.uniform(0.1, 0.8)) is None, "the job ended before its workers could be killed"
        workers = running.workers()
        kills += bool(workers) and kill(rng.choice(workers))
