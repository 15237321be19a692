"""A standalone Spark on this machine: a master and workers as processes, from pip's PySpark."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import pyspark

from tests.chaos.processes import send_all

HOME = Path(pyspark.__file__).parent


class Standalone:
    """Lives as long as the `with` block.

    With `apart`, a worker is the leader of a session to which its executors belong, so that all of them can be killed.
    Without, all processes are in the caller's session and end with it.
    """

    def __init__(self, scratch: Path, *, apart: bool = True) -> None:
        self._scratch, self._apart = scratch, apart
        self.workers: list[subprocess.Popen[bytes]] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self.master = f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._master = self._daemon("master.Master", "--host", "127.0.0.1", "--port", str(self._port))
        try:
            self._await_master()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self._master, *self.workers):
            self._kill(process)

    def add_worker(self, host: str = "127.0.0.1", cores: int = 1) -> subprocess.Popen[bytes]:
        worker = self._daemon("worker.Worker", "--cores", str(cores), "--memory", "1g", "--host", host, self.master)
        self.workers.append(worker)
        return worker

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """With its executors: as a machine that is gone."""
        self._kill(worker)
        self.workers.remove(worker)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        if self._apart:
            send_all(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()

    def _daemon(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        settings = {"SPARK_HOME": str(HOME), "SPARK_WORKER_DIR": str(self._scratch), "SPARK_DAEMON_MEMORY": "256m"}
        program = str(HOME / "bin" / "spark-class")
        command = [program, f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments]
        return subprocess.Popen(
            command, env={**os.environ, **settings}, stderr=subprocess.DEVNULL, start_new_session=self._apart
        )

    def _await_master(self) -> None:
        """Before the master listens, workers and drivers try in vain and then wait for long."""
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except ConnectionRefusedError:
                assert time.monotonic() < deadline, "no master"
                time.sleep(0.05)
            else:
                return
