"""The whole engine with real subtasks and files, without Spark: epochs, barrier, restart, fence, commits."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.cluster import JobFailed, StageJob
from penstock.errors import (
    CheckpointMismatch,
    ConfigError,
    ConservationError,
    CorruptFile,
    Fenced,
    FormatTooNew,
    LostReport,
    MissingFile,
    OperatorFailed,
    SourceMismatch,
    StageFailed,
    TablePositionMismatch,
)
from penstock.observe.events import EpochPublished, Event, decode_events
from penstock.protocol.codec import decode_manifest, encode_manifest
from penstock.protocol.manifest import Manifest
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table

SCHEMA = pa.schema([("user", pa.int64()), ("number", pa.int64())])
tables = (f"table-{n}" for n in itertools.count())


class FakeClock:
    """Time passes only when an operator says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def batches_of(rows: int, count: int, users: int = 7) -> list[dict[str, pa.Table]]:
    numbers = iter(range(rows * count))
    made = []
    for _ in range(count):
        mine = list(itertools.islice(numbers, rows))
        made.append({"source": pa.table({"user": [n % users for n in mine], "number": mine}, schema=SCHEMA)})
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table() -> str:
    return next(tables)


def slow_map(clock: FakeClock, cost_s: float = 0.001):
    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        clock.now += batch.num_rows * cost_s
        return batch

    return work


def keyed_slow(clock: FakeClock, table: str, cost_s: float = 0.001) -> pen.Output:
    """A keyed operator that costs time and hands every record on."""

    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * cost_s
            state.seen = (state.seen or 0) + len(rows)
            out.emit_many(rows)

    return stream_of(SCHEMA).key_by("user").process(Slow, name="slow").write(Memory(table))


def assert_exact(table: str, expected: int) -> None:
    rows = memory_table(table).rows()
    assert Counter(rows["number"].to_pylist()) == Counter(range(expected))
    for user in range(7):
        mine = [n for u, n in zip(rows["user"].to_pylist(), rows["number"].to_pylist(), strict=True) if u == user]
        assert mine == sorted(mine), f"order of user {user}"


def epochs(events: list[Event]) -> list[EpochPublished]:
    return [event for event in events if isinstance(event, EpochPublished)]


def test_input_used_up_before_the_barrier_writes_nothing_in_flight(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A1, A3."""
    events: list[Event] = []
    run = InlineRun(batches_of(100, 3), clock)
    run.start(keyed_slow(clock, table, 0.0), checkpoint=tmp_path, listeners=(events.append,)).await_termination(30)
    assert_exact(table, 300)
    assert [event.kind for event in epochs(events)] == ["ingest"] * 3
    assert all(event.bytes_written.segments == 0 for event in epochs(events))


def test_records_behind_the_barrier_become_in_flight_and_drain_by_themselves(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """A2, A5, A9: in-flight data is written once and then only re-referenced."""
    events: list[Event] = []
    run = InlineRun(batches_of(2000, 1), clock)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="200 ms", parallelism=2, listeners=(events.append,)
    ).await_termination(30)
    assert_exact(table, 2000)
    first, *rest = epochs(events)
    assert first.kind == "ingest"
    assert first.rows_in_flight > 1000
    assert first.bytes_written.segments > 0
    assert len(rest) > 4
    assert all(event.kind == "drain" and event.bytes_written.segments == 0 for event in rest)
    assert [event.rows_in_flight for event in rest] == sorted((e.rows_in_flight for e in rest), reverse=True)


def test_a_slow_row_stops_within_50_ms_of_the_barrier(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A4."""
    events: list[Event] = []
    run = InlineRun(batches_of(2000, 1), clock)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="200 ms", listeners=(events.append,)
    ).await_termination(30)
    fired = [event for event in epochs(events) if event.barrier_fired]
    assert fired
    assert max(event.barrier_delay_s for event in fired) <= 0.05


def test_without_an_epoch_there_is_no_barrier(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A3."""
    events: list[Event] = []
    run = InlineRun(batches_of(3000, 2), clock)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch=None, listeners=(events.append,)
    ).await_termination(30)
    assert_exact(table, 6000)
    assert [event.rows_in_flight for event in epochs(events)] == [0, 0]


def test_no_new_input_is_taken_beyond_the_limit_of_in_flight_data(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A9."""
    events: list[Event] = []
    run = InlineRun(batches_of(1000, 5), clock)
    run.start(
        keyed_slow(clock, table),
        checkpoint=tmp_path,
        epoch="100 ms",
        max_in_flight="2 KB",
        listeners=(events.append,),
    ).await_termination(60)
    assert_exact(table, 5000)
    for before, event in itertools.pairwise(epochs(events)):
        if event.kind == "ingest":
            assert before.bytes_in_flight <= 2000


def stop_when(query_box: list, condition, *, drain: bool = False):
    """A listener that asks the query to stop as soon as an epoch fits `condition`."""
    asked = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and condition(event) and not asked.is_set():
            asked.set()
            query_box[0]._loop.request_stop(drain=drain)

    return listen


def run_until(run: InlineRun, output: pen.Output, condition, **options):
    box: list = []
    started = threading.Event()
    inner = stop_when(box, condition)

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            started.wait()
        inner(event)

    query = run.start(output, listeners=(listen,), **options)
    box.append(query)
    started.set()
    query._stopping = True
    query.await_termination(60)
    return query


@pytest.mark.parametrize("chain", [(1, 3, 2), (4, 4, 1), (7, 2, 5), (2, 8, 3)])
def test_restarts_at_other_parallelism_in_the_middle_of_a_backlog_lose_and_double_nothing(
    tmp_path: Path, clock: FakeClock, table: str, chain: tuple[int, ...]
) -> None:
    """B1, B2, B3, B6, B7, A8."""
    run = InlineRun(batches_of(1500, 3), clock)
    for parallelism in chain[:-1]:
        query = run_until(
            run,
            keyed_slow(clock, table),
            lambda event: event.rows_in_flight > 0 and event.checkpoint % 3 == 0,
            checkpoint=tmp_path,
            epoch="100 ms",
            parallelism=parallelism,
        )
        assert query.manifest().rows_in_flight > 0
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", parallelism=chain[-1]
    ).await_termination(60)
    assert_exact(table, 4500)


def test_rescaling_live_takes_effect_at_the_next_epoch(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B2."""
    events: list[Event] = []
    box: list = []
    wanted = iter([8, 3, 5, 1, 2] * 20)

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, EpochPublished) and box:
            box[0]._loop.request_rescale({"slow": next(wanted, 2)})

    run = InlineRun(batches_of(1000, 2), clock)
    box.append(
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", parallelism=2, listeners=(listen,))
    )
    box[0].await_termination(60)
    assert_exact(table, 2000)
    assert len({event.parallelism["slow"] for event in epochs(events)}) >= 3


def test_two_stages_exchange_records_by_segments_and_keep_order(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B10, A8: an unkeyed slow stage in front of a keyed one, each interrupted by the barrier."""
    events: list[Event] = []
    output = (
        stream_of(SCHEMA)
        .map_batches(slow_map(clock), name="first")
        .key_by("user")
        .aggregate(n=pen.count(), last=pen.last("number"), name="second")
        .write(Memory(table))
    )
    run = InlineRun(batches_of(700, 3), clock)
    run.start(
        output, checkpoint=tmp_path, epoch="200 ms", parallelism={"first": 1, "second": 3}, listeners=(events.append,)
    ).await_termination(60)
    rows = memory_table(table).rows().to_pylist()
    final = {row["user"]: row for row in rows}
    assert {user: row["n"] for user, row in final.items()} == dict.fromkeys(range(7), 300)
    assert {user: row["last"] for user, row in final.items()} == {u: max(range(u, 2100, 7)) for u in range(7)}
    assert any(event.rows_in_flight for event in epochs(events))


def crash_in_job(numbers: set[int]):
    """Lets the jobs with these numbers fail after their subtasks ran: their reports never arrive."""
    counter = itertools.count()

    def prepare(cluster: InlineCluster) -> None:
        def rewrite(reports):
            if next(counter) in numbers:
                raise JobFailed("executor lost")
            return reports

        cluster.rewrite = rewrite

    return prepare


def test_an_epoch_whose_job_failed_is_run_again_and_nothing_of_it_counts(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """A6, C5, C6."""
    run = InlineRun(batches_of(500, 3), clock, prepare=crash_in_job({1, 4, 5}))
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    assert_exact(table, 1500)


def test_a_job_that_always_fails_stops_the_query_and_a_restart_goes_on(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B12."""
    run = InlineRun(batches_of(500, 2), clock, prepare=crash_in_job(set(range(2, 99))))
    with pytest.raises(StageFailed, match="executor lost"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    run.prepare = lambda cluster: None
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(60)
    assert_exact(table, 1000)


def test_reports_that_do_not_add_up_are_never_published(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A7."""

    def prepare(cluster: InlineCluster) -> None:
        def rewrite(reports):
            first = reports[0]
            fewer = msgspec.structs.replace(first.inputs[0], live_consumed=first.inputs[0].live_consumed - 1)
            return [msgspec.structs.replace(first, inputs=(fewer,)), *reports[1:]]

        cluster.rewrite = rewrite

    run = InlineRun(batches_of(100, 1), clock, prepare=prepare)
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path)
    with pytest.raises(ConservationError, match="100 accepted, 99 consumed, 0 in flight"):
        query.await_termination(30)
    assert query.manifest().checkpoint == 1
    assert memory_table(table).snapshots == []


def test_a_missing_report_is_not_taken_for_an_empty_subtask(tmp_path: Path, clock: FakeClock, table: str) -> None:
    def prepare(cluster: InlineCluster) -> None:
        cluster.rewrite = lambda reports: reports[1:]

    run = InlineRun(batches_of(100, 1), clock, prepare=prepare)
    with pytest.raises(LostReport, match=r"subtasks \[0\] of 4"):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path).await_termination(30)


def test_a_second_driver_fences_off_the_first(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C9: the older driver publishes and commits nothing more."""
    blocked, go_on = threading.Event(), threading.Event()

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if job.plan.checkpoint == 3:
                blocked.set()
                go_on.wait(30)

        cluster.before_job = before_job

    first = InlineRun(batches_of(200, 3), clock, prepare=prepare)
    old = first.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    assert blocked.wait(30)
    second = InlineRun(batches_of(200, 3), clock, accepted=[0])
    second.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    committed = len(memory_table(table).snapshots)
    go_on.set()
    with pytest.raises(Fenced, match="generation 2"):
        old.await_termination(30)
    assert len(memory_table(table).snapshots) == committed
    assert_exact(table, 600)


def test_a_driver_that_dies_between_publish_and_commit_commits_on_restart(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """C4, C9: the commit is lost, the checkpoint is not."""

    def die(permit) -> None:
        raise OSError("storage is gone")

    memory_table(table).on_commit = die
    run = InlineRun(batches_of(200, 2), clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    with pytest.raises(pen.PenstockError, match="storage is gone"):
        query.await_termination(60)
    assert memory_table(table).snapshots == []
    memory_table(table).on_commit = lambda permit: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 400)


def test_a_commit_of_unknown_outcome_is_not_repeated(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C4: the commit arrived, its answer did not."""
    from penstock.testing import tables as module

    original = module.MemoryCommitter.commit
    failed: list[int] = []

    def flaky(self, permit, committables, **rest):
        receipt = original(self, permit, committables, **rest)
        if len(failed) < 2:
            failed.append(int(permit.checkpoint))
            raise TimeoutError("no answer")
        return receipt

    module.MemoryCommitter.commit = flaky
    try:
        InlineRun(batches_of(200, 3), clock).start(
            keyed_slow(clock, table, 0), checkpoint=tmp_path
        ).await_termination(60)
    finally:
        module.MemoryCommitter.commit = original
    assert failed
    assert_exact(table, 600)


def test_slow_commits_do_not_hold_up_epochs_until_the_bound(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C2, C3: four epochs pass while the first commit hangs; the rest is committed in few snapshots."""
    gate = threading.Event()
    memory_table(table).on_commit = lambda permit: gate.wait(30)
    events: list[Event] = []
    reached = threading.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if len(epochs(events)) == 4:
            reached.set()

    query = InlineRun(batches_of(50, 9), clock).start(
        keyed_slow(clock, table, 0), checkpoint=tmp_path, max_uncommitted=4, listeners=(listen,)
    )
    assert reached.wait(30)
    while query.waiting_for is None or "max_uncommitted=4" not in query.waiting_for:
        assert query.is_active
    assert len(epochs(events)) == 4
    gate.set()
    query.await_termination(30)
    assert_exact(table, 450)
    assert len(memory_table(table).snapshots) <= 8


# -- refusals ------------------------------------------------------------------------------------------------------


def finished(tmp_path: Path, clock: FakeClock, table: str) -> InlineRun:
    run = InlineRun(batches_of(200, 3), clock)
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    return run


def newest_manifest(tmp_path: Path) -> Path:
    return max((tmp_path / "manifests").glob("*.json"))


def test_another_pipeline_is_refused_with_a_table(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """E6."""
    finished(tmp_path, clock, table)
    other = stream_of(SCHEMA).key_by("number").aggregate(n=pen.count(), name="other").write(Memory(table))
    with pytest.raises(CheckpointMismatch) as caught:
        InlineRun([], clock).start(other, checkpoint=tmp_path)
    assert "operator other" in str(caught.value)
    assert "missing" in str(caught.value)


def test_a_changed_schema_is_refused(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """E6."""
    finished(tmp_path, clock, table)
    schema = pa.schema([("user", pa.int64()), ("number", pa.string())])
    with pytest.raises(CheckpointMismatch, match="number int64"):
        InlineRun([], clock).start(
            stream_of(schema).key_by("user").aggregate(n=pen.count(), name="slow").write(Memory(table)),
            checkpoint=tmp_path,
        )


def test_a_damaged_manifest_is_refused_and_an_older_one_can_be_named(tmp_path: Path, clock: FakeClock, table: str) -> None:
    finished(tmp_path, clock, table)
    path = newest_manifest(tmp_path)
    data = path.read_bytes()
    for damaged in (data[: len(data) // 2], data.replace(b"slow", b"slaw"), b""):
        path.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=r"restore=\d+"):
            InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path, clock: FakeClock, table: str) -> None:
    finished(tmp_path, clock, table)
    path = newest_manifest(tmp_path)
    manifest = decode_manifest(path.read_bytes())
    assert isinstance(manifest, Manifest)
    path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, format=99)))
    with pytest.raises(FormatTooNew, match="format 99"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


@pytest.mark.parametrize("damage", ["delete", "truncate"])
def test_a_missing_or_truncated_file_is_noticed_at_start(tmp_path: Path, clock: FakeClock, table: str, damage: str) -> None:
    """B12."""
    finished(tmp_path, clock, table)
    file = next((tmp_path / "state").rglob("*.arrow"))
    for file in (tmp_path / "state").rglob("*.arrow"):
        file.unlink() if damage == "delete" else file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(MissingFile if damage == "delete" else CorruptFile, match="needed by checkpoint"):
        InlineRun([], clock).start(keyed_slow(clock, table), checkpoint=tmp_path)


@pytest.mark.parametrize("folder", ["state", "segments"])
def test_a_flipped_bit_in_a_file_stops_the_query_with_its_name(
    tmp_path: Path, clock: FakeClock, table: str, folder: str
) -> None:
    """B12: the query fails with the file, and nothing wrong is published."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint == 4,
        checkpoint=tmp_path, epoch="100 ms",
    )  # fmt: skip
    for file in (tmp_path / folder).rglob("*.arrow"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0x10
        file.write_bytes(bytes(data))
    with pytest.raises(CorruptFile, match=folder):
        run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms").await_termination(30)


def test_a_source_that_does_not_fit_is_refused_with_both_positions(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A12."""
    finished(tmp_path, clock, table)
    for accepted, offered in (([0], 1), ([0, 1, 2, 3, 4], 5)):
        run = InlineRun(batches_of(200, 9), clock, accepted=accepted)
        with pytest.raises(SourceMismatch, match=f"micro-batch {offered}, checkpoint .* micro-batch 2"):
            run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)


def test_a_replayed_micro_batch_is_skipped(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A12: Spark replays the last batch when its commit log missed it."""
    finished(tmp_path, clock, table)
    run = InlineRun(batches_of(200, 4), clock, accepted=[0, 1])
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 800)


def test_restoring_an_older_checkpoint_than_the_table_holds_is_refused(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B1, C4."""
    finished(tmp_path, clock, table)
    before = sorted((tmp_path / "manifests").iterdir())
    with pytest.raises(TablePositionMismatch, match="the table holds checkpoint 4"):
        InlineRun([], clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2)
    assert sorted((tmp_path / "manifests").iterdir()) == before


def test_restoring_an_older_checkpoint_works_once_the_table_was_rolled_back(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B1."""
    run = finished(tmp_path, clock, table)
    del memory_table(table).snapshots[1:]
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2).await_termination(30)
    assert_exact(table, 600)


def test_a_copied_checkpoint_folder_goes_on_elsewhere(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B1: paths inside are relative."""
    run = InlineRun(batches_of(1000, 2), clock)
    run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint == 4,
        checkpoint=tmp_path / "here", epoch="100 ms",
    )  # fmt: skip
    (tmp_path / "here").rename(tmp_path / "there")
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "there", epoch="100 ms", parallelism=3).await_termination(30)
    assert_exact(table, 2000)


def test_a_record_that_makes_the_operator_fail_is_shown(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """D8."""

    def fail(batch: pa.RecordBatch) -> pa.RecordBatch:
        if 77 in batch.column("number").to_pylist():
            raise ZeroDivisionError("seventy-seven")
        return batch

    output = stream_of(SCHEMA).map_batches(fail, name="fragile").write(Memory(table))
    with pytest.raises(OperatorFailed) as caught:
        InlineRun(batches_of(200, 1), clock).start(output, checkpoint=tmp_path).await_termination(30)
    text = str(caught.value)
    assert "fragile" in text
    assert "ZeroDivisionError" in text
    assert '"number":77' in text.replace(" ", "")


def test_files_live_as_long_as_a_retained_checkpoint_needs_them(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B13: also leftovers of failed attempts are gone at the end."""
    run = InlineRun(batches_of(300, 60), clock, prepare=crash_in_job({3, 7, 20}))
    query = run.start(keyed_slow(clock, table, 0.0003), checkpoint=tmp_path, epoch="50 ms", retain=2)
    query.await_termination(60)
    manifests = [decode_manifest(path.read_bytes()) for path in sorted((tmp_path / "manifests").iterdir())]
    assert len(manifests) == 2
    needed = set().union(*(manifest.files() for manifest in manifests))
    there = {str(p.relative_to(tmp_path)) for f in ("state", "segments") for p in (tmp_path / f).rglob("*.arrow")}
    assert needed <= there
    # What the last sweep could not see yet is removed by the sweep of the next run.
    run.prepare = lambda cluster: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, retain=2).await_termination(60)
    manifests = [decode_manifest(path.read_bytes()) for path in sorted((tmp_path / "manifests").iterdir())]
    needed = set().union(*(manifest.files() for manifest in manifests))
    there = {str(p.relative_to(tmp_path)) for f in ("state", "segments") for p in (tmp_path / f).rglob("*.arrow")}
    assert there == needed


def test_the_history_tells_what_happened(tmp_path: Path, clock: FakeClock, table: str) -> None:
    finished(tmp_path, clock, table)
    names = [type(event).__name__ for event in decode_events((tmp_path / "events.jsonl").read_bytes())]
    assert names[0] == "QueryStarted"
    assert names[-1] == "QueryStopped"
    assert names.count("EpochPublished") == 3
    assert "Committed" in names


def test_an_unknown_operator_cannot_be_rescaled(tmp_path: Path, clock: FakeClock, table: str) -> None:
    query = InlineRun(batches_of(10, 1), clock).start(keyed_slow(clock, table), checkpoint=tmp_path)
    for wanted in ({"slwo": 2}, {"slow": 0}, {"slow": 129}, 0):
        with pytest.raises(ConfigError):
            query.rescale(wanted)
    query.await_termination(30)


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock") and thread.is_alive()]
    assert left == []
