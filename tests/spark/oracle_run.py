"""Every operator against plain Spark SQL, on Spark and into Paimon tables.

A run has three queries over one input: the first is taken its jobs away in the middle of an epoch, the second begins at
another parallelism, is rescaled while it runs, and stopped, the third runs to the end. Then tables are compared.

    python -m tests.spark.oracle_run [--runs N] [--seed N] [--only GROUP]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from penstock.engine.history import Listener
from penstock.errors import QueryEnded
from penstock.observe.events import EpochPublished, Event
from tests.spark.matrix_data import batches_of_files
from tests.spark.matrix_shapes import takes
from tests.spark.oracle import difference, sql_session
from tests.spark.oracle_cases import BEST, JOINED, STATEFUL, STATELESS, WINDOWED, Case
from tests.spark.oracle_data import DDL, DELAY_S, SCHEMA, SOURCES, make_views, random_input
from tests.support.spark_streams import TIMEOUT_S, paimon, rows_in, stream, take_jobs_away, write_files

GROUPS: dict[str, dict[str, Case]] = {
    "stateless": STATELESS, "windowed": WINDOWED, "stateful": STATEFUL, "joined": {**JOINED, **BEST},
}  # fmt: skip
ROW_COST_S = 0.002
EPOCH = "200 ms"
"""So short that the barrier fires in nearly every stage."""
LAST_EPOCH = "2 s"


class Run:
    """One group of operators, all in one query, over one input."""

    def __init__(self, spark: SparkSession, group: str, seed: int, folder: Path) -> None:
        self._spark, self._folder, self._cases = spark, folder, GROUPS[group]
        self._chance = random.Random(f"{group} {seed}")
        self._input = random_input(self._chance)
        self.rows = sum(len(self._input.rows(source)) for source in SOURCES)
        self.in_flight = 0
        """The most that was in flight at the end of an epoch."""
        self.joined = False
        """Whether Spark put files together, so that nothing could be compared."""

    def __call__(self) -> dict[str, str]:
        """What is different, by operator."""
        for source in SOURCES:
            tables = [pa.Table.from_pylist(batch[source], schema=SCHEMA) for batch in self._input.batches]
            write_files(self._folder / "in" / source, tables)
        take_jobs_away(self._spark, self._started(after=self._chance.randint(1, 3)))
        query = self._started(after=1)
        with suppress(QueryEnded):
            query.rescale(self._chance.randint(1, 4))
        query.stop()
        assert self._begin(epoch=LAST_EPOCH).await_termination(TIMEOUT_S), "the query hangs"
        self.joined = self._joined()
        if self.joined:
            return {}
        sql = sql_session(self._spark)
        make_views(sql, self._input)
        differences = {
            name: difference(sql, case, rows_in(self._folder, f"oracle.{name}")) for name, case in self._cases.items()
        }
        return {name: text for name, text in differences.items() if text}

    def _started(self, after: int) -> pen.Query:
        """A query that has published some epochs, or has ended."""
        reached = threading.Event()
        epochs = 0

        def listen(event: Event) -> None:
            nonlocal epochs
            if isinstance(event, EpochPublished) and event.kind != "takeover":
                epochs += 1
                self.in_flight = max(self.in_flight, event.rows_in_flight)
                if epochs >= after:
                    reached.set()

        query = self._begin(listen)
        while not reached.wait(0.02) and query.is_active:
            pass
        time.sleep(self._chance.random() * 0.2)  # a random moment
        return query

    def _begin(self, *listeners: Listener, epoch: str = EPOCH) -> pen.Query:
        sources = {source: self._read(source) for source in SOURCES}
        outputs = []
        for name, case in self._cases.items():
            result = case.build(sources)
            outputs.append(result.write(paimon(self._folder, f"oracle.{name}"), name=f"{name}_table"))
            outputs += [result.side(side).write(pen.Discard(), name=f"{name}-{side}") for side in case.sides]
        return pen.start(
            *outputs,
            checkpoint=self._folder / "checkpoint",
            parallelism=self._chance.randint(1, 4),
            epoch=epoch,
            trigger="available_now",
            on_event=listeners,
            epoch_retries=0,
        )

    def _read(self, source: str) -> pen.Stream:
        frame = stream(self._spark, self._folder / "in" / source, DDL)
        rows = pen.read(frame, name=source, event_time="ts", watermark=f"{DELAY_S} s")
        # Rows of `tardy` are judged by the watermark that they reach the operator with, and rules of `b` must be there
        # before the rows they are for: no stage may hold these up.
        return rows.map_batches(takes(ROW_COST_S), name=f"slow_{source}") if source == "a" else rows

    def _joined(self) -> bool:
        """Whether Spark put two files into one micro-batch, as it may after a failure: the order of their rows, and
        what is late, is its affair then."""
        batches = batches_of_files(self._folder / "checkpoint" / "source")
        return len(batches) != len({(source, batch) for (source, _), batch in batches.items()})


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each group")
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--only", choices=GROUPS)
    options = parser.parse_args(arguments)
    spark = pen.session("local[2,4]", "penstock-oracle", spark_ui_enabled="false", spark_sql_shuffle_partitions="2")
    verdicts: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.runs):
        for group in GROUPS if options.only is None else (options.only,):
            verdicts[run_one(spark, group, seed)] += 1
    print(f"{verdicts['ok']} passed, {verdicts['FAIL']} failed, {verdicts['skip']} skipped")
    return 1 if verdicts["FAIL"] else 0


def run_one(spark: SparkSession, group: str, seed: int) -> str:
    with tempfile.TemporaryDirectory(prefix="penstock-oracle-") as folder:
        run = Run(spark, group, seed, Path(folder))
        different = run()
    verdict = "FAIL" if different else "skip" if run.joined else "ok"
    facts = f"{len(GROUPS[group])} operators, {run.rows} rows, at most {run.in_flight} in flight at a checkpoint"
    print(f"{verdict:4} {group} (seed {seed}): {facts}", flush=True)
    for name, text in different.items():
        print(f"  {name}:\n{text}", flush=True)
    return verdict


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
