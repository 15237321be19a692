"""The figures of a soak: what a driver, its JVM, its workers and its folders hold at one moment."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, fields
from pathlib import Path

from tests.chaos import messages, processes
from tests.chaos.drivers import Driver
from tests.chaos.growth import Limit
from tests.chaos.messages import Measured

MB = 1_000_000
MEASURE_S_MAX = 60.0
UNCOUNTED = ("events.jsonl", "events", "generations")
"""Parts of a checkpoint folder that grow for longer than a soak: a line per epoch up to a bound, a file per start."""


def _figure(unit: str, *, share: float, floor: float, why: str) -> float:
    return field(metadata={"limit": Limit(share, floor, unit, why)})


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment. Each figure has its limit beside it."""

    at_s: float
    driver_mb: float = _figure("MB", share=0.1, floor=15, why="the allocator keeps arenas; 15 MB is 10 KB an epoch")
    heap_mb: float = _figure("MB", share=0.15, floor=25, why="Spark's bounded lists of past jobs and queries")
    workers_mb: float = _figure("MB", share=0.1, floor=20, why="Arrow's pool keeps what a large slice needed")
    driver_files: float = _figure("", share=0.1, floor=6, why="files that are open while a sample is taken")
    jvm_files: float = _figure("", share=0.1, floor=15, why="jars and sockets that are opened at first use")
    worker_files: float = _figure("", share=0.1, floor=10, why="state and segments that a subtask has open")
    driver_threads: float = _figure("", share=0.1, floor=4, why="threads of py4j, one per concurrent call")
    jvm_threads: float = _figure("", share=0.1, floor=12, why="pools that grow to their bound")
    workers: float = _figure("", share=0.5, floor=2, why="idle workers live for a minute")
    checkpoint_mb: float = _figure("MB", share=0.25, floor=2, why="retained checkpoints differ in size")
    metadata_mb: float = _figure("MB", share=0.25, floor=1, why="manifests and snapshots come and go with upkeep")
    table_files: float = _figure("", share=0.25, floor=60, why="data files between two compactions")
    epoch_s: float = _figure("s", share=0.25, floor=0.3, why="faults make single epochs long")
    manifest_kb: float = _figure("KB", share=0.25, floor=4, why="faults leave more in flight for a while")
    in_flight: float = _figure("rows", share=0.25, floor=1000, why="five seconds of input")

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        return {part.name: part.metadata["limit"] for part in fields(cls) if "limit" in part.metadata}

    def __str__(self) -> str:
        return (
            f"epoch {self.epoch_s:.2f} s, manifest {self.manifest_kb:.1f} KB, {self.in_flight:.0f} rows in flight; "
            f"memory {self.driver_mb:.0f} driver + {self.heap_mb:.0f} JVM heap + {self.workers_mb:.0f} MB worker; "
            f"files {self.driver_files:.0f} + {self.jvm_files:.0f} + {self.worker_files:.0f}, "
            f"threads {self.driver_threads:.0f} + {self.jvm_threads:.0f}, {self.workers:.0f} workers; "
            f"checkpoint {self.checkpoint_mb:.2f} MB, tables {self.metadata_mb:.2f} MB metadata, "
            f"{self.table_files:.0f} data files"
        )


class Watch:
    """Takes samples of one driver process."""

    def __init__(self, driver: Driver, folder: Path) -> None:
        self._driver, self._folder = driver, folder
        self._seen = 0
        self._last = messages.Epoch(0, "takeover", 0, 0, 0.0, 0)

    def sample(self, at_s: float) -> Sample:
        """Everything at once, after a collection of garbage in the JVM."""
        driver = self._driver
        measured = self._measured()
        epochs = [told for told in driver.all_told[self._seen :] if isinstance(told, messages.Epoch)]
        self._seen = len(driver.all_told)
        self._last = epochs[-1] if epochs else self._last
        workers = processes.workers(driver.pid)
        (jvm,) = processes.jvms(driver.pid)
        lake = [path for path in (self._folder / "lake").rglob("*") if path.is_file()]
        data = [path for path in lake if path.suffix == ".parquet"]
        return Sample(
            at_s=at_s,
            driver_mb=processes.resident_bytes(driver.pid) / MB,
            heap_mb=measured.heap_bytes / MB,
            workers_mb=max(map(processes.resident_bytes, workers), default=0) / MB,
            driver_files=processes.open_files(driver.pid),
            jvm_files=processes.open_files(jvm),
            worker_files=max(map(processes.open_files, workers), default=0),
            driver_threads=processes.threads(driver.pid),
            jvm_threads=measured.threads,
            workers=len(workers),
            checkpoint_mb=_bytes_of(self._checkpoint_files()) / MB,
            metadata_mb=_bytes_of(set(lake) - set(data)) / MB,
            table_files=len(data),
            epoch_s=statistics.median([epoch.duration_s for epoch in epochs] or [self._last.duration_s]),
            manifest_kb=self._last.manifest_bytes / 1000,
            in_flight=self._last.in_flight,
        )

    def _measured(self) -> Measured:
        driver = self._driver
        before = len(driver.all_told)
        driver.tell(messages.Measure())

        def answers() -> list[Measured]:
            return [told for told in driver.all_told[before:] if isinstance(told, Measured)]

        driver.require(lambda: bool(answers()), "measurement", MEASURE_S_MAX)
        return answers()[0]

    def _checkpoint_files(self) -> set[Path]:
        place = self._folder / "checkpoint"
        return {path for path in place.rglob("*") if path.relative_to(place).parts[0] not in UNCOUNTED}


def _bytes_of(paths: set[Path]) -> int:
    total = 0
    for path in paths:
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # collected meanwhile
    return total
