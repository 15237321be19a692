"""What an epoch costs when there is almost nothing to do, and with 10,000 rows."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks import data, ours
from benchmarks.peers import spend
from benchmarks.verdict import Verdicts
from penstock.api.outputs import Output
from penstock.api.stream import Stream

ROW_S = 0.005
SLOTS = 2


class OneRow(pen.KeyedProcess):
    """5 ms per row: what is asked for is less than an epoch needs besides processing."""

    output = "key long"

    def process(self, key, rows, state, out):  # type: ignore[no-untyped-def]
        spend(len(rows), ROW_S)


def run(spark: SparkSession, verdicts: Verdicts) -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        tiny = data.generate(Path(folder) / "tiny", files=1, rows_per_file=4000, keys=1000)
        _, epochs = ours.run(
            spark, tiny, _one_row, name="drain", warmup=0, epoch="10 ms", parallelism=4, max_uncommitted=1000
        )
        drains = [e for e in epochs if e.kind == "drain" and e.rows_in_flight > 0][20:]
        besides_s = [e.duration_s - e.rows_processed * ROW_S / SLOTS for e in drains]
        verdicts.note(
            f"{len(drains)} drain epochs of 4 subtasks; 10 ms are asked for, they grow to p50 "
            f"{statistics.median(e.duration_s for e in drains) * 1000:.0f} ms so that most of it is processing"
        )
        verdicts.at_most("drain epoch besides processing, p50", statistics.median(besides_s) * 1000, 110, " ms")

        small = data.generate(Path(folder) / "small", files=100, rows_per_file=10_000, keys=5000)

        def into_table(stream: Stream) -> Output:
            totals = stream.key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), name="totals")
            return totals.write(pen.Paimon(f"{folder}/warehouse", "bench.totals"))

        _, epochs = ours.run(spark, small, into_table, name="10k rows", epoch="1 s", parallelism=4)
        ingests = [e.duration_s for e in epochs if e.kind == "ingest"]
        first, ingests = ingests[10:40], ingests[40:]
        verdicts.note(
            f"{len(ingests)} epochs of 10,000 rows into a Paimon table, once the JVM is warm;"
            f" p50 of the {len(first)} before: {statistics.median(first) * 1000:.0f} ms"
        )
        verdicts.at_most("epoch with 10,000 rows, p50", statistics.median(ingests) * 1000, 300, " ms")


def _one_row(stream: Stream) -> Output:
    return stream.key_by("key").process(OneRow, name="one_row").write(pen.Discard())
