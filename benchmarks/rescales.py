"""A live rescale with the plan of the stream replaced, and with Spark's streaming query restarted, in turn."""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
from pathlib import Path
from unittest import mock

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.recovery import EPOCH_S, Numbered, Timed, load, wrong
from benchmarks.verdict import Verdicts
from penstock.sinks.paimon.read import read_table

CHANGES = (8, 3, 8, 3, 8, 3)
PAIRS = 3
WARM_EPOCHS = 12
APART = 7
"""Epochs from one change to the next. The first three are around the change, the last three between changes."""
WAYS = ("replaced", "restarted")


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    """Of each three epochs the longest wait and the longest gap; the order of the two ways alternates."""
    _one(spark, "replaced")  # not counted: the JVM compiles
    figures: dict[tuple[str, str], list[float]] = {}
    rows_wrong = 0
    for pair in range(PAIRS):
        for way in WAYS if pair % 2 == 0 else reversed(WAYS):
            found, faults = _one(spark, way)
            rows_wrong += faults
            for what, values in found.items():
                figures.setdefault((way, what), []).extend(values)
                shown = " ".join(f"{value:.2f}" for value in values)
                verdicts.note(f"load {os.getloadavg()[0]:.0f}, {way}, {what}: {shown}")
    for (way, what), values in figures.items():
        verdicts.note(f"{way}, {what}: median {statistics.median(values):.2f}, longest {max(values):.2f}")
    verdicts.at_most("rows lost, doubled or out of order", rows_wrong, 0, "")


def _one(spark: SparkSession, way: str) -> tuple[dict[str, list[float]], int]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        if way == "replaced":
            return _measured(spark, folder)
        with mock.patch("penstock.spark.liveplan.change_partitions", return_value=False):
            return _measured(spark, folder)


def _measured(spark: SparkSession, folder: str) -> tuple[dict[str, list[float]], int]:
    total = load(Path(folder) / "in")
    rows = spark.readStream.schema("key long, number long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    numbered = pen.read(rows, name="input").key_by("key").process(Numbered, name="numbered")
    timed, changes = Timed(10**9), []
    query = numbered.write(pen.Paimon(f"{folder}/lake", "bench.rows")).start(
        f"{folder}/checkpoint", epoch=EPOCH_S, parallelism=2, trigger="available_now", on_event=timed
    )
    timed.wait(query, WARM_EPOCHS)
    for parallelism in CHANGES:
        changes.append(len(timed.epochs))
        query.rescale(parallelism)
        timed.wait(query, changes[-1] + APART)
    query.await_termination()
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(timed.epochs)]
    waits = [event.waited_s for _, event in timed.epochs]
    found = {
        "wait around a change, s": [max(waits[at : at + 3]) for at in changes],
        "wait between changes, s": [max(waits[at + 4 : at + 7]) for at in changes],
        # gaps[n] ends with epoch n + 1
        "gap around a change, epochs": [max(gaps[at - 1 : at + 2]) / EPOCH_S for at in changes],
        "gap between changes, epochs": [max(gaps[at + 3 : at + 6]) / EPOCH_S for at in changes],
    }
    return found, wrong(read_table(f"{folder}/lake", "bench.rows"), total)
