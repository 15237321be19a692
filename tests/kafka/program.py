"""The job as a process: what it prints is read while it runs, and nothing of it outlives a case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.processes import send_all
from tests.kafka.jars import connector_jars
from tests.kafka.topic import Topic

LIMIT_S = 240.0
SOURCE_TIMEOUT_S = 5.0


def prepare(folder: Path, topic: Topic, *, by_partition: bool = True, **options: str) -> None:
    """Writes down what the job reads."""
    folder.mkdir(exist_ok=True)
    read = {
        "kafka.bootstrap.servers": topic.address,
        "subscribe": topic.name,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "4000",
        **options,
    }
    settings = {
        "jars": ",".join(map(str, connector_jars())),
        "options": read,
        "by_partition": by_partition,
        "source_timeout": SOURCE_TIMEOUT_S,
    }
    (folder / "job.json").write_text(json.dumps(settings))


class Program:
    """One run of the job."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.errors = ""
        self._changed = threading.Condition()
        self._ended = False
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def wait_for(self, fits: Callable[[dict[str, Any]], bool], what: str) -> dict[str, Any]:
        """The first event that fits."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or any(map(fits, self.events)), LIMIT_S)
            found = next(filter(fits, self.events), None)
        assert found is not None, f"no {what}: {self.errors[-3000:]}"
        return found

    def wait_for_rows(self, rows: int) -> None:
        """Until so many were taken from the source by this program."""

        def taken(_: object) -> bool:
            epochs = [event for event in self.events if event["event"] == "EpochPublished"]
            return sum(event.get("rows_in", 0) for event in epochs) >= rows

        self.wait_for(taken, f"{rows} rows")

    def kill(self) -> None:
        """Driver, JVM and workers at once."""
        send_all(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def stop(self) -> None:
        """As Kubernetes does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.end() == 143, self.errors[-3000:]

    def end(self) -> int:
        code = self.process.wait(LIMIT_S)
        for reader in self._readers:
            reader.join(10)
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                with self._changed:
                    self.events.append(json.loads(line))
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors += line


@contextmanager
def running(folder: Path, parallelism: int, *, finish: bool = False) -> Iterator[Program]:
    """Whatever is left of it at the end is killed."""
    command = [sys.executable, "-m", "tests.kafka.job", str(folder), str(parallelism), *["--finish"] * finish]
    quick = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC", "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **quick, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield Program(process)
    finally:
        send_all(process.pid, signal.SIGKILL)
        process.wait(30)


def finish(folder: Path, parallelism: int) -> Program:
    """Runs the job until it has read everything there is."""
    with running(folder, parallelism, finish=True) as program:
        assert program.end() == 0, program.errors[-3000:]
        return program


def waited(seconds: float) -> None:
    """For an outage that is to last."""
    time.sleep(seconds)
