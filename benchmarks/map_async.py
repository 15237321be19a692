"""Calls of 50 ms, 200 at once in each subtask: how much of the ideal rate is reached, and are checkpoints on time."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks import data
from benchmarks.measure import stream_files
from benchmarks.verdict import Verdicts, percentile
from penstock.events import EpochPublished, Event

LATENCY_S = 0.05
CONCURRENCY = 200
SUBTASKS = 2
EPOCHS = 30
WARMUP = 5
IDEAL_ROWS_PER_S = SUBTASKS * CONCURRENCY / LATENCY_S


async def ask(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(LATENCY_S)
    return row


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    for ordered in (True, False):
        epochs = _epochs(spark, ordered=ordered)
        at = [datetime.fromisoformat(event.at) for event in epochs]
        gaps_s = [(after - before).total_seconds() for before, after in itertools.pairwise(at)]
        rows_per_s = sum(event.rows_processed for event in epochs[1:]) / sum(gaps_s)
        what = "ordered" if ordered else "unordered"
        verdicts.note(f"{what}: {rows_per_s:,.0f} rows/s of {IDEAL_ROWS_PER_S:,.0f}, {len(gaps_s)} checkpoints")
        verdicts.at_least(f"{what}, share of the ideal rate", rows_per_s / IDEAL_ROWS_PER_S, 0.8)
        verdicts.at_most(f"{what}, time between checkpoints, p99", percentile(gaps_s, 0.99), 1.3, " s")


def _epochs(spark: SparkSession, *, ordered: bool) -> list[EpochPublished]:
    """Epochs that drain a backlog, so that input is never short."""
    epochs: list[EpochPublished] = []
    enough = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind == "drain":
            epochs.append(event)
            if len(epochs) > EPOCHS + WARMUP:
                enough.set()

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rows = int(IDEAL_ROWS_PER_S) * (EPOCHS + WARMUP + 10)
        source = data.generate(Path(folder) / "in", files=1, rows_per_file=rows, keys=1000)
        query = (
            pen.read(stream_files(spark, source), name="input")
            .map_async(ask, concurrency=CONCURRENCY, ordered=ordered, name="ask")
            .write(pen.Discard())
            .start(f"{folder}/checkpoint", epoch="1 s", parallelism=SUBTASKS, max_in_flight="10 GB", on_event=listen)
        )
        while not enough.wait(1.0) and query.is_active:
            pass
        query.stop()
    return epochs[WARMUP:]
