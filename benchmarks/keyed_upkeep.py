"""``python -m benchmarks.keyed_upkeep [commits]``: a table with a primary key that is read all the time.

100,000 keys in 4 buckets, 2,000 rows per commit, upkeep in its thread as in a query; commits come one after another,
far faster than a stream's. Every 100 commits the table is read as it is. A read is measured twice: by an engine that
merges runs natively (Polars over the listed files), and by pypaimon, which merges row by row in Python as soon as there
is more than one run. Both are compared with a read of the same table after all runs were merged.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import polars as pl
import pyarrow as pa

from benchmarks.upkeep import EDGE, USER, kept
from benchmarks.verdict import Verdicts
from penstock.observe.events import TableKept
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.sorted_runs import Tiering
from penstock.sinks.base import CommitPermit, WriterContext
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import runs
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import Upkeep

COMMITS = 2_000
KEYS = 100_000
ROWS = 2_000
EVERY = 100
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of one read, natively merged and by pypaimon, and the files it read."""

    native_s: float
    python_s: float
    files: int


def random_rows(dice: random.Random, commit: int) -> pa.RecordBatch:
    ids = dice.sample(range(KEYS), ROWS)
    return pa.record_batch([ids, [commit] * ROWS, [f"word {i}" for i in ids]], schema=SCHEMA)


def read_natively(sink: Paimon) -> int:
    """The rows of the table, merged by an engine that does not know pypaimon."""
    names = set(listed_files(sink.warehouse, sink.table))
    paths = [path for path in Path(sink.warehouse).rglob("*.parquet") if path.name in names]
    listed = pl.concat([pl.read_parquet(path, hive_partitioning=False) for path in paths])
    if len(names) == 4:
        return listed.height  # one run per bucket: nothing to merge
    return listed.sort("_SEQUENCE_NUMBER").unique("id", keep="last", maintain_order=False).height


def cpu_s(read: Callable[[], object], times: int = 3) -> float:
    def once() -> float:
        start = time.process_time()
        read()
        return time.process_time() - start

    return min(once() for _ in range(times))


def costs(sink: Paimon) -> Costs:
    native = cpu_s(lambda: read_natively(sink))
    python = cpu_s(lambda: read_table(sink.warehouse, sink.table), times=1)
    return Costs(native, python, len(listed_files(sink.warehouse, sink.table)))


def merge_all(sink: Paimon) -> None:
    """What a full compaction leaves."""
    keeper = PaimonKeeper(sink.warehouse, sink.table, Upkeep(expire=False))
    with patch.object(runs, "tiering_of", return_value=Tiering(trigger=1, excess_percent=0)):
        while keeper.step().more:
            pass


def run(folder: Path, commits: int, verdicts: Verdicts) -> None:
    dice = random.Random(1)
    sink = Paimon(str(folder), "bench.keyed", primary_key=["id"], buckets=4)
    sink.check(SCHEMA)
    committer = sink.open_committer(USER)
    times: list[float] = []
    seen: list[Costs] = []
    written = 0
    newest: dict[int, int] = {}
    with kept(sink, Upkeep(every=1.0, snapshots=50, snapshots_for=10.0)) as events:
        for commit in range(1, commits + 1):
            context = WriterContext(CheckpointId(commit), Generation(1), 0, 1, "0")
            writer = sink.open_writer(context, SCHEMA)
            batch = random_rows(dice, commit)
            writer.write(batch)
            committables = writer.prepare()
            newest |= dict.fromkeys(batch.column(0).to_pylist(), commit)
            written += sum(committable.bytes for committable in committables)
            permit = CommitPermit(Generation(1), CheckpointId(commit))
            start = time.perf_counter()
            committer.commit(permit, committables, watermark=None, properties={}, still_leader=lambda: True)
            times.append(time.perf_counter() - start)
            if commit % EVERY == 0:
                seen.append(costs(sink))
                print(f"  {commit} commits: {seen[-1]}", flush=True)
    found = read_table(sink.warehouse, sink.table)
    assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == newest, "a row is wrong"
    merge_all(sink)
    fresh = costs(sink)
    rewritten = sum(event.bytes_compacted for event in events if isinstance(event, TableKept))
    late = [cost for number, cost in enumerate(seen, 1) if number * EVERY * ROWS >= KEYS]
    native = max(cost.native_s for cost in late) / fresh.native_s
    python = max(cost.python_s for cost in late) / fresh.python_s
    first, last = statistics.median(times[:EDGE]), statistics.median(times[-EDGE:])
    print(
        f"  freshly merged: {fresh}\n"
        f"  dearest read: natively {native:.2f} times that, by pypaimon in Python {python:.1f} times\n"
        f"  commit p50 {first * 1000:.1f} ms at first, {last * 1000:.1f} ms at last\n"
        f"  written {written / 1e6:.0f} MB, rewritten {rewritten / 1e6:.0f} MB:"
        f" write amplification {(written + rewritten) / written:.1f}",
        flush=True,
    )
    verdicts.at_most("the dearest native read / that of a freshly merged table", native, 2.0)
    verdicts.at_most(f"p50 of the last {EDGE} commits / that of the first", last / first, 2.0)


def main(arguments: list[str]) -> int:
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        run(Path(folder), int(arguments[0]) if arguments else COMMITS, verdicts)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
