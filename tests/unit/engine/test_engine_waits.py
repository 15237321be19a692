"""Nothing waits for ever: a subtask, a commit, a source, upkeep that hang are named, and the query ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine import ending
from penstock.engine import query as engine_query
from penstock.engine import supervisor as engine_supervisor
from penstock.engine.active import active_queries
from penstock.engine.background import wait_for
from penstock.engine.cluster import JobCancelled, JobFailed, StageJob
from penstock.errors import CommitFailed, StageFailed, StopTimeout, SubtaskHung
from penstock.observe.events import CommitSlow, EpochFailed, Event
from penstock.protocol.hung import Stuck, encode_stuck
from penstock.protocol.layout import HUNG, STUCK, AttemptId, HungSign
from penstock.sinks.upkeep import UpkeepReport
from penstock.store.base import Store
from penstock.testing.inline import InlineCluster, InlineFeed, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, assert_exact, batches_of, keyed_slow, wait_until

QUICK = {"epoch_timeout": "200 ms", "commit_timeout": "200 ms"}


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """What hangs is let go at the end, so that no thread stays behind."""
    event, before = threading.Event(), set(threading.enumerate())
    yield event
    event.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)


HANGS_S = 0.02


def hanging_job(
    clock: FakeClock,
    at: Callable[[StageJob], bool],
    leave: Callable[[Store, StageJob], None] = lambda *_: None,
):
    """Jobs that hang until they are cancelled, as Spark's do.

    Time passes for the driver while they hang, and only then: on a busy machine a healthy job of a few milliseconds
    may take longer than any limit that is short enough for a test.
    """

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if at(job):
                cluster.cancelled.clear()
                leave(cluster.store, job)
                while not cluster.cancelled.wait(HANGS_S):
                    clock.now += HANGS_S
                    leave(cluster.store, job)
                raise JobCancelled(f"stage {job.plan.stage}: cancelled")

        cluster.before_job = before_job

    return prepare


def leave_sample(store: Store, job: StageJob) -> None:
    plan = job.plan
    path = HungSign(AttemptId(plan.checkpoint, plan.generation, 1, "7"), STUCK).path
    sample = Stuck(
        stage=plan.stage,
        subtask=1,
        attempt="7",
        host="worker-3",
        pid=42,
        silent_s=12.0,
        operator="slow",
        function="Slow.process (job.py, line 8)",
        values={"row": "{'user': 7}"},
        stack=["  File job.py, line 8, in process"],
    )
    if not store.exists(path):
        store.create(path, encode_stuck(sample))


def test_a_subtask_that_hangs_ends_the_query_after_its_retries_with_its_place(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    events: list[Event] = []
    hangs = hanging_job(clock, lambda job: job.plan.checkpoint == 3, leave_sample)
    run = InlineRun(batches_of(60, 3), clock, prepare=hangs, driver_clock=clock)
    query = run.start(
        keyed_slow(clock, table, 0), checkpoint=tmp_path, epoch_retries=1, on_event=events.append, **QUICK
    )
    with pytest.raises(SubtaskHung) as caught:
        query.await_termination(60)
    for said in ("subtask 1", "worker-3", "slow", "Slow.process (job.py, line 8)", "{'user': 7}", "tried 2 times"):
        assert said in str(caught.value)
    assert [event.code for event in events if isinstance(event, EpochFailed)] == [SubtaskHung.code] * 2
    assert query.manifest().checkpoint == 2
    assert len(list((tmp_path / HUNG).iterdir())) <= 1, "but for one that was left after the last look"


def test_signs_of_a_job_that_was_given_up_do_not_speak_for_the_next_try(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A zombie of the first try leaves its sign late; the second try takes long as well, but gets on."""
    tries: list[int] = []
    looks: list[str] = []
    """At jobs that are overdue, and of which no sign was found."""

    def activity(_: InlineCluster) -> str:
        looks.append("look")
        return "gets on"

    monkeypatch.setattr(InlineCluster, "activity", activity)

    def late(store: Store, job: StageJob) -> None:
        if len(tries) == 1:
            leave_sample(store, job)

    def prepare(cluster: InlineCluster) -> None:
        hanging_job(clock, lambda job: job.plan.checkpoint == 3 and not tries.append(3) and len(tries) == 1, late)(
            cluster
        )
        inner = cluster.before_job

        def before_job(job: StageJob) -> None:
            inner(job)
            if job.plan.checkpoint == 3 and len(tries) == 2:
                leave_sample(cluster.store, job)
                cluster.cancelled.clear()
                clock.now += 0.45
                seen = len(looks)
                while len(looks) < seen + 2:
                    assert not cluster.cancelled.wait(HANGS_S), "given up for what another attempt said"

        cluster.before_job = before_job

    run = InlineRun(batches_of(60, 3), clock, prepare=prepare, driver_clock=clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, epoch="10 ms", **QUICK)
    assert query.await_termination(60)
    assert_exact(table, 180)


def test_an_epoch_that_hangs_once_is_run_again_and_nothing_is_lost(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    tries: list[int] = []

    def first(job: StageJob) -> bool:
        tries.append(job.plan.checkpoint)
        return tries.count(3) == 1 and job.plan.checkpoint == 3

    run = InlineRun(batches_of(60, 3), clock, prepare=hanging_job(clock, first), driver_clock=clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, **QUICK)
    assert query.await_termination(60)
    assert tries.count(3) == 2
    assert_exact(table, 180)


def test_a_job_that_ends_while_it_is_cancelled_leaves_the_next_one_alone(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was judged to hang, and ends well. The next job, which a late cancel would hit, fails for another reason."""
    cancelling, began, hit = threading.Event(), threading.Event(), []

    def cancel(_: InlineCluster) -> None:
        cancelling.set()
        hit.append(began.wait(0.5))

    monkeypatch.setattr(InlineCluster, "cancel", cancel)

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if cancelling.is_set() and not began.is_set():
                began.set()
                raise JobFailed("executor lost")
            while job.plan.checkpoint == 3 and not cancelling.wait(HANGS_S):
                clock.now += HANGS_S
                leave_sample(cluster.store, job)

        cluster.before_job = before_job

    events: list[Event] = []
    run = InlineRun(batches_of(60, 3), clock, prepare=prepare, driver_clock=clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, on_event=events.append, **QUICK)
    assert query.await_termination(60)
    assert hit == [False]
    assert [event.code for event in events if isinstance(event, EpochFailed)] == [StageFailed.code]
    assert_exact(table, 180)


def test_a_job_of_which_nobody_gives_a_sign_is_given_up_too(tmp_path: Path, clock: FakeClock, table: str) -> None:
    run = InlineRun(batches_of(60, 1), clock, prepare=hanging_job(clock, lambda _: True), driver_clock=clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, epoch_retries=0, **QUICK)
    with pytest.raises(SubtaskHung, match=r"no task has ended.*one subtask after another"):
        query.await_termination(60)


def test_a_stop_with_a_limit_names_the_job_it_waits_for(
    tmp_path: Path, clock: FakeClock, table: str, released: threading.Event
) -> None:
    inside = threading.Event()

    def hang(batch: pa.RecordBatch) -> pa.RecordBatch:
        inside.set()
        assert released.wait(60)
        return batch

    run = InlineRun(batches_of(60, 1), clock)
    query = run.start(
        stream_of(SCHEMA).map_batches(hang, SCHEMA, name="hangs").write(Memory(table)), checkpoint=tmp_path
    )
    assert inside.wait(60)
    with pytest.raises(StopTimeout, match="the job of stage hangs for checkpoint 2"):
        query.stop(timeout=0.1)
    with pytest.raises(StopTimeout, match="the job of stage hangs"):
        query.stop(drain=True, timeout=0.1)
    assert query.is_active
    assert query in active_queries()
    released.set()
    assert query.stop(timeout=60) is None
    assert query not in active_queries()


def test_a_commit_that_hangs_is_told_and_named_and_given_up_at_the_end(
    tmp_path: Path, clock: FakeClock, table: str, released: threading.Event
) -> None:
    told = threading.Event()
    memory_table(table).on_commit = lambda _: released.wait(60)
    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(
        keyed_slow(clock, table, 0),
        checkpoint=tmp_path,
        commit_timeout="500 ms",
        max_uncommitted=1,
        on_event=lambda event: told.set() if isinstance(event, CommitSlow) else None,
    )
    assert told.wait(60)
    with pytest.raises(CommitFailed, match=r"the commit of checkpoints \d to \d at sink sink.*commit_timeout"):
        query.stop(timeout=60)
    released.set()
    memory_table(table).on_commit = lambda _: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(60)
    assert_exact(table, 120)


def test_a_stop_with_a_limit_names_the_commit_it_waits_for(
    tmp_path: Path, clock: FakeClock, table: str, released: threading.Event
) -> None:
    memory_table(table).on_commit = lambda _: released.wait(60)
    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, max_uncommitted=1)
    while "at sink sink" not in (query.waiting_for or ""):
        assert query.is_active
    with pytest.raises(StopTimeout, match=r"the commit of checkpoints \d to \d at sink sink"):
        query.stop(timeout=0.3)
    released.set()
    query.stop(timeout=60)
    assert memory_table(table).snapshots


@pytest.mark.parametrize("how", ["stop", "ctrl_c", "a second ctrl_c"])
def test_a_query_that_drains_behind_a_commit_that_hangs_can_be_stopped(
    tmp_path: Path, clock: FakeClock, table: str, released: threading.Event, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """No epoch can run, and the end of the source alone does not end the query while rows are in flight."""
    memory_table(table).on_commit = lambda _: released.wait(60)
    run = InlineRun(batches_of(1000, 1), clock)
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", max_uncommitted=1, commit_timeout="300 ms"
    )
    wait_until(lambda: "max_uncommitted" in (query.waiting_for or "") and query._supervisor.loop._source_ended, query)
    with pytest.raises(StopTimeout, match=r"max_uncommitted=1.*the commit of checkpoints \d to \d at sink sink.*rows"):
        query.stop(drain=True, timeout=0.3)
    assert query.manifest().rows_in_flight
    if how == "stop":
        with pytest.raises(CommitFailed, match="commit_timeout"):
            query.stop(timeout=60)
    else:
        interrupted(monkeypatch, *[lambda: True] * (2 if how == "a second ctrl_c" else 1))
        with pytest.raises(KeyboardInterrupt):
            query.await_termination()
        assert wait_for(query._supervisor.ended, 60)
    assert isinstance(query.exception(), CommitFailed)
    released.set()
    memory_table(table).on_commit = lambda _: None
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(60)
    assert_exact(table, 1000)


def test_a_source_that_does_not_stop_does_not_keep_the_query_from_ending(
    tmp_path: Path,
    clock: FakeClock,
    table: str,
    released: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ending, "PART_S", 0.2)
    monkeypatch.setattr(InlineFeed, "stop", lambda _: released.wait(60))
    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    query.await_termination(60)
    assert_exact(table, 120)
    assert "Structured Streaming has not stopped" in caplog.text


class HangingKeeper:
    """Upkeep that neither returns nor listens."""

    every_s = 1.0

    def __init__(self, released: threading.Event) -> None:
        self._released = released

    def step(self) -> UpkeepReport:
        assert self._released.wait(60)
        return UpkeepReport()

    def stop(self) -> None:
        pass


class KeptMemory(Memory):
    """A table whose upkeep hangs."""

    released: threading.Event

    def open_keeper(self, commit_user: str, waiting: object) -> HangingKeeper:
        return HangingKeeper(KeptMemory.released)


def test_upkeep_that_hangs_does_not_keep_the_query_from_ending(
    tmp_path: Path,
    clock: FakeClock,
    table: str,
    released: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(ending.Ending.part, "__defaults__", (0.2,))
    KeptMemory.released = released
    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(
        stream_of(SCHEMA).filter(lambda b: [True] * b.num_rows).write(KeptMemory(table)), checkpoint=tmp_path
    )
    query.await_termination(60)
    assert "the upkeep of tables has not ended" in caplog.text


# -- Ctrl-C ------------------------------------------------------------------------------------------------------


def interrupted(monkeypatch: pytest.MonkeyPatch, *after: Callable[[], bool]) -> None:
    """Ctrl-C reaches the first waits of this thread, each as soon as its condition holds; test_ctrl_c has real ones."""
    conditions = list(after)

    def wait(event: threading.Event, timeout_s: float | None = None) -> bool:
        if not conditions:
            return wait_for(event, timeout_s)
        condition = conditions.pop(0)
        while not condition():
            pass
        raise KeyboardInterrupt

    monkeypatch.setattr(engine_query, "wait_for", wait)
    monkeypatch.setattr(engine_supervisor, "wait_for", wait)


def test_ctrl_c_stops_the_query_after_its_running_epoch_and_is_raised(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark cancels its jobs at Ctrl-C: that is neither a failure nor the end of a worker."""
    box: list[pen.Query] = []

    def cancelled_by_ctrl_c(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if job.plan.checkpoint == 4:
                while not (box and box[0]._supervisor._stopping):
                    pass
                raise JobCancelled("cancelled as part of cancellation of all jobs")

        cluster.before_job = before_job

    run = InlineRun(batches_of(60, 9), clock, prepare=cancelled_by_ctrl_c)
    box.append(query := run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path))
    interrupted(monkeypatch, lambda: query.manifest().checkpoint == 3)
    with pytest.raises(KeyboardInterrupt):
        query.await_termination()
    assert not query.is_active
    assert query.exception() is None
    InlineRun(run.batches, clock, run.accepted).start(
        keyed_slow(clock, table, 0), checkpoint=tmp_path
    ).await_termination(60)
    assert_exact(table, 540)


def test_a_second_ctrl_c_does_not_wait(
    tmp_path: Path, clock: FakeClock, table: str, released: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Event()

    def hang(batch: pa.RecordBatch) -> pa.RecordBatch:
        inside.set()
        assert released.wait(60)
        return batch

    run = InlineRun(batches_of(60, 1), clock)
    query = run.start(
        stream_of(SCHEMA).map_batches(hang, SCHEMA, name="hangs").write(Memory(table)), checkpoint=tmp_path
    )
    interrupted(monkeypatch, inside.is_set, lambda: True)
    with pytest.raises(KeyboardInterrupt):
        query.await_termination()
    assert query.is_active
    assert run.cluster is not None
    assert run.cluster.cancelled.is_set()
    released.set()
    query.stop(timeout=60)


def test_jobs_that_are_cancelled_again_and_again_are_not_told_as_lost_workers(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    def prepare(cluster: InlineCluster) -> None:
        def before_job(_: StageJob) -> None:
            raise JobCancelled("cancelled")

        cluster.before_job = before_job

    run = InlineRun(batches_of(60, 1), clock, prepare=prepare)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    with pytest.raises(StageFailed, match="cancelled Spark's jobs"):
        query.await_termination(60)
