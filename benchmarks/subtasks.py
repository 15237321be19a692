"""512 subtasks on two slots: what an epoch costs beyond a job of Spark with as many tasks that do nothing.

Each subtask has a few keys of state and gets a few rows. The other job has the same shape: the same rows through the
same shuffle into `mapInArrow`, in the same stream, which reads them and answers with one row per task.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks import data, ours
from benchmarks.peers import ceiling_reported
from benchmarks.verdict import Verdicts

SUBTASKS = 512
ROWS, KEYS, EPOCHS, WARM = 4 * SUBTASKS, 4 * SUBTASKS, 10, 4
ROUNDS = 2
MARK = 1.2


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    mine_s: list[float] = []
    theirs_s: list[float] = []
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        rows = data.generate(Path(folder) / "rows", files=EPOCHS, rows_per_file=ROWS, keys=KEYS)
        for _ in range(ROUNDS):
            theirs = ceiling_reported(spark, rows, partitions=SUBTASKS, warmup=WARM)
            theirs_s += theirs.batch_s
            _, epochs = ours.run(
                spark,
                rows,
                ours.aggregate,
                name="many subtasks",
                epoch=None,
                parallelism=SUBTASKS,
                max_parallelism=SUBTASKS,
            )
            mine_s += [epoch.duration_s + epoch.waited_s for epoch in epochs if epoch.kind == "ingest"][WARM:]
    mine, empty = statistics.median(mine_s), statistics.median(theirs_s)
    verdicts.note(f"{SUBTASKS} subtasks: an epoch {mine:.2f} s, a micro-batch of tasks without state {empty:.2f} s")
    verdicts.at_most("an epoch, to the job of tasks that do nothing", mine / empty, MARK, "×")
