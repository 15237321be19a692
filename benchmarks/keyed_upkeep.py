"""``python -m benchmarks.keyed_upkeep [--merge-for reads] [--java]``: a table with a primary key, read all the time.

100,000 keys in 4 buckets, 2,000 rows per commit, four commits a second by a clock of its own: upkeep looks when it
would in such a query, between two commits, however busy the machine is. Now and then the table is read right
before a look, when there is most to merge. A read is measured by an engine that merges runs natively (Polars over the
listed files), by pypaimon, which merges row by row in Python as soon as there is more than one run, and with ``--java``
by Java Paimon. Each is compared with a read of the same table after all runs were merged, and with one that has a
single commit more: the cheapest read that has to merge at all.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa

from benchmarks.upkeep import EDGE, USER
from benchmarks.verdict import Verdicts
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, WriterContext
from penstock.sinks.paimon.read import listed_files, newest_snapshot, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.upkeep import MergeFor, Upkeep
from tests.interop.java import JavaPaimon

COMMITS = 2_000
KEYS = 100_000
ROWS = 2_000
EVERY = 250
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])


@dataclass(frozen=True, slots=True)
class Costs:
    """CPU seconds of one read, natively merged, by pypaimon and by Java, and the files it read."""

    native_s: float
    python_s: float
    java_s: float
    files: int


def random_rows(dice: random.Random, commit: int) -> pa.RecordBatch:
    ids = dice.sample(range(KEYS), ROWS)
    return pa.record_batch([ids, [commit] * ROWS, [f"word {i}" for i in ids]], schema=SCHEMA)


def read_natively(sink: Paimon, snapshot: int) -> int:
    """The rows of the table, merged by an engine that does not know pypaimon."""
    names = set(listed_files(sink.warehouse, sink.table, snapshot))
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


def costs(sink: Paimon, java: JavaPaimon | None) -> Costs:
    """Of the newest snapshot, whatever upkeep does meanwhile."""
    newest = newest_snapshot(sink.warehouse, sink.table) or 0
    native = cpu_s(lambda: read_natively(sink, newest))
    python = cpu_s(lambda: read_table(sink.warehouse, sink.table, newest), times=1)
    by_java = 0.0 if java is None else java.number(f"time {sink.table} scan.snapshot-id={newest}") / 1000
    return Costs(native, python, by_java, len(listed_files(sink.warehouse, sink.table, newest)))


def merge_all(sink: Paimon) -> None:
    """What a full compaction leaves."""
    keeper = PaimonKeeper(sink.warehouse, sink.table, Upkeep(expire=False, merge_for="reads"))
    while keeper.step().more:
        pass


class Writing:
    """Commits random rows, and remembers what the table has to show."""

    def __init__(self, sink: Paimon) -> None:
        self._sink, self._dice, self._committer = sink, random.Random(1), sink.open_committer(USER)
        self._number = self.bytes = 0
        self.newest: dict[int, int] = {}
        self.times: list[float] = []

    def commit(self) -> None:
        self._number += 1
        checkpoint = CheckpointId(self._number)
        writer = self._sink.open_writer(WriterContext(checkpoint, Generation(1), 0, 1, "0"), SCHEMA)
        batch = random_rows(self._dice, self._number)
        writer.write(batch)
        committables = writer.prepare()
        self.newest |= dict.fromkeys(batch.column(0).to_pylist(), self._number)
        self.bytes += sum(committable.bytes for committable in committables)
        permit = CommitPermit(Generation(1), checkpoint)
        start = time.perf_counter()
        self._committer.commit(permit, committables, watermark=None, properties={}, still_leader=lambda: True)
        self.times.append(time.perf_counter() - start)


class Keeping:
    """Upkeep in the time of a stream that commits `rate` times a second."""

    def __init__(self, sink: Paimon, merge_for: MergeFor | None, rate: float) -> None:
        policy = Upkeep(every=30.0, snapshots=50, snapshots_for=10.0, merge_for=merge_for)
        self._keeper = PaimonKeeper(sink.warehouse, sink.table, policy, own_user=USER, clock=lambda: self._now)
        self._now = self._due = time.time()
        self._pause_s = 1 / rate
        self.bytes = 0

    def is_due(self) -> bool:
        return self._now >= self._due

    def after_commit(self) -> None:
        if self.is_due():
            more = True
            while more:
                report = self._keeper.step()
                assert not report.failures, report.failures
                self.bytes, more = self.bytes + report.bytes_compacted, report.more
            self._due = self._now + self._keeper.every_s
        self._now += self._pause_s


def run(folder: Path, asked: argparse.Namespace, java: JavaPaimon | None, verdicts: Verdicts) -> None:
    sink = Paimon(str(folder), "bench.keyed", primary_key=["id"], buckets=4)
    sink.check(SCHEMA)
    writing = Writing(sink)
    keeping = Keeping(sink, asked.merge_for, asked.rate)
    seen: list[Costs] = []
    for number in range(1, asked.commits + 1):
        writing.commit()
        if keeping.is_due() and number >= (len(seen) + 1) * asked.every:
            seen.append(costs(sink, java))
            print(f"  {number} commits: {seen[-1]}", flush=True)
        keeping.after_commit()
    rewritten = keeping.bytes
    amplification = (writing.bytes + rewritten) / writing.bytes
    print(
        f"  written {writing.bytes / 1e6:.0f} MB, rewritten {rewritten / 1e6:.0f} MB:"
        f" write amplification {amplification:.1f}",
        flush=True,
    )
    found = read_table(sink.warehouse, sink.table)
    assert dict(zip(found["id"].to_pylist(), found["n"].to_pylist(), strict=True)) == writing.newest, "a row is wrong"
    merge_all(sink)
    fresh = costs(sink, java)
    first, last = statistics.median(writing.times[:EDGE]), statistics.median(writing.times[-EDGE:])
    writing.commit()
    least = costs(sink, java)
    print(f"  freshly merged: {fresh}\n  one commit later: {least}", flush=True)
    judge(seen, fresh, least, verdicts)
    verdicts.note(f"commit p50 {first * 1000:.1f} ms at first, {last * 1000:.1f} ms at last")
    verdicts.at_most(f"p50 of the last {EDGE} commits / that of the first", last / first, 2.0)


def judge(seen: list[Costs], fresh: Costs, least: Costs, verdicts: Verdicts) -> None:
    """Against a table without anything to merge, and against one with as little as possible."""
    for engine in ("native_s", "python_s", "java_s"):
        all_s = [float(getattr(cost, engine)) for cost in seen]
        whole_s, least_s = float(getattr(fresh, engine)), float(getattr(least, engine))
        if not whole_s:
            continue
        verdicts.note(f"{engine}: median read {statistics.median(all_s) / whole_s:.2f} times a freshly merged table")
        verdicts.note(f"{engine}: one commit after the merge {least_s / whole_s:.2f} times")
        verdicts.at_most(f"{engine}: the dearest read / that one commit after the merge", max(all_s) / least_s, 2.0)
        if engine != "python_s":
            verdicts.at_most(f"{engine}: the dearest read / that of a freshly merged table", max(all_s) / whole_s, 2.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, default=COMMITS)
    parser.add_argument("--every", type=int, default=EVERY, help="commits between two reads")
    parser.add_argument("--merge-for", choices=["reads", "writes"], help="as in pen.Upkeep; default: both")
    parser.add_argument("--rate", type=float, default=4.0, help="commits in a second of the stream's time")
    parser.add_argument("--java", action="store_true", help="let Java Paimon read, too; its jars come by mvn")
    asked = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder, ExitStack() as stack:
        java = stack.enter_context(JavaPaimon(warehouse=folder)) if asked.java else None
        run(Path(folder), asked, java, verdicts)
    return 0 if verdicts.ok else 1


if __name__ == "__main__":
    sys.exit(main())
