"""The whole engine without Spark: lost jobs, wrong reports, two drivers, commits that hang or fail."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.cluster import StageJob
from penstock.engine.feed import SourceContended, SourceStopped
from penstock.engine.query import Query
from penstock.errors import (
    ConservationError,
    Fenced,
    LostReport,
    StageFailed,
)
from penstock.observe.events import EpochPublished, Event, QueryStopped
from penstock.protocol.ids import Generation
from penstock.store import open_store
from penstock.testing.inline import InlineCluster, InlineFeed, InlineRun, stream_of
from penstock.testing.tables import Memory, MemoryCommitter, memory_table
from tests.support.engine_jobs import (
    SCHEMA,
    FakeClock,
    assert_exact,
    batches_of,
    crash_in_job,
    epochs,
    finished,
    keyed_slow,
)


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


@pytest.mark.parametrize("replaced", [True, False])
def test_a_source_that_fails_under_a_replaced_driver_is_not_what_it_blames(
    tmp_path: Path, clock: FakeClock, table: str, replaced: bool
) -> None:
    """C9: Spark notices a second query on its own log, often before we look for a newer generation."""

    class Contested(list):
        def __getitem__(self, number):
            if number < 1:
                return super().__getitem__(number)
            if replaced:
                Checkpoints(open_store(str(tmp_path))).claim_generation(Driver("elsewhere", 1, "", ""))
            raise RuntimeError("Concurrent update to the log. Multiple streaming jobs detected for 1")

    query = InlineRun(Contested(batches_of(100, 2)), clock).start(keyed_slow(clock, table), checkpoint=tmp_path)
    with pytest.raises(Fenced if replaced else StageFailed, match="generation 2" if replaced else "Concurrent update"):
        query.await_termination(30)


def contended(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Somebody else writes the next entry of the source's log first, after one batch was read."""
    run = InlineFeed._run
    left = itertools.count(times, -1)

    def contended_run(self: InlineFeed, offer, on_end, on_failure) -> None:
        batches = self._batches
        if next(left) <= 0:
            run(self, offer, on_end, on_failure)
            return

        def lost() -> None:
            self._batches = batches
            on_failure(SourceContended("Multiple streaming jobs detected for 1"))

        self._batches = batches[: len(self._accepted) + 1]
        run(self, offer, lost, on_failure)

    monkeypatch.setattr(InlineFeed, "_run", contended_run)


def test_a_last_write_of_a_replaced_driver_to_the_source_s_log_does_not_stop_the_new_one(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: its JVM may be planning a micro-batch while its Python is paused."""
    contended(monkeypatch, times=3)
    InlineRun(batches_of(100, 6), clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 600)


def test_a_query_that_always_loses_the_source_s_log_to_another_says_so(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5."""
    contended(monkeypatch, times=1000)
    run = InlineRun(batches_of(100, 60), clock)
    with pytest.raises(StageFailed, match="not one of Penstock, writes to the folder source/"):
        run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)


def test_a_replaced_driver_that_loses_the_source_s_log_does_not_read_again(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9."""
    starts: list[InlineFeed] = []

    def lose(self: InlineFeed, offer, on_end, on_failure) -> None:
        del offer, on_end
        starts.append(self)
        Checkpoints(open_store(str(tmp_path))).claim_generation(Driver("other", 1, "now", "0"))
        on_failure(SourceContended("Multiple streaming jobs detected for 0"))

    monkeypatch.setattr(InlineFeed, "_run", lose)
    with pytest.raises(Fenced):
        InlineRun(batches_of(9, 1), clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert len(starts) == 1


def stopped_after(batches: int, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Somebody stops the reading of the source once so many micro-batches were taken."""
    run = InlineFeed._run

    def stopped_run(self: InlineFeed, offer, on_end, on_failure) -> None:
        def stopped() -> None:
            meanwhile()
            on_failure(SourceStopped())

        if self._accepted:
            run(self, offer, on_end, on_failure)
        else:
            every, self._batches = self._batches, self._batches[:batches]
            run(self, offer, stopped, on_failure)
            self._batches = every

    monkeypatch.setattr(InlineFeed, "_run", stopped_run)


def test_a_query_whose_source_somebody_else_stops_stops_too_and_goes_on_when_it_is_started_again(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped_after(1, monkeypatch)
    events: list[Event] = []
    run = InlineRun(batches_of(600, 3), clock)
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", on_event=events.append)
    assert query.await_termination(30)
    assert query.exception() is None
    assert [event.reason for event in events if isinstance(event, QueryStopped)] == ["stopped"]
    assert "Spark's streaming query was stopped, not by query.stop()" in caplog.text
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 1800)


def test_a_driver_whose_source_is_stopped_because_it_was_replaced_says_that(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark stops a streaming query when another one is started on its folder in the same session."""

    def replace() -> None:
        Checkpoints(open_store(str(tmp_path))).claim_generation(Driver("other", 1, "now", "0"))

    stopped_after(1, monkeypatch, replace)
    with pytest.raises(Fenced):
        InlineRun(batches_of(9, 3), clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)


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
        InlineRun(batches_of(200, 3), clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(
            60
        )
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
        keyed_slow(clock, table, 0), checkpoint=tmp_path, max_uncommitted=4, on_event=listen
    )
    assert reached.wait(30)
    while query.waiting_for is None or "max_uncommitted=4" not in query.waiting_for:
        assert query.is_active
    assert len(epochs(events)) == 4
    gate.set()
    query.await_termination(30)
    assert_exact(table, 450)
    assert len(memory_table(table).snapshots) <= 8


def test_two_drivers_that_start_on_an_empty_folder_commit_under_one_identity(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: the second driver finds the folder empty, then loses the race for the first manifest."""
    raced: list[Query] = []
    original = Checkpoints.claim_generation

    def claim(self: Checkpoints, driver: Driver, above: int = 0) -> Generation:
        monkeypatch.setattr(Checkpoints, "claim_generation", original)
        rival = InlineRun(batches_of(200, 3), clock).start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
        rival.await_termination(30)
        raced.append(rival)
        return original(self, driver, above)

    monkeypatch.setattr(Checkpoints, "claim_generation", claim)
    run = InlineRun(batches_of(200, 5), clock, accepted=[0, 1, 2])
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert raced
    assert_exact(table, 1000)
    assert len({snapshot.user for snapshot in memory_table(table).snapshots}) == 1


def test_a_crash_between_takeover_and_rewind_of_the_source_is_made_up_for(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1: an older checkpoint was restored; the source must go back with it, at the latest at the next start."""
    run = finished(tmp_path, clock, table)
    del memory_table(table).snapshots[1:]
    with monkeypatch.context() as patch:
        patch.setattr(InlineFeed, "rewind", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, restore=2)
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 600)


def test_a_listener_may_rescale_and_stop_the_query(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B12: nothing hangs."""
    box: list[Query] = []
    ready = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind == "ingest":
            ready.wait()
            box[0].rescale(3)
            box[0].stop()

    output = keyed_slow(clock, table, 0)
    box.append(InlineRun(batches_of(100, 9), clock).start(output, checkpoint=tmp_path, on_event=listen))
    ready.set()
    assert box[0].await_termination(30)


def test_files_of_an_epoch_that_failed_are_removed_from_the_table(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: its committables are never committed."""
    removed: list[int] = []
    monkeypatch.setattr(MemoryCommitter, "abort", lambda _, committables: removed.append(len(committables)))
    seen = itertools.count()

    def prepare(cluster: InlineCluster) -> None:
        cluster.rewrite = lambda reports: reports[1:] if next(seen) == 1 else reports

    run = InlineRun(batches_of(200, 3), clock, prepare=prepare)
    with pytest.raises(LostReport):
        run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert removed == [3]
    run.prepare = lambda _: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 600)


def test_files_of_an_epoch_that_failed_are_removed_from_the_checkpoint(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B13: a subtask that did its part leaves nothing behind when another one failed."""

    def prepare(cluster: InlineCluster) -> None:
        cluster.rewrite = lambda reports: reports[:-1]

    run = InlineRun(batches_of(500, 1), clock, prepare=prepare)
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="50 ms")
    with pytest.raises(LostReport):
        query.await_termination(30)
    left = [path.name for path in tmp_path.rglob("*.arrow")]
    assert all("-s3-" in name for name in left), "the lost report's subtask alone may leave files"


def test_results_that_lost_their_key_can_still_be_united(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B10."""

    class Numbers(pen.KeyedProcess):
        output = pa.schema([("number", pa.int64())])

        def process(self, key, rows, state, out):
            out.emit_many([{"number": row["number"]} for row in rows])

    numbers = stream_of(SCHEMA).key_by("user").process(Numbers, name="numbers")
    output = numbers.union(numbers, name="twice").write(Memory(table))
    InlineRun(batches_of(200, 1), clock).start(output, checkpoint=tmp_path).await_termination(30)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(dict.fromkeys(range(200), 2))
