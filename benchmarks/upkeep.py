"""``python -m benchmarks.upkeep [checkpoints]``: a table after thousands of commits, with and without upkeep.

No Spark: writers and committer are the sink's own, upkeep runs in its thread as in a query. Commits come one after
another, far faster than a stream's, so upkeep has to work for them all the time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from benchmarks.verdict import Verdicts
from penstock.engine.upkeep import TableUpkeep, Upkeeping
from penstock.events import Event
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, Committable, WriterContext
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.upkeep import Upkeep

CHECKPOINTS = 2_000
EDGE = 200
"""Commits at the beginning and at the end whose times are compared."""

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])
PARTED = pa.schema([("id", pa.int64()), ("part", pa.int64())])
USER = "penstock-benchmark-words"


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run of commits cost; times in seconds."""

    first_s: float
    last_s: float
    first_cpu_s: float
    last_cpu_s: float
    plan_s: float
    manifest_bytes: int
    manifest_files: int
    data_files: int
    snapshots: int


def write(sink: Paimon, schema: pa.Schema, checkpoint: int, subtask: int, batch: pa.RecordBatch) -> list[Committable]:
    context = WriterContext(CheckpointId(checkpoint), Generation(1), subtask, 1, str(subtask))
    writer = sink.open_writer(context, schema)
    writer.write(batch)
    return writer.prepare()


@contextmanager
def kept(sink: Paimon, policy: Upkeep | None) -> Iterator[list[Event]]:
    """Upkeep in its thread, as a query runs it."""
    events: list[Event] = []
    sink = Paimon(sink.warehouse, sink.table, upkeep=policy or False)
    keeper = sink.open_keeper(USER, tuple)
    upkeep = Upkeeping([] if keeper is None else [TableUpkeep("words", keeper, events.append)])
    upkeep.start()
    try:
        yield events
    finally:
        upkeep.finish()


def many_checkpoints(folder: Path, checkpoints: int, policy: Upkeep | None) -> Figures:
    """Commits one small file per checkpoint and times the commits alone."""
    sink = Paimon(str(folder), "bench.words")
    sink.check(SCHEMA)
    committer = sink.open_committer(USER)
    times, cpu_times = [], []
    with kept(sink, policy):
        for checkpoint in range(1, checkpoints + 1):
            rows = pa.record_batch([[checkpoint], [f"word {checkpoint}"]], schema=SCHEMA)
            committables = write(sink, SCHEMA, checkpoint, 0, rows)
            permit = CommitPermit(Generation(1), CheckpointId(checkpoint))
            start, cpu_start = time.perf_counter(), time.thread_time()
            committer.commit(permit, committables, watermark=None, properties={}, still_leader=lambda: True)
            times.append(time.perf_counter() - start)
            cpu_times.append(time.thread_time() - cpu_start)
    ids = read_table(sink.warehouse, sink.table)["id"].to_pylist()
    assert sorted(ids) == list(range(1, checkpoints + 1)), "a row is missing or doubled"
    root = folder / "bench.db" / "words"
    manifests = [path.stat().st_size for path in (root / "manifest").iterdir()]
    return Figures(
        first_s=statistics.median(times[:EDGE]),
        last_s=statistics.median(times[-EDGE:]),
        first_cpu_s=statistics.median(cpu_times[:EDGE]),
        last_cpu_s=statistics.median(cpu_times[-EDGE:]),
        plan_s=statistics.median(plan_s(sink) for _ in range(5)),
        manifest_bytes=sum(manifests),
        manifest_files=len(manifests),
        data_files=len(listed_files(sink.warehouse, sink.table)),
        snapshots=len(list((root / "snapshot").glob("snapshot-*"))),
    )


def plan_s(sink: Paimon) -> float:
    builder = open_table(sink.warehouse, sink.table).new_read_builder()
    start = time.perf_counter()
    builder.new_scan().plan()
    return time.perf_counter() - start


def many_partitions(folder: Path, partitions: int, subtasks: int) -> tuple[int, int, float]:
    """Data files of one checkpoint before and after upkeep, and how long one step took."""
    sink = Paimon(str(folder), "bench.parts", partition_by=["part"])
    sink.check(PARTED)
    committables: list[Committable] = []
    for subtask in range(subtasks):
        ids = range(subtask * partitions, (subtask + 1) * partitions)
        rows = pa.record_batch([pa.array(ids, pa.int64()), pa.array(range(partitions), pa.int64())], schema=PARTED)
        committables += write(sink, PARTED, 1, subtask, rows)
    permit = CommitPermit(Generation(1), CheckpointId(1))
    sink.open_committer(USER).commit(permit, committables, watermark=None, properties={}, still_leader=lambda: True)
    before = len(listed_files(sink.warehouse, sink.table))
    keeper = sink.open_keeper(USER, tuple)
    assert keeper is not None
    start = time.perf_counter()
    keeper.step()
    took = time.perf_counter() - start
    ids = read_table(sink.warehouse, sink.table)["id"].to_pylist()
    assert sorted(ids) == list(range(partitions * subtasks)), "a row is missing or doubled"
    return before, len(listed_files(sink.warehouse, sink.table)), took


def show(name: str, figures: Figures) -> None:
    print(
        f"  {name}: commit p50 {figures.first_s * 1000:.1f} ms at first, {figures.last_s * 1000:.1f} ms at last "
        f"(CPU {figures.first_cpu_s * 1000:.1f} and {figures.last_cpu_s * 1000:.1f} ms); "
        f"plan {figures.plan_s * 1000:.0f} ms; "
        f"{figures.manifest_bytes / 1e6:.1f} MB in {figures.manifest_files} manifests; "
        f"{figures.data_files} data files; {figures.snapshots} snapshots",
        flush=True,
    )


def run(checkpoints: int, verdicts: Verdicts, *, compare: bool) -> None:
    policy = Upkeep(every=0.5, snapshots=50, snapshots_for=10.0)
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        figures = many_checkpoints(Path(folder, "kept"), checkpoints, policy)
        show("with upkeep", figures)
        if compare:
            show("without", many_checkpoints(Path(folder, "left"), checkpoints, None))
        before, after, took = many_partitions(Path(folder, "parts"), 100, 16)
        print(f"  100 partitions x 16 writers: {before} files, after upkeep {after}; the step took {took:.1f} s")
    verdicts.at_most(f"p50 of the last {EDGE} commits / that of the first", figures.last_s / figures.first_s, 2.0)
    verdicts.at_most("planning a read", figures.plan_s * 1000, 200.0, " ms")
    verdicts.at_most("manifests", figures.manifest_bytes / 1e6, 10.0, " MB")


def main(arguments: list[str]) -> int:
    compare = "--compare" in arguments
    numbers = [int(argument) for argument in arguments if argument != "--compare"]
    verdicts = Verdicts()
    run(numbers[0] if numbers else CHECKPOINTS, verdicts, compare=compare)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
