"""Input files that Penstock and its peers read alike: Parquet, one file per micro-batch, the same for the same seed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema([("key", pa.int64()), ("amount", pa.int64())])
SPARK_SCHEMA = "key long, amount long"
TIMED_SPARK_SCHEMA = f"{SPARK_SCHEMA}, ts timestamp"
FIRST_MICROS = 1_760_000_000_000_000
HOT_KEY = 0
# Spark splits a file between row groups: with several, all cores take part in reading one file.
ROW_GROUPS_PER_FILE = 8


def generate(
    folder: Path,
    *,
    files: int,
    rows_per_file: int,
    keys: int,
    amounts: int = 1_000,
    hot_share: float = 0.0,
    seed: int = 7,
    file_s: float | None = None,
) -> Path:
    """Writes `files` files into the new folder `folder`; `hot_share` of the rows carry `HOT_KEY`, the rest is uniform.
    Amounts are drawn from 0 to `amounts`.

    With `file_s` rows have an event time `ts`: each file spans so many seconds, in no order, after the file before.

    Modification times are one second apart, because Spark's file source takes the oldest file first.
    """
    folder.mkdir(parents=True)
    random = np.random.default_rng(seed)
    first_s = time.time() - files
    for number in range(files):
        path = folder / f"part-{number:05d}.parquet"
        table = _table(random, rows_per_file, keys, amounts, hot_share)
        if file_s is not None:
            micros = FIRST_MICROS + random.uniform(number * file_s, (number + 1) * file_s, rows_per_file) * 1e6
            table = table.append_column("ts", pa.array(micros.astype(np.int64)).view(pa.timestamp("us", "UTC")))
        pq.write_table(
            table,
            path,
            row_group_size=max(1, -(-rows_per_file // ROW_GROUPS_PER_FILE)),
        )
        os.utime(path, (first_s + number, first_s + number))
    return folder


def _table(random: np.random.Generator, rows: int, keys: int, amounts: int, hot_share: float) -> pa.Table:
    key: npt.NDArray[np.int64] = random.integers(0, keys, rows)
    if hot_share:
        key[random.random(rows) < hot_share] = HOT_KEY
    return pa.table({"key": key, "amount": random.integers(0, amounts, rows)}, schema=SCHEMA)


def spark_schema(folder: Path) -> str:
    """The columns of the files as Spark writes them."""
    timed = "ts" in pq.read_schema(next(folder.rglob("*.parquet"))).names
    return TIMED_SPARK_SCHEMA if timed else SPARK_SCHEMA


def count_rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
