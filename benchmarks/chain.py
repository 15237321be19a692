"""What each further keyed stage adds to an epoch: chains of one to four of them, 2,000 rows in each micro-batch."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks import data, ours
from benchmarks.verdict import Verdicts
from penstock.api.outputs import Output
from penstock.api.stream import Stream

STAGES = (1, 2, 3, 4)
ROWS = 2_000
EPOCHS = 80
WARM = 30
"""Epochs that do not count: those in which the JVM compiles."""
ROUNDS = 2
MARK_MS = 25


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    """Chains take turns, so that a slower minute of the machine is everybody's."""
    took_s: dict[int, list[float]] = {stages: [] for stages in STAGES}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rows = data.generate(Path(folder) / "rows", files=EPOCHS, rows_per_file=ROWS, keys=10 * ROWS, amounts=10 * ROWS)
        for _ in range(ROUNDS):
            for stages in STAGES:
                _, epochs = ours.run(spark, rows, chain(stages), name=f"{stages} stages", epoch="1 s", parallelism=2)
                took_s[stages] += [epoch.duration_s for epoch in epochs if epoch.kind == "ingest"][WARM:]
    medians_ms = {stages: 1000 * statistics.median(took_s[stages]) for stages in STAGES}
    verdicts.note("epochs of 2,000 rows, p50: " + ", ".join(f"{n} stages {ms:.0f} ms" for n, ms in medians_ms.items()))
    further_ms = (medians_ms[STAGES[-1]] - medians_ms[STAGES[0]]) / (len(STAGES) - 1)
    verdicts.at_most("each keyed stage beyond the first, on average", further_ms, MARK_MS, " ms")


def chain(stages: int):  # type: ignore[no-untyped-def]
    """Sums per key whose results are summed up by another key, and so on: nearly each row goes through all stages."""

    def build(stream: Stream) -> Output:
        keys = ("key", "amount")
        rows: Stream = stream
        for number in range(stages):
            here, there = keys if number % 2 == 0 else keys[::-1]
            rows = rows.key_by(here).aggregate(name=f"stage{number}", **{there: pen.max(there)})
        return rows.write(pen.Discard())

    return build
