"""The pipeline of the soak, and what its tables must hold: a steady stream, keyed state, windows, two tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from penstock.sinks.paimon.read import listed_files, read_table
from tests.spark.matrix_shapes import takes

SOAK = "soak"
ROWS_PER_S = 200
KEYS = 100
WINDOW_S = 5
ROWS, WINDOWS = "soak.rows", "soak.windows"
UPKEEP = pen.Upkeep(every="5 s", snapshots=5, snapshots_for="20 s")
"""Often, so that minutes show what hours would."""


class Numbered(pen.KeyedProcess):
    """Numbers the rows of each key."""

    output = "number bigint, key bigint, ts timestamp, nth bigint"
    seen = pen.value_state("bigint")

    def process(self, key, rows, state, out):
        nth = state.seen or 0
        for row in rows:
            nth += 1
            out.emit(number=row["number"], key=row["key"], ts=row["ts"], nth=nth)
        state.seen = nth


def soak_outputs(spark: SparkSession, folder: Path, cost_s: float) -> Sequence[pen.Output]:
    """Rows numbered per key into one table, counted per key and window into another."""
    rows = spark.readStream.format("rate").option("rowsPerSecond", str(ROWS_PER_S)).option("numPartitions", "2").load()
    rows = rows.selectExpr("value AS number", f"value % {KEYS} AS key", "timestamp AS ts")
    numbered = (
        pen.read(rows, name="rows", event_time="ts", watermark="2 s").key_by("key").process(Numbered, name="number")
    )
    slow = numbered.map_batches(takes(cost_s), name="slow")
    windows = slow.key_by("key").window(pen.tumbling_window(WINDOW_S)).aggregate(n=pen.count(), name="windows")
    lake = str(folder / "lake")
    return [
        slow.write(pen.Paimon(lake, ROWS, upkeep=UPKEEP), name="rows_table"),
        windows.write(pen.Paimon(lake, WINDOWS, upkeep=UPKEEP), name="windows_table"),
    ]


def soak_faults(folder: Path) -> list[str]:
    """What is wrong with the tables of a query that was stopped with everything processed; nothing, if all is well."""
    lake = str(folder / "lake")
    rows, windows = read_table(lake, ROWS), read_table(lake, WINDOWS)
    faults = [f"{table} lists a file twice" for table in (ROWS, WINDOWS) if _listed_twice(lake, table)]
    numbers = np.sort(rows["number"].to_numpy())
    if not np.array_equal(numbers, np.arange(len(numbers))):
        distinct = len(np.unique(numbers))
        missing = 0 if len(numbers) == 0 else int(numbers[-1]) + 1 - distinct
        faults.append(f"{missing} rows lost, {len(numbers) - distinct} doubled of {len(numbers)}")
    ordered = rows.sort_by([("key", "ascending"), ("number", "ascending")])
    expected = np.arange(len(ordered)) - np.searchsorted(ordered["key"].to_numpy(), ordered["key"].to_numpy()) + 1
    wrong = int((ordered["nth"].to_numpy() != expected).sum())
    if wrong:
        faults.append(f"{wrong} rows with a wrong number within their key")
    return faults + _window_faults(rows, windows)


def _listed_twice(lake: str, table: str) -> bool:
    files = listed_files(lake, table)
    return len(files) != len(set(files))


def _window_faults(rows: pa.Table, windows: pa.Table) -> list[str]:
    """Each window that was closed, once and with the right count; the last ones are still open."""
    micros = rows["ts"].cast(pa.timestamp("us")).cast(pa.int64()).to_numpy()
    starts = pa.array(micros // (WINDOW_S * 1_000_000) * (WINDOW_S * 1_000_000))
    want = pa.table({"key": rows["key"], "start": starts}).group_by(["key", "start"]).aggregate([([], "count_all")])
    expected = dict(
        zip(
            zip(want["key"].to_pylist(), want["start"].to_pylist(), strict=True),
            want["count_all"].to_pylist(),
            strict=True,
        )
    )
    begun = windows["window_start"].cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    found = list(zip(windows["key"].to_pylist(), begun, strict=True))
    counts = windows["n"].to_pylist()
    faults = []
    if len(found) != len(set(found)):
        faults.append(f"{len(found) - len(set(found))} windows twice")
    wrong = sum(expected.get(window) != n for window, n in zip(found, counts, strict=True))
    if wrong:
        faults.append(f"{wrong} windows with a wrong count")
    last = max(begun, default=0)
    lost = sum(start <= last for _, start in expected.keys() - set(found))
    if lost:
        faults.append(f"{lost} windows lost")
    return faults
