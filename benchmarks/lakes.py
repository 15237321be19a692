"""2,000 checkpoints into a lake: the last commits take about as long as the first. Needs no Spark.

``make bench ARGS=lakes``
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import penstock as pen
from benchmarks.verdict import Verdicts
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import CommitPermit, WriterContext
from penstock.sinks.upkeep import Upkeep

CHECKPOINTS = 2000
SHOWN = 200
KEEP_EVERY = 100
"""Checkpoints between two looks of upkeep, as if one took 0.3 s."""
SCHEMA = pa.schema([("id", pa.int64())])


def run(spark: object, verdicts: Verdicts) -> None:
    del spark
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        for name, sink in sinks(Path(folder)).items():
            took = commit_times(sink)
            first, last = (statistics.median(part) * 1000 for part in (took[:SHOWN], took[-SHOWN:]))
            verdicts.note(f"{name}: {CHECKPOINTS} commits, p50 of the first {SHOWN} {first:.1f} ms, last {last:.1f} ms")
            verdicts.at_most(f"{name}: commit p50 of the last {SHOWN} against the first", last / first, 2.0, "×")


def sinks(folder: Path) -> dict[str, Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return {
        "Delta": pen.Delta(str(folder / "delta"), upkeep=Upkeep()),
        "Iceberg": pen.Iceberg(catalog, "bench.t", upkeep=Upkeep(snapshots=20, snapshots_for="1 s")),
    }


def commit_times(sink: Any) -> list[float]:
    """Seconds of each commit."""
    sink.check(SCHEMA)
    committer = sink.open_committer("bench")
    committer.fence(Generation(1))
    committer.commits(None, 1)
    keeper = sink.open_keeper("bench", lambda: ())
    assert keeper is not None
    took = []
    for number in range(1, CHECKPOINTS + 1):
        writer = sink.open_writer(WriterContext(CheckpointId(number), Generation(1), 0, 1, attempt=str(number)), SCHEMA)
        writer.write(pa.record_batch([pa.array([number])], schema=SCHEMA))
        committables = writer.prepare()
        start = time.perf_counter()
        committer.commit(
            CommitPermit(Generation(1), CheckpointId(number)),
            committables,
            watermark=None,
            properties={},
            still_leader=lambda: True,
        )
        took.append(time.perf_counter() - start)
        if number % KEEP_EVERY == 0:
            keeper.step()
    return took
