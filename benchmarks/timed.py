"""Input with event time, and sources that Penstock and its peers read alike."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from benchmarks.data import ROW_GROUPS_PER_FILE
from benchmarks.measure import Measured
from benchmarks.ours import summary
from penstock.api.outputs import Output
from penstock.events import EpochPublished, Event

SPARK_SCHEMA = "key long, ts timestamp, amount long"
SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
FILE_SPAN_S = 60
START_S = 1_767_225_600


def generate(folder: Path, *, files: int, rows_per_file: int, keys: int, seed: int = 7) -> Path:
    """Each file holds a minute of events in no order, the next file the next minute."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    first_s = time.time() - files
    for number in range(files):
        within = random.integers(0, FILE_SPAN_S * 1_000_000, rows_per_file)
        table = pa.table(
            {
                "key": random.integers(0, keys, rows_per_file),
                "ts": pa.array((START_S + number * FILE_SPAN_S) * 1_000_000 + within).cast(pa.timestamp("us", "UTC")),
                "amount": random.integers(0, 1_000, rows_per_file),
            },
            schema=SCHEMA,
        )
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(table, path, row_group_size=-(-rows_per_file // ROW_GROUPS_PER_FILE))
        os.utime(path, (first_s + number, first_s + number))
    return folder


def stream_files(spark: SparkSession, folder: Path) -> DataFrame:
    """One file per micro-batch."""
    return spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def run_ours(build: Callable[[], Output], *, name: str, warmup: int, **options: Any) -> Measured:
    """Runs a job until its input is used up."""
    epochs: list[EpochPublished] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            epochs.append(event)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as checkpoint:
        settings = {"trigger": "available_now", "on_event": listen, "epoch": None, **options}
        build().start(f"{checkpoint}/checkpoint", **settings).await_termination()
    return summary(name, epochs, warmup)
