"""What it costs to tell the figures of an epoch: running aggregates with and without them, in turn, by CPU time."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.verdict import Verdicts
from penstock.engine import history
from penstock.engine.figures import Figures
from penstock.testing.inline import InlineRun, stream_of

ROWS, BATCHES, KEYS, ROUNDS = 250_000, 8, 100_000, 7
SCHEMA = pa.schema({"key": pa.int64(), "amount": pa.int64()})


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    """Without Spark: its CPU time differs by more than one per cent from run to run."""
    del spark
    batches = [{"source": _rows(number)} for number in range(BATCHES)]
    _seconds(batches)
    told: list[float] = []
    untold: list[float] = []
    for _ in range(ROUNDS):
        told.append(_seconds(batches))
        with _untold():
            untold.append(_seconds(batches))
    ratio = statistics.median(one / other for one, other in zip(told, untold, strict=True))
    epoch_ms = statistics.median(untold) / BATCHES * 1000
    verdicts.note(
        f"{BATCHES} epochs of {ROWS:,} rows, {epoch_ms:.0f} ms of CPU each without figures, {ROUNDS} rounds in turn"
    )
    verdicts.at_most("CPU time with figures, divided by that without", ratio, 1.01)
    verdicts.note(f"least CPU time of each: {min(told) / min(untold):.4f}")


def _rows(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    return pa.table({"key": random.integers(0, KEYS, ROWS), "amount": random.integers(0, 1000, ROWS)}, schema=SCHEMA)


def _seconds(batches: list[dict[str, pa.Table]]) -> float:
    """Of this process, for one whole run."""
    totals = stream_of(SCHEMA).key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), name="totals")
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        inline = InlineRun(batches, time.monotonic)
        began = time.process_time()
        query = inline.start(totals.write(pen.Discard()), checkpoint=folder, parallelism=4, epoch=None)
        query.await_termination(300)
        return time.process_time() - began


@contextmanager
def _untold() -> Iterator[None]:
    """Epochs that are published without figures and without a line of history."""
    with (
        mock.patch.object(history, "epoch_figures", return_value=Figures({}, {}, 0, 0, 0)),
        mock.patch.object(history, "append_line"),
    ):
        yield
