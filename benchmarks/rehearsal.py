"""A rehearsal beside a running query: what it does to the time between the query's checkpoints.

The query has more to do than it can, as in `barrier`. The rehearsal is `penstock rehearse` in a Spark application of
its own on the same two cores, at low priority.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from benchmarks import ours
from benchmarks.verdict import Verdicts, percentile
from penstock.events import EpochPublished, Event

ROWS_PER_S = 4_000
WARMUP = 10
EPOCHS = 40
"""Before the rehearsal; and at least so many during it."""
REHEARSED = 20
COMMAND = "from penstock.cli.main import main; main()"


def rows(spark: SparkSession) -> DataFrame:
    return (
        spark.readStream.format("rate")
        .option("rowsPerSecond", ROWS_PER_S)
        .load()
        .selectExpr("pmod(value, 1000L) AS key", "value AS amount")
    )


def build(spark: SparkSession) -> pen.Output:
    """The changed program: one operator more."""
    changed = pen.read(rows(spark), name="rate").map_batches(lambda batch: batch, name="parse")
    return ours.slow(changed)


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    epochs: list[EpochPublished] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            epochs.append(event)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = ours.slow(pen.read(rows(spark), name="rate")).start(
            f"{folder}/checkpoint", epoch="1 s", parallelism=2, max_backlog=None, on_event=listen
        )
        _await(query, lambda: len(epochs) >= WARMUP + EPOCHS)
        alone = epochs[WARMUP:]
        job = f"{Path(__file__).resolve()}:build"
        options = f"--checkpoint {folder}/checkpoint --json --epochs {REHEARSED}".split()
        command = [sys.executable, "-c", COMMAND, "rehearse", job, *options, "--timeout", "3 min"]
        rehearsal = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        _await(query, lambda: rehearsal.poll() is not None)
        beside = epochs[WARMUP + len(alone) :]
        assert rehearsal.stdout is not None
        report = json.loads(rehearsal.stdout.read())
        query.stop()
        left = [path.name for path in Path(folder).iterdir() if "rehearsal" in path.name]
    before, during = _gaps_s(alone), _gaps_s(beside)
    for what, gaps_s in (("alone", before), ("beside the rehearsal", during)):
        p50_s, p99_s = percentile(gaps_s, 0.5), percentile(gaps_s, 0.99)
        verdicts.note(f"{what}: {len(gaps_s)} gaps between checkpoints, p50 {p50_s:.2f} s, p99 {p99_s:.2f} s")
    figures = report["figures"]
    verdicts.note(f"the rehearsal: {report['ended']}; median epoch {figures['median_s']:.2f} s; ok: {report['ok']}")
    ratio = percentile(during, 0.99) / percentile(before, 0.99)
    verdicts.at_most("time between checkpoints beside a rehearsal, p99, against alone", ratio, 1.2, "x")
    verdicts.at_most("folders that the rehearsal left", len(left), 0)


def _await(query: pen.Query, done: object) -> None:
    assert callable(done)
    while not done():
        assert query.is_active, query.exception()
        time.sleep(0.2)


def _gaps_s(epochs: list[EpochPublished]) -> list[float]:
    at = [datetime.fromisoformat(event.at) for event in epochs]
    return [(after - before).total_seconds() for before, after in itertools.pairwise(at)]
