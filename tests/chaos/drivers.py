"""Driver processes as their parent sees them, and a small stock of them: starting a JVM takes longer than a run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyspark

from tests.chaos import messages, processes
from tests.chaos.messages import Ended, Epoch, Gone, Order, Ready, Refused, Told

ROOT = Path(__file__).resolve().parents[2]
READY_S_MAX = 180.0
LOCAL = "local[2,4]"  # four attempts per task, so that a killed worker does not fail the epoch
CLUSTER = "local-cluster[2,1,600]"
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""JVMs live for minutes and are killed: compiling well would take half of their time."""


class Hangs(AssertionError):
    """Something that must happen did not happen in time."""


class Driver:
    """A process with a Spark session of its own, in a session of its own: `pid` names both."""

    def __init__(self, folder: Path, master: str) -> None:
        self.master = master
        self.log = folder / "driver.log"
        folder.mkdir(parents=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.driver", master, str(folder / "warm-up")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                cwd=ROOT,
                env=_environment(folder, master),
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._told: list[Told] = []
        self._mark = 0
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._add(messages.decode_told(line))
        self._add(Gone())

    def _add(self, told: Told) -> None:
        with self._changed:
            self._told.append(told)
            self._changed.notify_all()

    def tell(self, order: Order) -> None:
        """What it told before does not count any more once it is told to start a query."""
        assert self._process.stdin is not None
        if isinstance(order, messages.Start):
            with self._changed:
                self._mark = len(self._told)
        with suppress(BrokenPipeError):  # it is gone, which whoever waits for its answer finds out
            self._process.stdin.write(messages.encode(order))

    @property
    def told(self) -> list[Told]:
        """Since the last start of a query."""
        with self._changed:
            return self._told[self._mark :]

    @property
    def all_told(self) -> list[Told]:
        """Since the process started."""
        with self._changed:
            return self._told[:]

    @property
    def epochs(self) -> list[Epoch]:
        """Checkpoints of the query that processed something."""
        return [told for told in self.told if isinstance(told, Epoch) and told.kind != "takeover"]

    @property
    def outcome(self) -> Ended | Refused | None:
        """How the query ended, None while it runs."""
        return next((told for told in self.told if isinstance(told, Ended | Refused)), None)

    @property
    def is_ready(self) -> bool:
        with self._changed:
            return any(isinstance(told, Ready) for told in self._told)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        """Whether it came true in time. A process that is gone tells nothing more: then it returns at once."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not until():
                left = deadline - time.monotonic()
                if left <= 0 or any(isinstance(told, Gone) for told in self._told[-1:]):
                    return until()
                self._changed.wait(left)
        return True

    def require(self, until: Callable[[], bool], what: str, seconds: float) -> None:
        """Raises: `Hangs`, after the process has written down what its threads do."""
        if not self.wait(until, seconds):
            processes.send(self.pid, signal.SIGUSR1)
            for jvm in processes.jvms(self.pid):
                processes.send(jvm, signal.SIGQUIT)
            raise Hangs(f"no {what} within {seconds:.0f} s")

    def kill(self) -> None:
        """All of it; nothing may outlive this."""
        while left := processes.of_session(self.pid):
            for process in left:
                processes.send(process.pid, signal.SIGKILL)
            self._process.poll()
            time.sleep(0.01)
        self._process.wait()
        self._reader.join(5.0)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Drivers:
    """Lends drivers and takes them back. Some are kept ready: whoever takes over does not wait for a JVM."""

    def __init__(self, folder: Path, spares: int = 1) -> None:
        self._folder, self._spares = folder, spares
        self._made = 0
        self._idle: list[Driver] = []
        self._lent: list[Driver] = []

    def take(self, master: str = LOCAL) -> Driver:
        """A driver that is ready.

        Raises: `Hangs` when Spark does not start.
        """
        self._idle = [driver for driver in self._idle if driver.is_alive]
        mine = [driver for driver in self._idle if driver.master == master] or [self._make(master)]
        driver = max(mine, key=lambda driver: driver.is_ready)
        self._idle.remove(driver)
        self._lent.append(driver)
        for _ in range(self._spares - sum(spare.master == LOCAL for spare in self._idle)):
            self._make(LOCAL)
        driver.require(lambda: driver.is_ready, f"Spark session (see {driver.log})", READY_S_MAX)
        return driver

    def _make(self, master: str) -> Driver:
        self._made += 1
        driver = Driver(self._folder / f"driver-{self._made}", master)
        self._idle.append(driver)
        return driver

    def give_back(self, driver: Driver) -> None:
        """One whose query has ended is used again; one whose JVM is gone, or that is in an unknown state, is ended."""
        if driver not in self._lent:
            return
        self._lent.remove(driver)
        if driver.is_alive and driver.outcome is not None and processes.jvms(driver.pid):
            self._idle.append(driver)
        else:
            driver.kill()

    def close(self) -> None:
        for driver in (*self._idle, *self._lent):
            driver.kill()
        self._idle.clear()
        self._lent.clear()


def _environment(folder: Path, master: str) -> dict[str, str]:
    """Workers import what the driver imports, wherever an executor runs them."""
    scratch = folder / "scratch"
    scratch.mkdir()
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(scratch),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", JAVA_OPTIONS),
    }
    if master != LOCAL:
        own["SPARK_HOME"] = str(_spark_home(folder / "spark"))
    return {**os.environ, **own}


def _spark_home(folder: Path) -> Path:
    """A local cluster's executors write into Spark's own folder, so it gets one of links."""
    folder.mkdir()
    for entry in Path(pyspark.__file__).parent.iterdir():
        if entry.name != "work":
            (folder / entry.name).symlink_to(entry)
    return folder
