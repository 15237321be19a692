"""A checkpoint on an object store with 20 ms of latency: what an epoch costs with copies of the state on the local
disk, with none of them, and in a local folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks import data, ours
from benchmarks.bucket import BucketProcess
from benchmarks.measure import stream_files
from benchmarks.session import with_settings
from benchmarks.verdict import Verdicts, percentile
from penstock.observe.events import EpochPublished, Event
from penstock.spark.logfiles import QUICK, SETTING
from penstock.store import open_store
from penstock.store.object import ObjectStore

LATENCY_S = 0.02
KEYS = 200_000
ROWS = 20_000
EPOCHS = 16
WARMUP = 3
BUCKET = "penstock-bench"


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        folder = Path(place)
        _write_input(folder / "in")
        _epochs(spark, folder / "in", str(folder / "warm-up"), lambda: None)
        local = _epochs(spark, folder / "in", str(folder / "local"), lambda: None)
        with _served(spark, folder) as server:
            cached = _epochs(spark, folder / "in", f"s3://{BUCKET}/cached", lambda: None, server.counts)
            requests = server.counts()
            wiped = _epochs(spark, folder / "in", f"s3://{BUCKET}/wiped", lambda: _wipe(folder), server.counts)
            requests_wiped = server.counts()
    p50_s = [percentile(steps_s, 0.5) for steps_s in (local, cached, wiped)]
    verdicts.note(
        f"{KEYS:,} keys, {ROWS:,} rows in an epoch, {1000 * LATENCY_S:g} ms per request; p50 from checkpoint to "
        f"checkpoint: local folder {p50_s[0]:.2f} s, object store {p50_s[1]:.2f} s, with copies wiped {p50_s[2]:.2f} s"
    )
    verdicts.note(f"requests per epoch: {_per_epoch(requests)}; with the copies wiped: {_per_epoch(requests_wiped)}")
    verdicts.at_most("object store to local folder, more per epoch", p50_s[1] - p50_s[0], 10 * LATENCY_S, " s")
    verdicts.at_most("object store, files read per epoch", requests["GET"] / EPOCHS, 1.5)


def _per_epoch(requests: Counter[str]) -> str:
    each = {kind: count / EPOCHS for kind, count in sorted(requests.items())}
    return f"{sum(each.values()):.1f} (" + ", ".join(f"{kind} {count:.1f}" for kind, count in each.items()) + ")"


def _epochs(
    spark: SparkSession, source: Path, checkpoint: str, after: Callable[[], None], begin: Callable[[], object] = int
) -> list[float]:
    """Times from checkpoint to checkpoint; `begin` is called at the first of them, `after` behind each."""
    published_s: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.rows_in:
            published_s.append(time.perf_counter())
            if len(published_s) == WARMUP + 1:
                begin()
            after()

    output = ours.aggregate(pen.read(stream_files(spark, source), name="input"))
    query = output.start(checkpoint, parallelism=2, epoch=None, trigger="available_now", listeners=(listen,))
    query.await_termination()
    store = open_store(checkpoint)
    if isinstance(store, ObjectStore):
        store.flush_logs()
    return [later - earlier for earlier, later in pairwise(published_s[WARMUP:])]


def _wipe(folder: Path) -> None:
    for copies in (folder / "cache").glob("??"):
        shutil.rmtree(copies, ignore_errors=True)


@contextmanager
def _served(spark: SparkSession, folder: Path) -> Iterator[BucketProcess]:
    """Driver and workers find the server by their environment; Spark reaches its objects as files."""
    server = BucketProcess(folder / "served", LATENCY_S)
    found = {**server.environment, "PENSTOCK_CACHE": str(folder / "cache")}
    os.environ.update(found)
    spark.sparkContext.environment.update(found)
    settings = {
        "fs.s3a.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystemOverloadScheme",
        SETTING: QUICK,
    }
    for name in ("cached", "wiped"):
        target = folder / "served" / BUCKET / name
        target.mkdir(parents=True)
        settings[f"fs.viewfs.mounttable.{BUCKET}.link./{name}"] = target.as_uri()
    try:
        with with_settings(spark, settings):
            yield server
    finally:
        server.close()
        for name in found:
            del os.environ[name], spark.sparkContext.environment[name]


def _write_input(folder: Path) -> None:
    """The first file has all keys, the others rows of keys drawn from all of them."""
    folder.mkdir()
    random = np.random.default_rng(7)
    loads = [np.arange(KEYS), *(random.integers(0, KEYS, ROWS) for _ in range(WARMUP + EPOCHS))]
    for number, keys in enumerate(loads):
        table = pa.table({"key": keys, "amount": np.ones(len(keys), np.int64)}, schema=data.SCHEMA)
        path = folder / f"part-{number:05d}.parquet"
        pq.write_table(table, path)
        os.utime(path, (number + 1, number + 1))  # Spark takes files in the order of their time
