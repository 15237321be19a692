"""A changed program starts as fast as the same one, with state and rows in flight; state is migrated in flat memory.

``python -m benchmarks.change --keys 500000 --in-flight-mb 100`` measures a smaller one.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.session import make_session
from benchmarks.verdict import Verdicts
from benchmarks.workers import PeakMemory
from penstock.api.outputs import Output
from penstock.events import EpochPublished, Event, StateMigrated

KEYS, IN_FLIGHT_MB = 5_000_000, 1_000
LOAD_ROWS = 1_000_000
TEXT_BYTES = 1_000
ROUNDS = 3
RATIO_MAX, BYTES_MAX_MB = 1.5, 1.0
MEMORY_MAX_MB = 1_000
SCHEMA = "key long, amount long, text string"

Build = Callable[[pen.Stream], Output]


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    measure(spark, verdicts, KEYS, IN_FLIGHT_MB)


def measure(spark: SparkSession, verdicts: Verdicts, keys: int, in_flight_mb: int) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as name:
        folder = Path(name)
        _prepare(spark, folder, keys, in_flight_mb)
        manifest = pen.open(str(folder / "checkpoint")).manifest
        rows = sum(file.rows for files in manifest.state.values() for file in files)
        size_mb = manifest.bytes_in_flight / 1e6
        verdicts.note(f"{rows:,} rows of state, {size_mb:,.0f} MB and {manifest.rows_in_flight:,} rows in flight")
        _upgrade(spark, verdicts, folder)
        _migrate(spark, verdicts, folder, manifest.checkpoint)


# -- programs ----------------------------------------------------------------------------------------------------------


def slowly(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Leaves nearly everything in flight."""
    time.sleep(0.05)
    return batch


def before(stream: pen.Stream) -> Output:
    seen = stream.map_batches(slowly, name="slow")
    return seen.key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), name="totals").write(pen.Discard())


def after(stream: pen.Stream) -> Output:
    """An operator in front, another name, one more aggregate."""
    seen = stream.map_batches(lambda batch: batch, name="parse").map_batches(slowly, name="slower")
    totals = seen.key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), most=pen.max("amount"), name="sums")
    return totals.write(pen.Discard())


RENAMED = {"slow": "slower", "totals": "sums"}


def _read(spark: SparkSession, folder: Path) -> pen.Stream:
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    return pen.read(reader.parquet(str(folder / "in")), name="input")


def _prepare(spark: SparkSession, folder: Path, keys: int, in_flight_mb: int) -> None:
    """A stopped query with that many keys and that much in flight."""
    (folder / "in").mkdir()
    random, number = np.random.default_rng(7), 0
    for first in range(0, keys, LOAD_ROWS):
        _write(folder, number, np.arange(first, min(first + LOAD_ROWS, keys)), "")
        number += 1

    def load(stream: pen.Stream) -> Output:
        seen = stream.map_batches(lambda batch: batch, name="slow")
        return seen.key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), name="totals").write(pen.Discard())

    options: dict[str, Any] = {"trigger": "available_now", "parallelism": 2}
    load(_read(spark, folder)).start(folder / "checkpoint", epoch=None, **options).await_termination()
    rows = 50_000
    text = "".join(chr(97 + letter) for letter in random.integers(0, 26, TEXT_BYTES))
    for _ in range(max(1, in_flight_mb * 1_000_000 // (rows * TEXT_BYTES))):
        _write(folder, number, random.integers(0, keys, rows), text)
        number += 1
    limits: dict[str, Any] = {"max_backlog": None, "max_in_flight": "20 GB", "max_in_flight_segments": 100_000}
    events: list[EpochPublished] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            events.append(event)

    query = before(_read(spark, folder)).start(
        folder / "checkpoint", epoch="300 ms", on_event=listen, **limits, **options
    )
    while query.is_active and (query.manifest().source.batch_id or 0) < number - 1:
        time.sleep(0.1)
    query.stop()


def _write(folder: Path, number: int, keys: Any, text: str) -> None:
    """Texts differ from row to row, so that rows in flight are as large on disk."""
    texts = [f"{key}{text[key % 50 :]}" for key in keys.tolist()] if text else [""] * len(keys)
    table = pa.table({"key": keys, "amount": keys % 100, "text": texts})
    pq.write_table(table, folder / "in" / f"{number:05d}.parquet", compression="none")


# -- measurements ------------------------------------------------------------------------------------------------------


def _upgrade(spark: SparkSession, verdicts: Verdicts, folder: Path) -> None:
    plain, changed, written = [], [], []
    for _ in range(ROUNDS):
        plain.append(_first_checkpoint(spark, folder, before)[0])
        took_s, size = _first_checkpoint(spark, folder, after, renamed=RENAMED)
        changed.append(took_s)
        written.append(size)
    verdicts.note(f"first checkpoint after start, plain: {_listed(plain)} s; changed: {_listed(changed)} s")
    ratio = statistics.median(changed) / statistics.median(plain)
    verdicts.at_most("first checkpoint, changed to plain", ratio, RATIO_MAX, "×")
    verdicts.at_most("bytes that the change wrote", max(written) / 1e6, BYTES_MAX_MB, " MB")


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values)


def _first_checkpoint(spark: SparkSession, folder: Path, build: Build, **options: Any) -> tuple[float, int]:
    """Seconds from `start` to the first epoch's checkpoint, and bytes that the takeover wrote, on a copy."""
    copy = folder / "copy"
    shutil.copytree(folder / "checkpoint", copy)
    known = {path: path.stat().st_size for path in copy.rglob("*") if path.is_file()}
    found: list[float] = []
    size = 0

    def listen(event: Event) -> None:
        nonlocal size
        if isinstance(event, EpochPublished) and event.kind == "takeover":
            new = [path for path in copy.rglob("*") if path.is_file() and path not in known]
            size = sum(path.stat().st_size for path in new)
        elif isinstance(event, EpochPublished):
            found.append(time.monotonic())

    output = build(_read(spark, folder))
    began = time.monotonic()
    query = output.start(copy, epoch="300 ms", parallelism=2, on_event=listen, max_backlog=None, **options)
    while not found and query.is_active:
        time.sleep(0.01)
    query.stop()
    shutil.rmtree(copy)
    return found[0] - began, size


def doubled(rows: pa.Table) -> pa.Table:
    """What a migration may do: another unit."""
    name = next(name for name in rows.column_names if name.startswith("total"))
    return rows.set_column(rows.column_names.index(name), name, pc.multiply(rows.column(name), 2))


def _migrate(spark: SparkSession, verdicts: Verdicts, folder: Path, checkpoint: int) -> None:
    found: list[StateMigrated] = []

    def listen(event: Event) -> None:
        if isinstance(event, StateMigrated):
            found.append(event)

    with PeakMemory() as peak:
        query = before(_read(spark, folder)).start(
            folder / "checkpoint", parallelism=2, on_event=listen, restore=checkpoint, migrate={"totals": doubled}
        )
        query.stop()
    (event,) = found
    verdicts.note(
        f"migrated {event.rows:,} rows in {event.duration_s:.1f} s: {event.rows / event.duration_s:,.0f} rows/s,"
        f" {event.bytes / 1e6:,.0f} MB written"
    )
    verdicts.at_most("memory of a worker that migrates", peak.peak_bytes / 1e6, MEMORY_MAX_MB, " MB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--in-flight-mb", type=int, default=IN_FLIGHT_MB)
    chosen = parser.parse_args()
    verdicts = Verdicts()
    spark = make_session()
    measure(spark, verdicts, chosen.keys, chosen.in_flight_mb)
    spark.stop()
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main())
