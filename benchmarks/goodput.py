"""Useful work under overload: rows of 1 ms each, 70 % on one key, 20 times more input than can be done.

The operator waits or computes; the machine is idle, or six busy processes run beside. Limits on in-flight data are the
default, so large that they never hold, or so small that nearly all epochs drain.

``python -m benchmarks.goodput waits idle default`` runs the cells that have all of these words.
"""

from __future__ import annotations

import itertools
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.peers import spend
from benchmarks.recovery import Timed
from benchmarks.session import make_session
from benchmarks.verdict import Verdicts, percentile
from penstock.events import EpochPublished

ROWS_PER_S = 40_000
ROW_S = 0.001
HOT = 0.7
"""The share of rows that have the hot key; the condition on `value` below makes it so."""
SLOTS = 2
NEIGHBOURS = 6
WARM_UP_EPOCHS = 6
SETTLE_S = 4.0
"""Beside neighbours: pace adapts."""
MEASURED_S = 22.0
FAIR_S = 3.0
LIMITS: dict[str, dict[str, Any]] = {
    "default": {},
    "10 GB": {"max_in_flight": "10 GB", "max_backlog": None},
    "1 MB": {"max_in_flight": "1 MB", "max_backlog": None},
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: what the operator does, what the machine does, which limits hold."""

    operator: str
    machine: str
    limit: str

    def __str__(self) -> str:
        return f"{self.operator}, {self.machine}, {self.limit}"


CELLS = [
    *(Cell("waits", machine, limit) for machine in ("idle", "busy") for limit in LIMITS),
    *(Cell("computes", machine, "default") for machine in ("idle", "busy")),
]


class Waits(pen.KeyedProcess):
    """1 ms of waiting per row, as for a service."""

    output = "key long, n long"
    n = pen.value_state("long")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        spend(len(rows), ROW_S)
        state.n = (state.n or 0) + len(rows)
        out.emit(key=key["key"], n=state.n)


class Computes(Waits):
    """1 ms of CPU time per row."""

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        for _ in rows:
            compute(ROW_S)
        state.n = (state.n or 0) + len(rows)
        out.emit(key=key["key"], n=state.n)


OPERATORS: dict[str, type[pen.KeyedProcess]] = {"waits": Waits, "computes": Computes}


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@dataclass(frozen=True, slots=True)
class Goodput:
    """What one run did, in its measured part."""

    rows_per_s: float
    rows_per_epoch: float
    gaps_s: list[float]
    ingests: int

    @classmethod
    def of(cls, epochs: list[tuple[float, EpochPublished]]) -> Goodput:
        times = [moment for moment, _ in epochs]
        events = [event for _, event in epochs[1:]]
        rows = sum(event.rows_processed for event in events)
        return cls(
            rows / (times[-1] - times[0]),
            rows / len(events),
            [after - before for before, after in itertools.pairwise(times)],
            sum(event.kind == "ingest" for event in events),
        )

    def __str__(self) -> str:
        return (
            f"{self.rows_per_s:,.0f} rows/s, {self.rows_per_epoch:,.0f} rows per epoch, checkpoint gap p50 "
            f"{percentile(self.gaps_s, 0.5):.2f} s, p99 {percentile(self.gaps_s, 0.99):.2f} s, {len(self.gaps_s)} "
            f"epochs, {self.ingests} of them ingest"
        )


def run(spark: SparkSession, verdicts: Verdicts, cells: list[Cell] | None = None) -> None:
    for cell in cells or CELLS:
        seen, fair = _measured(spark, cell)
        verdicts.note(f"{cell}: {seen}" + ("" if fair is None else f"; fair share {fair:,.0f} rows/s"))
        if cell.limit != "default":
            continue
        if fair is not None:
            verdicts.at_least(f"{cell}: share of the fair share", seen.rows_per_s / fair, 0.8)
        else:
            verdicts.at_least(f"{cell}: rows/s", seen.rows_per_s, 1200 if cell.machine == "idle" else 600)
        if cell.machine == "idle":
            verdicts.at_most(f"{cell}: checkpoint gap, p99", percentile(seen.gaps_s, 0.99), 1.5, " s")


def _measured(spark: SparkSession, cell: Cell) -> tuple[Goodput, float | None]:
    timed = Timed(10**9)
    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", ROWS_PER_S)
        .load()
        .selectExpr("if(pmod(xxhash64(value), 10) < 7, 0L, pmod(value, 1000L)) AS key", "value AS amount")
    )
    stream = pen.read(rows, name="rate").key_by("key").process(OPERATORS[cell.operator], name="slow")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = stream.write(pen.Discard()).start(
            f"{folder}/checkpoint", epoch="1 s", parallelism=4, on_event=timed, **LIMITS[cell.limit]
        )
        timed.wait(query, WARM_UP_EPOCHS)
        with neighbours(NEIGHBOURS if cell.machine == "busy" else 0):
            if cell.machine == "busy":
                timed.wait_until(query, time.monotonic() + SETTLE_S)
            begun = len(timed.epochs) - 1
            timed.wait_until(query, time.monotonic() + MEASURED_S)
            measured = timed.epochs[begun:]
            query.stop()
            fair = _fair_share() if cell.operator == "computes" else None
    return Goodput.of(measured), fair


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Other processes that compute without a pause."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _fair_share() -> float:
    """Rows per second that the slots allow: one of as many plain processes as there are slots, which do nothing but
    compute such rows, has the hot key, and a process with the hot key cannot share it."""
    with multiprocessing.get_context("spawn").Pool(SLOTS) as pool:
        pool.map(_rows_in, [0.1] * SLOTS)  # they have started
        return sum(pool.map(_rows_in, [FAIR_S] * SLOTS)) / FAIR_S / SLOTS / HOT


def _rows_in(seconds: float) -> int:
    end, rows = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        compute(ROW_S)
        rows += 1
    return rows


def main(words: list[str]) -> int:
    cells = [cell for cell in CELLS if all(word in str(cell) for word in words)]
    verdicts = Verdicts()
    run(make_session(), verdicts, cells)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
