"""An epoch takes as long with 50 million keys of state as with one million, for the same input."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from benchmarks import data, ours
from benchmarks.verdict import Verdicts, percentile
from benchmarks.workers import PeakMemory
from penstock.events import EpochPublished

KEYS = (1_000_000, 50_000_000)
LOAD_ROWS = 1_000_000
ROWS = 100_000
EPOCHS = 60
WARMUP = 5
MEMORY_MAX_MB = 1_500


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    p50_s, p95_s = {}, {}
    for keys in KEYS:
        with PeakMemory() as peak:
            epochs = _epochs(spark, keys)
        took_s = [event.duration_s for event in epochs]
        p50_s[keys], p95_s[keys] = percentile(took_s, 0.5), percentile(took_s, 0.95)
        verdicts.note(
            f"{keys:,} keys, {ROWS:,} rows in an epoch: p50 {p50_s[keys]:.2f} s, p95 {p95_s[keys]:.2f} s, "
            f"longest {max(took_s):.2f} s; {max(event.bytes_written.state for event in epochs) / 1e6:,.0f} MB of state "
            f"written at most; a worker's peak {peak.peak_bytes / 1e6:,.0f} MB, mapped files included"
        )
        verdicts.at_most(f"{keys:,} keys, memory of a worker", peak.peak_bytes / 1e6, MEMORY_MAX_MB, " MB")
    few, many = KEYS
    verdicts.at_most("epoch, 50 M to 1 M keys, p50", p50_s[many] / p50_s[few], 2, "×")
    verdicts.at_most("epoch, 50 M to 1 M keys, p95", p95_s[many] / p95_s[few], 2, "×")


def _epochs(spark: SparkSession, keys: int) -> list[EpochPublished]:
    """The epochs after all keys have arrived, each with rows of keys drawn from all of them."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        source = Path(folder) / "in"
        source.mkdir()
        random = np.random.default_rng(7)
        loads = [np.arange(first, first + LOAD_ROWS) for first in range(0, keys, LOAD_ROWS)]
        for number, load in enumerate(loads):
            _write(source, number, load)
        for number in range(EPOCHS + WARMUP):
            _write(source, len(loads) + number, random.integers(0, keys, ROWS))
        _, epochs = ours.run(spark, source, ours.aggregate, name=f"{keys:,} keys", parallelism=2, epoch=None)
    measured = [event for event in epochs if event.rows_in]
    return measured[-EPOCHS:]


def _write(folder: Path, number: int, keys: np.ndarray) -> None:
    table = pa.table({"key": keys, "amount": np.ones(len(keys), np.int64)}, schema=data.SCHEMA)
    path = folder / f"part-{number:05d}.parquet"
    pq.write_table(table, path, row_group_size=-(-len(keys) // data.ROW_GROUPS_PER_FILE))
    os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their time
