"""A checkpoint costs the same with 10 MB, 100 MB and 1 GB in flight, and a worker needs no more memory."""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.peers import spend
from benchmarks.verdict import Verdicts
from benchmarks.workers import PeakMemory
from penstock.events import EpochPublished, Event

SIZES_MB = (10, 100, 1000)
PAYLOAD_BYTES = 1000
ROWS_PER_FILE = 50_000
DRAIN_EPOCHS = 12


class Slow(pen.KeyedProcess):
    """1 ms per row, so that nothing worth mentioning drains while we look."""

    output = "key long, size long"
    n = pen.value_state("long")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        spend(len(rows), 0.001)
        state.n = (state.n or 0) + len(rows)
        out.emit(key=key["key"], size=len(rows[0]["payload"]))


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    written, publish_s, memory = {}, {}, {}
    for size in SIZES_MB:
        with PeakMemory() as peak:
            drains = _drain_epochs(spark, size)
        written[size] = max(event.bytes_written.segments + event.bytes_written.manifest for event in drains)
        publish_s[size] = statistics.median(event.publish_s for event in drains)
        memory[size] = peak.peak_bytes
        verdicts.note(
            f"{drains[0].bytes_in_flight / 1e6:,.0f} MB in flight in {drains[0].segments_in_flight} segments: "
            f"a checkpoint writes {written[size]:,} bytes (state and table aside), "
            f"publish p50 {publish_s[size] * 1000:.1f} ms, "
            f"a worker's peak {memory[size] / 1e6:,.0f} MB"
        )
    smallest, largest = SIZES_MB[0], SIZES_MB[-1]
    verdicts.at_most("difference in bytes written", (max(written.values()) - min(written.values())) / 1e6, 1, " MB")
    verdicts.at_most("slowest to fastest publish", max(publish_s.values()) / min(publish_s.values()), 2, "×")
    verdicts.at_most("memory beyond the smallest", (memory[largest] - memory[smallest]) / 1e6, 100, " MB")


def _drain_epochs(spark: SparkSession, size_mb: int) -> list[EpochPublished]:
    epochs: list[EpochPublished] = []
    enough = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            epochs.append(event)
            if sum(seen.kind == "drain" for seen in epochs) >= DRAIN_EPOCHS:
                enough.set()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        generate(Path(folder) / "in", size_mb)
        rows = spark.readStream.schema("key long, payload binary").parquet(f"{folder}/in")
        query = (
            pen.read(rows, name="input")
            .key_by("key")
            .process(Slow, name="slow")
            .write(pen.Discard())
            .start(f"{folder}/checkpoint", epoch="500 ms", parallelism=4, max_in_flight="10 GB", on_event=listen)
        )
        while not enough.wait(1.0) and query.is_active:
            pass
        query.stop()
    return [event for event in epochs if event.kind == "drain"][2:]


def generate(folder: Path, size_mb: int) -> None:
    """Input files. Random payloads: what is in flight is as large on disk as it looks."""
    folder.mkdir(parents=True)
    rows = size_mb * 1_000_000 // PAYLOAD_BYTES
    for start in range(0, rows, ROWS_PER_FILE):
        count = min(ROWS_PER_FILE, rows - start)
        payload = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(PAYLOAD_BYTES), count, [None, pa.py_buffer(os.urandom(count * PAYLOAD_BYTES))]
        )
        keys = pa.array(np.arange(start, start + count) % 1000)
        table = pa.table({"key": keys, "payload": payload.cast(pa.binary())})
        pq.write_table(table, folder / f"{start:08d}.parquet", compression="none", row_group_size=10_000)
