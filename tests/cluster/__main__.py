"""The demo's job through spark-submit, on a standalone Spark of a master and two workers.

    python -m tests.cluster [--clicks N] [--seed SEED]

A worker is killed with its executor and replaced. Then the driver is killed with its JVM, and the job is submitted
again at another parallelism. In the end every click must be in the table once, numbered in its order.
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
from pathlib import Path

import penstock as pen
from penstock.cli import demo_job
from penstock.cli.demo import audit, generate
from tests.chaos.processes import send_all
from tests.support.standalone import HOME, Standalone

LIMIT_S = 300.0
EPOCHS = 3
"""After so many a worker is killed, and after so many more the driver."""


class Submitted:
    """One run of the job; what it prints is read while it runs."""

    def __init__(self, master: str, folder: Path, parallelism: int) -> None:
        settings = {**pen.spark_conf(), "spark.executor.memory": "600m", "spark.ui.enabled": "false"}
        conf = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        program = [demo_job.__file__, str(folder), str(parallelism)]
        self.parallelism = parallelism
        self.process = subprocess.Popen(
            [str(HOME / "bin" / "spark-submit"), "--master", master, *conf, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={
                **os.environ,
                "SPARK_HOME": str(HOME),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
        )
        self.epochs, self.errors = 0, ""
        self._changed = threading.Condition()
        for read in (self._read, self._read_errors):
            threading.Thread(target=read, daemon=True).start()

    def await_epochs(self, count: int) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: self.epochs >= count or self.process.poll() is not None, LIMIT_S)
        assert done, f"epoch {count} does not come: {self.errors[-3000:]}"
        assert self.process.poll() is None, f"the job ended before it was killed: {self.errors[-3000:]}"

    def kill(self) -> None:
        """Driver and JVM at once."""
        send_all(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.epochs += line.startswith("epoch") and " takeover " not in line
                self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="cluster")
    parser.add_argument("--clicks", type=int, default=60_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    folder = Path(tempfile.mkdtemp(prefix="penstock-cluster-"))
    generate(folder / "input", options.clicks)
    print(f"seed {options.seed}, {options.clicks:,} clicks", flush=True)
    with Standalone(folder / "scratch") as standalone:
        workers = [standalone.add_worker() for _ in range(2)]
        print(f"{standalone.master} with two workers", flush=True)
        job = Submitted(standalone.master, folder, rng.randint(2, 3))
        try:
            job.await_epochs(EPOCHS)
            standalone.kill_worker(rng.choice(workers))
            standalone.add_worker()
            print(f"{job.parallelism} subtasks, {job.epochs} epochs: a worker killed and replaced", flush=True)
            job.await_epochs(job.epochs + EPOCHS)
            time.sleep(rng.uniform(0.0, 1.0))
            job.kill()
            print(f"{job.parallelism} subtasks, {job.epochs} epochs: the driver killed", flush=True)
            job = Submitted(standalone.master, folder, rng.randint(4, 6))
            code = job.process.wait(LIMIT_S)
            print(f"{job.parallelism} subtasks, {job.epochs} epochs: ended with {code}", flush=True)
        finally:
            job.kill()
    assert code == 0, job.errors[-5000:]
    found = audit(folder, options.clicks)
    print(f"{'ok  ' if found.ok else f'FAIL (kept in {folder})'} {found}")
    if found.ok:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if found.ok else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing that was started is left behind
    sys.exit(main(sys.argv[1:]))
