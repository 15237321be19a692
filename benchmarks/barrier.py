"""Checkpoints on time: an operator of 1 ms per row, 70 % of rows on one key, 20 times more input than it can do."""

from __future__ import annotations

import itertools
import tempfile
import threading
from datetime import datetime
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks import data, ours, peers
from benchmarks.verdict import Verdicts, percentile
from penstock.events import EpochPublished, Event

EPOCHS = 60
WARMUP = 5
ROWS_PER_S = 40_000
"""Two cores do 2,000 rows of 1 ms per second at best."""


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    gaps_s, epochs = _ours(spark)
    processed = sum(event.rows_processed for event in epochs)
    verdicts.note(
        f"Penstock: {len(gaps_s)} checkpoints, {processed:,} rows processed, {epochs[-1].rows_in_flight:,} rows in "
        f"flight at the end"
    )
    delays_s = [event.barrier_delay_s for event in epochs]
    verdicts.note(
        f"the last subtask stopped behind the barrier by p50 {percentile(delays_s, 0.5) * 1000:.0f} ms, "
        f"p90 {percentile(delays_s, 0.9) * 1000:.0f} ms, p99 {percentile(delays_s, 0.99) * 1000:.0f} ms"
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        one = data.generate(Path(folder) / "in", files=1, rows_per_file=ROWS_PER_S // 2, keys=1000, hot_share=0.7)
        plain = peers.slow_operator(spark, one, partitions=4)
    verdicts.note(f"{plain}: one batch of half a second's input, and no checkpoint before its end")
    verdicts.at_most("time between checkpoints, p50", percentile(gaps_s, 0.5), 1.3, " s")
    verdicts.at_most("time between checkpoints, p99", percentile(gaps_s, 0.99), 1.8, " s")


def _ours(spark: SparkSession) -> tuple[list[float], list[EpochPublished]]:
    epochs: list[EpochPublished] = []
    enough = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            epochs.append(event)
            if len(epochs) > EPOCHS + WARMUP:
                enough.set()

    rows = (
        spark.readStream.format("rate")
        .option("rowsPerSecond", ROWS_PER_S)
        .load()
        .selectExpr("if(pmod(xxhash64(value), 10) < 7, 0L, pmod(value, 1000L)) AS key", "value AS amount")
    )
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        query = ours.slow(pen.read(rows, name="rate")).start(
            f"{folder}/checkpoint",
            epoch="1 s",
            parallelism=4,
            max_in_flight="10 GB",
            max_backlog=None,
            on_event=listen,
        )
        while not enough.wait(1.0) and query.is_active:
            pass
        query.stop()
    at = [datetime.fromisoformat(event.at) for event in epochs[WARMUP:]]
    return [(after - before).total_seconds() for before, after in itertools.pairwise(at)], epochs[WARMUP:]
