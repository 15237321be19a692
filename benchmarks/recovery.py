"""Recovery at another parallelism takes as long with 1 GB in flight as with 10 MB, and a live rescale stops nothing."""

from __future__ import annotations

import itertools
import os
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.backlog import SIZES_MB, Slow, generate
from benchmarks.peers import spend
from benchmarks.verdict import Verdicts
from benchmarks.workers import PeakMemory
from penstock.events import EpochPublished, Event
from penstock.sinks.paimon.read import read_table

BEFORE, AFTER = 7, 2
RECOVERY_EPOCHS = 8
WARM_UP_EPOCHS = 40
"""A query that runs for some time: the JVM has compiled what it needs."""
RESCALES = (8, 3)
EPOCH_S = 0.5
LOAD_ROWS, LOAD_FILES = 300, 60
TIMEOUT_S = 300


class Timed:
    """A listener that notes when each epoch was published, and lets one wait for a number of them."""

    def __init__(self, enough: int) -> None:
        self.epochs: list[tuple[float, EpochPublished]] = []
        self._enough, self._reached = enough, threading.Event()

    def __call__(self, event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind != "takeover":
            self.epochs.append((time.monotonic(), event))
            if len(self.epochs) >= self._enough:
                self._reached.set()

    def wait(self, query: pen.Query, enough: int | None = None) -> None:
        """Until `enough` epochs were published, by default as many as it was made for."""
        deadline = time.monotonic() + TIMEOUT_S
        while not self._reached.wait(0.05) and (enough is None or len(self.epochs) < enough):
            assert query.is_active, query.exception() or "the query ended before"
            assert time.monotonic() < deadline, "no checkpoint"

    def wait_until(self, query: pen.Query, moment: float) -> None:
        """Until a moment of the monotonic clock, while the query runs."""
        while (left := moment - time.monotonic()) > 0:
            assert query.is_active, query.exception() or "the query ended before"
            self._reached.wait(min(left, 0.5))


def recovery(spark: SparkSession, verdicts: Verdicts) -> None:
    """Stops with much in flight, starts again at another parallelism."""
    first_s, written, memory = {}, {}, {}
    for size in SIZES_MB:
        with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
            generate(Path(folder) / "in", size)
            in_flight = _fill(spark, folder)
            with PeakMemory() as peak:
                first_s[size], epochs = _recover(spark, folder)
        written[size] = max(event.bytes_written.segments + event.bytes_written.manifest for event in epochs)
        memory[size] = peak.peak_bytes
        verdicts.note(
            f"{in_flight / 1e6:,.0f} MB in flight, {BEFORE} to {AFTER} subtasks: first checkpoint of an epoch after "
            f"{first_s[size]:.2f} s, a checkpoint writes {written[size]:,} bytes (state and table aside), "
            f"a worker's peak {memory[size] / 1e6:,.0f} MB"
        )
    smallest, largest = SIZES_MB[0], SIZES_MB[-1]
    verdicts.at_most("first checkpoint, largest to smallest", first_s[largest] / first_s[smallest], 1.5, "×")
    verdicts.at_most("bytes written by a checkpoint while recovering", max(written.values()) / 1e6, 1, " MB")
    verdicts.at_most("memory beyond the smallest", (memory[largest] - memory[smallest]) / 1e6, 100, " MB")


def _start(spark: SparkSession, folder: str, parallelism: int, listener: Timed) -> pen.Query:
    rows = spark.readStream.schema("key long, payload binary").parquet(f"{folder}/in")
    slow = pen.read(rows, name="input").key_by("key").process(Slow, name="slow").write(pen.Discard())
    return slow.start(
        f"{folder}/checkpoint",
        epoch=EPOCH_S,
        parallelism=parallelism,
        max_in_flight="10 GB",
        on_event=listener,
    )


def _fill(spark: SparkSession, folder: str) -> int:
    """One micro-batch, of which next to nothing is processed; bytes in flight."""
    ingested = Timed(1)
    query = _start(spark, folder, BEFORE, ingested)
    ingested.wait(query)
    query.stop()
    return query.manifest().bytes_in_flight


def _recover(spark: SparkSession, folder: str) -> tuple[float, list[EpochPublished]]:
    """Seconds from `start` to the first checkpoint that an epoch published, and the epochs."""
    recovered = Timed(RECOVERY_EPOCHS)
    begun = time.monotonic()
    query = _start(spark, folder, AFTER, recovered)
    recovered.wait(query)
    query.stop()
    return recovered.epochs[0][0] - begun, [event for _, event in recovered.epochs]


# -- rescaling live ----------------------------------------------------------------------------------------------------


class Numbered(pen.KeyedProcess):
    """1 ms per row; numbers each key's rows."""

    output = "key long, number long, nth long"
    seen = pen.value_state("long")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        nth = state.seen or 0
        for row in rows:
            spend(1, 0.001)
            nth += 1
            out.emit(key=row["key"], number=row["number"], nth=nth)
        state.seen = nth


def rescale(spark: SparkSession, verdicts: Verdicts) -> None:
    """2 subtasks, then 8, then 3, while more arrives than is processed; every row is counted afterwards."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        total = load(Path(folder) / "in")
        rows = spark.readStream.schema("key long, number long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
        numbered = pen.read(rows, name="input").key_by("key").process(Numbered, name="numbered")
        timed = Timed(10**9)
        query = numbered.write(pen.Paimon(f"{folder}/lake", "bench.rows")).start(
            f"{folder}/checkpoint", epoch=EPOCH_S, parallelism=2, trigger="available_now", on_event=timed
        )
        timed.wait(query, WARM_UP_EPOCHS)
        changes = []
        for parallelism in RESCALES:
            changes.append(len(timed.epochs))
            query.rescale(parallelism)
            timed.wait(query, changes[-1] + 8)
        query.await_termination()
        table = read_table(f"{folder}/lake", "bench.rows")
    times = [moment for moment, _ in timed.epochs]
    gaps = [after - before for before, after in itertools.pairwise(times)]
    for parallelism, change in zip(RESCALES, changes, strict=True):
        # The epoch that ran when it was asked for, the first one after, and the next.
        around = max(gaps[max(0, change - 1) : change + 2])
        verdicts.at_most(f"longest gap around the change to {parallelism}", around / EPOCH_S, 2, " epochs")
    assert {event.parallelism["numbered"] for _, event in timed.epochs} >= {2, *RESCALES}
    verdicts.at_most("rows lost, doubled or out of order", wrong(table, total), 0, "")


def load(folder: Path) -> int:
    folder.mkdir(parents=True)
    for number in range(LOAD_FILES):
        numbers = range(number * LOAD_ROWS, (number + 1) * LOAD_ROWS)
        table = pa.table({"key": [n % 97 for n in numbers], "number": list(numbers)})
        path = folder / f"{number:04d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their time
    return LOAD_ROWS * LOAD_FILES


def wrong(table: pa.Table, total: int) -> int:
    """Rows that are missing, there twice, or not in the place of their key's order in which they arrived."""
    counts = Counter(table["number"].to_pylist())
    wrong = sum(counts[number] != 1 for number in range(total)) + sum(number >= total for number in counts)
    by_key: dict[int, list[tuple[int, int]]] = {}
    for row in table.to_pylist():
        by_key.setdefault(row["key"], []).append((row["number"], row["nth"]))
    for pairs in by_key.values():
        wrong += sum(nth != place for place, (_, nth) in enumerate(sorted(pairs), 1))
    return wrong
