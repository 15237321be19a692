"""A checkpoint on an object store with 20 ms of latency: what an epoch costs with copies of the state on the local
disk, with none of them, and in a local folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from penstock.events import EpochPublished, Event
from penstock.spark.quirks.logfiles import QUICK, SETTING
from penstock.store import open_store
from penstock.store.object import ObjectStore

LATENCY_S = 0.02
KEYS = 200_000
ROWS = 20_000
EPOCHS = 10
WARMUP = 3
BUCKET = "penstock-bench"
ORDER = ("local", "cached", "wiped", "wiped", "cached", "local")
"""There and back: a session gets faster for minutes, and whoever always comes later would look better."""


@dataclass(slots=True)
class _Measured:
    """Of one kind of checkpoint, over both of its runs: seconds, and requests by their kind."""

    epoch_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        epoch, step = percentile(self.epoch_s, 0.5), percentile(self.step_s, 0.5)
        each = {kind: count / len(self.step_s) for kind, count in sorted(self.requests.items())}
        asked = "".join(f", {kind} {count:.1f}" for kind, count in each.items())
        return (
            f"epoch p50 {epoch:.3f} s, checkpoint to checkpoint {step:.3f} s; {sum(each.values()):.1f} requests{asked}"
        )


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    measured = {kind: _Measured() for kind in ORDER}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as place:
        folder = Path(place)
        _write_input(folder / "in")
        with _served(spark, folder) as server:
            _run(spark, folder, "local", 0, server, _Measured())
            for number, kind in enumerate(ORDER, 1):
                _run(spark, folder, kind, number, server, measured[kind])
    verdicts.note(f"{KEYS:,} keys, {ROWS:,} rows in an epoch, {1000 * LATENCY_S:g} ms per request")
    for kind, figures in measured.items():
        verdicts.note(f"{kind}: {figures}")
    local, cached = (percentile(measured[kind].epoch_s, 0.5) for kind in ("local", "cached"))
    verdicts.at_most("object store, epoch, more than in a local folder", cached - local, 6 * LATENCY_S, " s")
    reads = measured["cached"].requests["GET"] / len(measured["cached"].step_s)
    verdicts.at_most("object store, files read per epoch", reads, 1.5)


def _run(spark: SparkSession, folder: Path, kind: str, number: int, server: BucketProcess, figures: _Measured) -> None:
    """One query over the whole input; its first epochs do not count."""
    published_s: list[float] = []

    def listen(event: Event) -> None:
        if not isinstance(event, EpochPublished) or not event.rows_in:
            return
        published_s.append(time.perf_counter())
        if len(published_s) == WARMUP + 1:
            server.counts()
        if len(published_s) > WARMUP + 1:
            figures.epoch_s.append(event.duration_s)
        if kind == "wiped":
            _wipe(folder)

    checkpoint = str(folder / f"local-{number}") if kind == "local" else f"s3://{BUCKET}/checkpoints/{kind}-{number}"
    output = ours.aggregate(pen.read(stream_files(spark, folder / "in"), name="input"))
    query = output.start(checkpoint, parallelism=2, epoch=None, trigger="available_now", on_event=listen)
    query.await_termination()
    store = open_store(checkpoint)
    if isinstance(store, ObjectStore):
        store.flush_logs()
    figures.requests += server.counts()
    figures.step_s += [later - earlier for earlier, later in pairwise(published_s[WARMUP:])]


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
    target = folder / "served" / BUCKET / "checkpoints"
    target.mkdir(parents=True)
    settings[f"fs.viewfs.mounttable.{BUCKET}.link./checkpoints"] = target.as_uri()
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
