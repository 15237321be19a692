"""Watermarks, partitions that are done, files that are missing or left over, on real tables."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.agreement import agree
from penstock.engine.attempts import AttemptFiles
from penstock.engine.cluster import JobFailed, StageJob
from penstock.errors import ConfigError, MissingFile
from penstock.protocol.commit import with_floor, with_pending
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import SinkState
from penstock.sinks.listeners import CommitInfo, SinkTime
from penstock.sinks.paimon.done import PartitionMarker
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.partition_done import PartitionDone
from penstock.store.local import LocalStore
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from tests.support.tables import commit, context, data_files, epoch, ids_in, ids_of

DAYS = pa.schema([("id", pa.int64()), ("day", pa.string())])
HOUR_MS = 3_600_000


def ms(day: str) -> int:
    return round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1000)


def snapshot(sink: Paimon, number: int | None = None):
    manager = open_table(sink.warehouse, sink.table).snapshot_manager()
    return manager.get_latest_snapshot() if number is None else manager.get_snapshot_by_id(number)


# -- watermark -----------------------------------------------------------------------------------------------------


def test_the_watermark_is_the_snapshots_own_and_never_goes_back(sink: Paimon) -> None:
    """C7: also where another writer of the table was ahead."""
    ours, others = sink.open_committer("me"), sink.open_committer("other")
    marks = [(ours, 1, 50), (ours, 2, None), (ours, 3, 70), (others, 4, 60), (ours, 5, 90)]
    for committer, checkpoint, watermark in marks:
        commit(committer, checkpoint, epoch(sink, checkpoint), watermark=watermark)
    assert [snapshot(sink, number).watermark for number in range(1, 6)] == [50, 50, 70, 70, 90]
    assert [receipt.watermark for receipt in ours.commits(None, 9).commits] == [50, 50, 70, 90]


def test_a_watermark_before_1970_does_not_set_back_that_of_1970(sink: Paimon) -> None:
    ours, others = sink.open_committer("me"), sink.open_committer("other")
    commit(others, 1, epoch(sink, 1), watermark=0)
    commit(ours, 2, epoch(sink, 2), watermark=-5)
    assert [snapshot(sink, number).watermark for number in (1, 2)] == [0, 0]


def test_all_commits_of_ours_are_told_with_their_snapshots(sink: Paimon) -> None:
    """C12."""
    ours, others = sink.open_committer("me"), sink.open_committer("other")
    for checkpoint in (1, 2, 3):
        commit(ours, checkpoint, epoch(sink, checkpoint))
        commit(others, checkpoint, epoch(sink, 10 + checkpoint))
    fresh = sink.open_committer("me")
    assert [(r.checkpoint, r.snapshot, r.rows) for r in fresh.commits(None, 9).commits] == [
        (1, 1, 2),
        (2, 3, 2),
        (3, 5, 2),
    ]
    assert [r.checkpoint for r in fresh.commits(3, 9).commits] == [2, 3]
    assert [r.checkpoint for r in fresh.commits(None, 2).commits] == [2, 3]
    assert sink.open_committer("nobody").commits(None, 9).commits == ()


# -- files ---------------------------------------------------------------------------------------------------------


def test_a_file_that_is_to_be_committed_and_is_gone_is_named(sink: Paimon) -> None:
    committables = tuple(epoch(sink, 4))
    pending = with_pending(SinkState(), CheckpointId(4), committables)
    committer = sink.open_committer("me")
    assert agree("out", pending, committer).sink == with_floor(pending, 0)
    gone = next(Path(sink.warehouse).rglob("*.parquet"))
    gone.unlink()
    with pytest.raises(MissingFile, match=f"sink out: .*{gone.name}, which checkpoint 4 is to commit"):
        agree("out", pending, committer)


def test_files_of_what_the_table_already_holds_may_be_gone(sink: Paimon) -> None:
    """Compaction and expiry may have removed them since."""
    committables = tuple(epoch(sink, 4))
    pending = with_pending(SinkState(), CheckpointId(4), committables)
    commit(sink.open_committer("me"), 4, committables)
    for path in Path(sink.warehouse).rglob("*.parquet"):
        path.unlink()
    (landed,) = agree("out", pending, sink.open_committer("me")).landed
    assert (landed.first, landed.last) == (4, 4)


def test_files_are_announced_before_they_are_made(sink: Paimon) -> None:
    """C5"""
    announced: list[tuple[str, bool]] = []
    folder = Path(sink.warehouse, "shop.db/words")

    def announce(file: str) -> None:
        announced.append((file, (folder / file).exists()))

    base = context(1)
    told = type(base)(base.checkpoint, base.generation, 0, 1, "0", announce)
    writer = sink.open_writer(told, pa.schema([("id", pa.int64()), ("word", pa.string())]))
    writer.write(pa.record_batch([[1], ["a"]], names=["id", "word"]))
    writer.prepare()
    ((file, existed),) = announced
    assert (folder / file).exists()
    assert not existed
    sink.open_committer("me").remove([file])
    assert not (folder / file).exists()


def test_announced_files_that_the_table_lists_stay(sink: Paimon) -> None:
    commit(sink.open_committer("me"), 1, epoch(sink, 1))
    folder = Path(sink.warehouse, "shop.db/words")
    files = [str(path.relative_to(folder)) for path in folder.rglob("*.parquet")]
    sink.open_committer("me").remove(files)
    assert ids_in(sink) == ids_of([1])


KILLED = """
import os, sys
import pyarrow as pa
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import Announcement, AttemptId
from penstock.sinks.base import WriterContext
from penstock.sinks.paimon.sink import Paimon
from penstock.store.local import LocalStore
store = LocalStore(sys.argv[2])
path = Announcement("out", AttemptId(7, 1, 0, "3")).path
announce = lambda file: store.append(path, file.encode())
context = WriterContext(CheckpointId(7), Generation(1), 0, 1, "3", announce)
schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
writer = Paimon(sys.argv[1], "shop.words").open_writer(context, schema)
writer.write(pa.record_batch([[1], ["a"]], schema=schema))
writer.prepare()
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("published", [True, False])
def test_files_of_a_killed_attempt_are_removed(sink: Paimon, tmp_path: Path, published: bool) -> None:
    """C5: it made its file and died before it could report; then its epoch, or its driver, ended without it."""
    died = subprocess.run([sys.executable, "-c", KILLED, sink.warehouse, str(tmp_path / "c")], check=False)
    assert died.returncode == -9
    assert len(data_files(sink)) == 1
    generation, taken_over = (1, 2) if published else (2, 7)
    attempts = AttemptFiles(
        LocalStore(tmp_path / "c"),
        "out",
        generation=Generation(generation),
        taken_over=CheckpointId(taken_over),
        owners={},
    )
    committer = sink.open_committer("me")
    if published:
        attempts.sweep(committer.remove)
        assert len(data_files(sink)) == 1, "its checkpoint is still being made, it may yet win"
        attempts.published(CheckpointId(7), frozenset({"4"}))
    assert attempts.sweep(committer.remove)
    assert data_files(sink) == set()
    assert not attempts.sweep(committer.remove), "nothing is looked at twice"


def batches(count: int) -> list[dict[str, pa.Table]]:
    return [
        {"source": pa.table({"id": [10 * n + i for i in range(10)], "day": [f"2026-01-0{n + 1}"] * 10}, DAYS)}
        for n in range(count)
    ]


class Attempts:
    """Lets attempts lose: a twin that finishes too late, and one that is killed in the middle of its report."""

    def __init__(self) -> None:
        self.killed = 0

    def prepare(self, cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            cluster._run_one(job, 0)  # its report is never taken

        def rewrite(reports):
            self.killed += 1
            if self.killed == 2:
                raise JobFailed("executor lost after all reports arrived")
            return reports

        cluster.before_job, cluster.rewrite = before_job, rewrite


def test_files_of_attempts_that_lost_are_removed_and_nothing_else(tmp_path: Path) -> None:
    """C5, C6, C11: speculative twins, and an epoch that failed after all its reports arrived."""
    sink = Paimon(str(tmp_path / "lake"), "shop.words", partition_by=["day"])
    run = InlineRun(batches(4), clock=lambda: 0.0, prepare=Attempts().prepare)
    query = run.start(stream_of(DAYS).write(sink), checkpoint=tmp_path / "checkpoint", parallelism=2)
    query.await_termination(60)
    assert ids_in(sink) == Counter(range(40))
    assert data_files(sink) == set(listed_files(sink.warehouse, sink.table))
    assert [path for path in (tmp_path / "checkpoint" / "attempts").rglob("*") if path.is_file()] == []


def test_a_second_reader_finds_each_row_once_in_the_listed_files(tmp_path: Path) -> None:
    """C4: Polars reads the data files that the newest snapshot lists; no file is listed twice."""
    sink = Paimon(str(tmp_path / "lake"), "shop.words", partition_by=["day"])
    run = InlineRun(batches(3), clock=lambda: 0.0, prepare=Attempts().prepare)
    for _ in range(2):
        run.start(stream_of(DAYS).write(sink), checkpoint=tmp_path / "checkpoint").await_termination(60)
    names = listed_files(sink.warehouse, sink.table)
    assert len(names) == len(set(names))
    paths = {path.name: path for path in Path(sink.warehouse).rglob("*.parquet")}
    read = pl.concat([pl.read_parquet(paths[name], hive_partitioning=False) for name in names])
    assert Counter(read["id"].to_list()) == Counter(range(30))


# -- partitions that are done --------------------------------------------------------------------------------------


def info(*partitions: str, at_ms: int = 0) -> CommitInfo:
    return CommitInfo("out", CheckpointId(1), CheckpointId(1), 1, 1, 1, None, at_ms, partitions)


@pytest.mark.parametrize(
    ("rule", "partition", "end"),
    [
        (PartitionDone(), "day=2026-01-01", "2026-01-02"),
        (PartitionDone(interval="1 h", pattern="$day $hour:00"), "day=2026-01-01/hour=7", "2026-01-01T08:00:00"),
        (PartitionDone(interval="1 h"), "at=2026-01-01 10%3A00%3A00", "2026-01-01T11:00:00"),
        (PartitionDone(pattern="$dt", time_format="%d.%m.%Y"), "shop=3/dt=24.12.2026", "2026-12-25"),
        (PartitionDone(), "day=20260101", "2026-01-02"),
    ],
)
def test_a_partitions_time_is_read_from_its_name(rule: PartitionDone, partition: str, end: str) -> None:
    assert rule.end_ms(partition) == ms(end)


def test_a_partition_without_a_time_is_never_done_by_watermark() -> None:
    assert PartitionDone().end_ms("day=__DEFAULT_PARTITION__") is None
    assert not PartitionDone().is_due("day=__DEFAULT_PARTITION__", 0, watermark=ms("2100-01-01"), now_ms=0)


def marker_of(tmp_path: Path, rule: PartitionDone, now: list[int]) -> tuple[Paimon, PartitionMarker]:
    sink = Paimon(str(tmp_path), "shop.days", partition_by=["day"], partition_done=rule)
    sink.check(DAYS)
    writer = sink.open_writer(context(1), DAYS)
    writer.write(pa.record_batch([[1, 2], ["2026-01-01", "2026-01-02"]], schema=DAYS))
    commit(sink.open_committer("me"), 1, writer.prepare())
    return sink, PartitionMarker(sink.warehouse, sink.table, rule, wall_ms=lambda: now[0])


def done_in(sink: Paimon) -> dict[str, dict[str, int]]:
    folder = Path(sink.warehouse, "shop.db/days")
    return {path.parent.name: json.loads(path.read_text()) for path in folder.rglob("_SUCCESS")}


def test_a_partition_is_done_once_the_watermark_has_passed_its_end_and_the_delay(tmp_path: Path) -> None:
    """C8: late rows make it wait again; then its file is renewed and keeps the time it was made."""
    now = [1000]
    sink, marker = marker_of(tmp_path, PartitionDone(by="watermark", delay="1 h"), now)
    state = marker.on_commit(info("day=2026-01-01", "day=2026-01-02"), b"")
    state = marker.on_progress(SinkTime(None, 0), state)
    state = marker.on_progress(SinkTime(ms("2026-01-02") + HOUR_MS - 1, 0), state)
    assert done_in(sink) == {}
    passed = SinkTime(ms("2026-01-02") + HOUR_MS, 0)
    state = marker.on_progress(passed, state)
    first = {"creationTime": 1000, "modificationTime": 1000}
    assert done_in(sink) == {"day=2026-01-01": first}
    assert marker.properties(state) == {"penstock.done-partitions": "day=2026-01-01"}
    now[0] = 2000
    assert marker.on_progress(passed, state) == state, "once is enough"
    state = marker.on_commit(info("day=2026-01-01"), state)
    assert marker.properties(state) == {}, "the snapshot of that commit told it"
    marker.on_progress(passed, state)
    assert done_in(sink) == {"day=2026-01-01": {"creationTime": 1000, "modificationTime": 2000}}


def test_a_partition_that_got_no_rows_for_a_while_is_done(tmp_path: Path) -> None:
    now = [5000]
    sink, marker = marker_of(tmp_path, PartitionDone(by="idle", delay="10 s"), now)
    state = marker.on_commit(info("day=2026-01-01", at_ms=1000), b"")
    state = marker.on_commit(info("day=2026-01-02", at_ms=9000), state)
    state = marker.on_progress(SinkTime(None, 10_999), state)
    assert done_in(sink) == {}
    state = marker.on_progress(SinkTime(None, 11_000), state)
    assert set(done_in(sink)) == {"day=2026-01-01"}
    marker.on_progress(SinkTime(None, 19_000), state)
    assert set(done_in(sink)) == {"day=2026-01-01", "day=2026-01-02"}


def test_marking_survives_a_driver_that_died_before_its_checkpoint(tmp_path: Path) -> None:
    """C8: the state is the older one, so the partition is marked again."""
    now = [1000]
    sink, marker = marker_of(tmp_path, PartitionDone(by="idle"), now)
    before = marker.on_commit(info("day=2026-01-01"), b"")
    marker.on_progress(SinkTime(None, 0), before)
    now[0] = 3000
    after = marker.on_progress(SinkTime(None, 0), before)
    assert done_in(sink)["day=2026-01-01"] == {"creationTime": 1000, "modificationTime": 3000}
    assert marker.on_progress(SinkTime(None, 0), after) == after


def test_a_query_marks_its_partitions_and_the_next_snapshot_names_them(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path / "lake"), "shop.days", partition_by=["day"], partition_done=PartitionDone(by="idle"))
    run = InlineRun(batches(2), clock=lambda: 0.0)
    run.start(stream_of(DAYS).write(sink), checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert set(done_in(sink)) == {"day=2026-01-01", "day=2026-01-02"}
    assert ids_in(sink) == Counter(range(20)), "readers are not disturbed by the files"
    run.batches = batches(3)
    run.start(stream_of(DAYS).write(sink), checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert "day=2026-01-02" in snapshot(sink).properties["penstock.done-partitions"]


def test_options_of_partition_done_are_checked() -> None:
    with pytest.raises(ConfigError, match="by='rows'"):
        PartitionDone(by="rows")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delay"):
        PartitionDone(delay="soon")
    with pytest.raises(ConfigError, match="partition_done without partition_by"):
        pen.Paimon("lake", "a.b", partition_done=PartitionDone())
