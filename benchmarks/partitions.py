"""``python -m benchmarks.partitions``: one checkpoint of 16 subtasks into a table with 100 partitions.

Tells the files that the checkpoint adds and the memory that a writer needs, for each way in which rows reach writers.
Writers run in processes of their own, as Spark's workers do; Spark itself is not needed.
"""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import penstock as pen
from benchmarks.verdict import Verdicts
from penstock.inflight.lanes import spread_lanes
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.keygroups import DEFAULT_MAX_PARALLELISM
from penstock.sinks.base import CommitPermit, WriterContext
from penstock.sinks.paimon.files import BUFFER_BYTES
from penstock.sinks.paimon.read import listed_files, read_table

PARTITIONS, SUBTASKS = 100, 16
ROWS = 500_000
BATCH_ROWS = 65_536
WIDE_BYTES = 800 << 20
"""What one writer gets in the run that measures memory: six times what it may buffer."""

SCHEMA = pa.schema([("day", pa.string()), ("user", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True)
class Case:
    """A kind of table, and how many files a checkpoint may add to it."""

    name: str
    files_max: int
    arguments: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("append, as rows come", PARTITIONS * SUBTASKS),
    Case("append, routed by partition", PARTITIONS, {"options": {"partition.sink-strategy": "hash"}}),
    Case("primary key, 1 bucket", PARTITIONS, {"primary_key": ["day", "user"], "buckets": 1}),
    Case("primary key, 4 buckets", PARTITIONS * 4, {"primary_key": ["day", "user"], "buckets": 4}),
)


def rows(seed: int, count: int, word_bytes: int = 20) -> pa.RecordBatch:
    dice = np.random.default_rng(seed)
    days = pa.DictionaryArray.from_arrays(
        pa.array(dice.integers(0, PARTITIONS, count, dtype=np.int32)),
        pa.array([f"day {number:03}" for number in range(PARTITIONS)]),
    )
    words = pa.array([str(number) * (word_bytes // 2) for number in range(10, 100)]).take(
        pa.array(dice.integers(0, 90, count))
    )
    return pa.record_batch([days.cast(pa.string()), pa.array(dice.integers(0, 1 << 40, count)), words], schema=SCHEMA)


def of_subtask(sink: pen.Paimon, batch: pa.RecordBatch, subtask: int) -> pa.RecordBatch:
    """The rows that the exchange, or else the order of rows, gives to one subtask."""
    routing = sink.routing(SCHEMA)
    if routing is None:
        return batch.slice(batch.num_rows * subtask // SUBTASKS, batch.num_rows // SUBTASKS)
    lanes = spread_lanes(DEFAULT_MAX_PARALLELISM)[routing.lanes(batch) % DEFAULT_MAX_PARALLELISM]
    return batch.filter(pa.array(lanes * SUBTASKS // DEFAULT_MAX_PARALLELISM == subtask))


def write_share(sink: pen.Paimon, subtask: int) -> tuple[list[Any], float, int]:
    """What one subtask hands over, the seconds it took, and the most memory that its process held."""
    shares = [of_subtask(sink, rows(seed, BATCH_ROWS), subtask) for seed in range(ROWS // BATCH_ROWS)]
    start = time.perf_counter()
    writer = sink.open_writer(_context(subtask), SCHEMA)
    for share in shares:
        writer.write(share)
    made = writer.prepare()
    return made, time.perf_counter() - start, _peak_bytes()


def write_much(sink: pen.Paimon) -> tuple[int, int]:
    """Memory of a process before and after one writer got far more than it may buffer."""
    writer = sink.open_writer(_context(0), SCHEMA)
    writer.write(rows(0, 1000))
    before, seed, written = _peak_bytes(), 1, 0
    while written < WIDE_BYTES:
        batch = rows(seed, 4096, word_bytes=1000)
        writer.write(batch)
        seed, written = seed + 1, written + batch.nbytes
    writer.prepare()
    return before, _peak_bytes()


def _context(subtask: int) -> WriterContext:
    return WriterContext(CheckpointId(1), Generation(1), subtask, SUBTASKS, str(subtask))


def _peak_bytes() -> int:
    """The most that this process held; `getrusage` would count its parent's memory, too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def run(verdicts: Verdicts) -> None:
    spawned = multiprocessing.get_context("spawn")
    for case in CASES:
        with tempfile.TemporaryDirectory() as lake, ProcessPoolExecutor(2, mp_context=spawned) as workers:
            sink = pen.Paimon(lake, "db.t", partition_by=["day"], **case.arguments)
            sink.check(SCHEMA)
            shares = list(workers.map(write_share, [sink] * SUBTASKS, range(SUBTASKS)))
            sink.open_committer("me").commit(
                CommitPermit(Generation(1), CheckpointId(1)),
                [made for share, _, _ in shares for made in share],
                watermark=None,
                properties={},
                still_leader=lambda: True,
            )
            files = len(listed_files(sink.warehouse, sink.table))
            verdicts.at_most(f"{case.name}: files", files, case.files_max)
            slowest, largest = max(took for _, took, _ in shares), max(peak for _, _, peak in shares)
            verdicts.note(f"     slowest writer {slowest:.2f} s, largest process {largest >> 20} MiB")
            if not case.arguments.get("primary_key"):
                assert read_table(sink.warehouse, sink.table).num_rows == sum(
                    made.rows for share, _, _ in shares for made in share
                )
    for case in (CASES[0], CASES[2]):
        with tempfile.TemporaryDirectory() as lake, ProcessPoolExecutor(1, mp_context=spawned) as workers:
            sink = pen.Paimon(lake, "db.t", partition_by=["day"], **case.arguments)
            sink.check(SCHEMA)
            before, after = workers.submit(write_much, sink).result()
            what = f"{case.name}: memory for {WIDE_BYTES >> 20} MiB through one writer"
            verdicts.at_most(what, (after - before) >> 20, 3 * BUFFER_BYTES >> 20, " MiB")


if __name__ == "__main__":
    outcome = Verdicts()
    run(outcome)
    sys.exit(0 if outcome.ok else 1)
