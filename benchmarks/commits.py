"""A committer that takes 10 s per commit does not slow epochs down until `max_uncommitted`, and then catches up."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.verdict import Verdicts
from penstock.events import Committed, EpochPublished, Event
from penstock.sinks.paimon.commit import PaimonCommitter

COMMIT_S = 10.0
FILES = 60
MAX_UNCOMMITTED = 48
ROWS_PER_FILE = 20_000
WARM_UP = 8
TRIES = 3


class SlowCommitter(PaimonCommitter):
    """Commits as usual, after a long time."""

    def commit(self, *args: Any, **options: Any) -> Any:
        time.sleep(COMMIT_S)
        return super().commit(*args, **options)


class SlowPaimon(pen.Paimon):
    """A table whose commits take a long time."""

    def open_committer(self, commit_user: str) -> SlowCommitter:
        return SlowCommitter(self.warehouse, self.table, commit_user)


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds from epoch to epoch while nothing waits for commits, and what became of the commits."""

    gap_s_p50: float
    commits: int
    rows: int


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        _generate(Path(folder) / "in")
        # In turn, so that a machine that slows down does so for both.
        runs = [
            (_run(spark, folder, f"fast{n}", pen.Paimon), _run(spark, folder, f"slow{n}", SlowPaimon))
            for n in range(TRIES)
        ]
    fast = statistics.median(fast.gap_s_p50 for fast, _ in runs)
    slow = statistics.median(slow.gap_s_p50 for _, slow in runs)
    verdicts.note(
        f"epoch to epoch p50 {fast * 1000:.0f} ms, with a committer of {COMMIT_S:.0f} s {slow * 1000:.0f} ms; "
        f"{runs[0][0].commits} and {runs[0][1].commits} commits for {FILES} micro-batches"
    )
    verdicts.at_most("epoch cadence against that with fast commits", slow / fast, 1.05, "×")
    verdicts.at_most("commits of the slow committer", max(slow.commits for _, slow in runs), 6, "")
    rows = {run.rows for pair in runs for run in pair}
    assert rows == {FILES * ROWS_PER_FILE}, f"rows in the tables: {rows}"


def _run(spark: SparkSession, folder: str, name: str, sink: type[pen.Paimon]) -> Run:
    events: list[tuple[float, Event]] = []
    rows = spark.readStream.schema("key long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/in")
    query = (
        pen.read(rows, name="input")
        .filter(_all, name="all")
        .write(sink(f"{folder}/lake", f"bench.{name}"))
        .start(
            f"{folder}/checkpoint-{name}",
            epoch="1 s",
            parallelism=2,
            max_uncommitted=MAX_UNCOMMITTED,
            trigger="available_now",
            on_event=lambda event: events.append((time.monotonic(), event)),
        )
    )
    query.await_termination()
    published = [at for at, event in events if isinstance(event, EpochPublished) and event.kind == "ingest"]
    commits = [event for _, event in events if isinstance(event, Committed)]
    # Only as many epochs as may wait for their commit: behind them the bound applies, as it should.
    free = published[WARM_UP:MAX_UNCOMMITTED]
    gaps = [after - before for before, after in itertools.pairwise(free)]
    return Run(statistics.median(gaps), len(commits), sum(commit.rows for commit in commits))


def _all(batch: pa.RecordBatch) -> list[bool]:
    return [True] * batch.num_rows


def _generate(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        keys = pa.array(np.arange(ROWS_PER_FILE) + number * ROWS_PER_FILE)
        pq.write_table(pa.table({"key": keys}), folder / f"{number:08d}.parquet")
