"""2,000 checkpoints into a lake: the last commits take about as long as the first. And what a merge by key costs.

Needs no Spark. ``make bench ARGS=lakes``, or ``python -m benchmarks.lakes Iceberg`` for the commits into one lake.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
KEYED = pa.schema([("day", pa.int32()), ("id", pa.int64()), ("text", pa.string())])
KEYS, CHANGED, DAYS, MERGES = 1_000_000, 1000, 10, 5


def run(spark: object, verdicts: Verdicts) -> None:
    del spark
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        many_commits(Path(folder), ("Delta", "Iceberg"), verdicts)
        for name, sink in keyed_sinks(Path(folder)).items():
            for what, median in merge_times(sink).items():
                verdicts.note(f"{name}: {CHANGED:,} changed keys {what} of {KEYS:,}: commit p50 {median * 1000:.0f} ms")


def many_commits(folder: Path, names: Sequence[str], verdicts: Verdicts) -> None:
    for name, sink in sinks(folder).items():
        if name not in names:
            continue
        took = commit_times(sink)
        for what, times in (("time", [wall for wall, _ in took]), ("CPU time", [cpu for _, cpu in took])):
            first, last = (statistics.median(part) * 1000 for part in (times[:SHOWN], times[-SHOWN:]))
            verdicts.note(
                f"{name}: {CHECKPOINTS} commits, p50 of the {what} of the first {SHOWN} {first:.1f} ms,"
                f" of the last {last:.1f} ms"
            )
            verdicts.at_most(f"{name}: p50 of the {what}, the last {SHOWN} against the first", last / first, 2.0, "×")


def sinks(folder: Path) -> dict[str, Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return {
        "Delta": pen.Delta(str(folder / "delta"), upkeep=Upkeep()),
        "Iceberg": pen.Iceberg(catalog, "bench.t", upkeep=Upkeep()),
    }


def keyed_sinks(folder: Path) -> dict[str, Any]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/keyed.db", "warehouse": f"file://{folder}/keyed"}
    key: dict[str, Any] = {"primary_key": ["day", "id"], "partition_by": ["day"]}
    return {
        "Delta": pen.Delta(str(folder / "delta-keyed"), **key),
        "Iceberg": pen.Iceberg(catalog, "bench.keyed", **key),
    }


def merge_times(sink: Any) -> dict[str, float]:
    """The median time of commits with changes all over the table, and of one day."""
    sink.check(KEYED)
    committer = sink.open_committer("bench")
    committer.fence(Generation(1))
    committer.commits(None, 1)
    ids = np.arange(KEYS)
    choose = np.random.default_rng(1)
    _timed(sink, committer, 1, ids)
    everywhere = [_timed(sink, committer, 2 + n, choose.choice(ids, CHANGED)) for n in range(MERGES)]
    one_day = [
        _timed(sink, committer, 2 + MERGES + n, choose.choice(ids[ids % DAYS == 0], CHANGED)) for n in range(MERGES)
    ]
    return {
        "all over ten partitions": statistics.median(everywhere),
        "in one of ten partitions": statistics.median(one_day),
    }


def _timed(sink: Any, committer: Any, checkpoint: int, ids: Any) -> float:
    context = WriterContext(CheckpointId(checkpoint), Generation(1), 0, 1, attempt=str(checkpoint))
    writer = sink.open_writer(context, KEYED)
    day, text = pa.array(ids % DAYS, pa.int32()), pa.array([f"row {i} of {checkpoint}" for i in ids])
    writer.write(pa.record_batch([day, pa.array(ids), text], schema=KEYED))
    committables = writer.prepare()
    start = time.perf_counter()
    committer.commit(
        CommitPermit(Generation(1), CheckpointId(checkpoint)),
        committables,
        watermark=None,
        properties={},
        still_leader=lambda: True,
    )
    return time.perf_counter() - start


def commit_times(sink: Any) -> list[tuple[float, float]]:
    """Seconds of each commit, and of the CPU in it."""
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
        start, cpu = time.perf_counter(), time.process_time()
        committer.commit(
            CommitPermit(Generation(1), CheckpointId(number)),
            committables,
            watermark=None,
            properties={},
            still_leader=lambda: True,
        )
        took.append((time.perf_counter() - start, time.process_time() - cpu))
        if number % KEEP_EVERY == 0:
            keeper.step()
    return took


def main(arguments: list[str]) -> int:
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        many_commits(Path(folder), arguments or ["Delta", "Iceberg"], verdicts)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
