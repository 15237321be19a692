"""The commit coordinator in the whole engine without Spark: listeners, log, several sinks, drivers that overlap."""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock as pen
from penstock.cli.main import main
from penstock.engine.background import AT_ONCE
from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.commitevents import CommitEvents
from penstock.engine.commits import PROGRESS_EVERY_S, SinkCommits
from penstock.engine.query import Query
from penstock.errors import Fenced, ListenerFailed
from penstock.observe.commit_log import commit_log
from penstock.observe.events import Committed, Event
from penstock.protocol.commit import SinkStanding, TableHistory, with_pending
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import SinkState
from penstock.sinks.base import WriterContext
from penstock.sinks.listeners import SinkTime
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.sinks.parts import Steps
from penstock.testing.tables import Memory, MemoryCommitter, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, assert_exact, batches_of, epochs, keyed_slow


class Seen(pen.CommitListener):
    """Counts rows in its state, and keeps every call."""

    def __init__(self, name: str = "seen") -> None:
        self.name = name
        self.calls: list[tuple[int, int]] = []
        self.error: Exception | None = None

    def on_commit(self, commit: pen.CommitInfo, state: bytes) -> bytes:
        self.calls.append((commit.first, commit.last))
        if self.error is not None:
            raise self.error
        return str(int(state or b"0") + commit.rows).encode()


def listened_to(table: str, *listeners: pen.CommitListener) -> pen.Output:
    return (
        stream_of(SCHEMA)
        .filter(lambda batch: [True] * batch.num_rows, name="all")
        .write(Memory(table), name="out", commit_listeners=listeners)
    )


def final_state(query: Query, listener: str) -> bytes:
    return query._supervisor.coordinator.states()["out"].listeners[listener]


def test_a_listener_learns_of_every_commit_and_its_state_is_in_the_checkpoint(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """C8."""
    seen = Seen()
    run = InlineRun(batches_of(50, 4), clock)
    query = run.start(listened_to(table, seen), checkpoint=tmp_path)
    query.await_termination(30)
    assert final_state(query, "seen") == b"200"
    assert [call[1] for call in seen.calls] == [s.receipt.checkpoint for s in memory_table(table).snapshots]
    stored = query.manifest().sinks["out"]
    known = sum(
        s.receipt.rows for s in memory_table(table).snapshots if s.receipt.checkpoint <= (stored.committed or 0)
    )
    assert int(stored.listeners.get("seen", b"0")) == known, "state and position of one manifest belong together"


def test_a_driver_that_dies_after_its_commit_tells_log_and_listeners_at_the_next_start(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8, C12: the last commit is in the table, in no manifest, and nobody was told."""
    seen, run = Seen(), InlineRun(batches_of(50, 3), clock)
    seen.error = ConnectionError("nobody there")
    with pytest.raises(ListenerFailed, match="ConnectionError: nobody there"):
        run.start(listened_to(table, seen), checkpoint=tmp_path).await_termination(60)
    assert memory_table(table).snapshots, "the commit itself is in the table"
    seen.error, first = None, list(seen.calls)
    events: list[Event] = []
    query = run.start(listened_to(table, seen), checkpoint=tmp_path, on_event=events.append)
    query.await_termination(30)
    assert_exact(table, 150)
    assert seen.calls[len(first)] == first[0], "told once more of what it had not taken"
    assert final_state(query, "seen") == b"150"
    found = [event for event in events if isinstance(event, Committed) and event.found]
    assert [(event.last, event.duration_s) for event in found] == [(first[0][1], None)]
    log = query.commits()
    assert [commit.snapshot for commit in log] == [s.receipt.snapshot for s in memory_table(table).snapshots]
    assert sum(commit.rows for commit in log) == 150


def test_a_commit_that_was_logged_before_and_after_a_crash_counts_once(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """C12: the last commit of a run is in no manifest, so the next driver finds it again."""
    run = InlineRun(batches_of(50, 2), clock)
    run.start(listened_to(table), checkpoint=tmp_path).await_termination(30)
    events: list[Event] = []
    query = run.start(listened_to(table), checkpoint=tmp_path, on_event=events.append)
    query.await_termination(30)
    assert {event.found for event in events if isinstance(event, Committed)} == {True}
    assert len(query.commits()) == len(memory_table(table).snapshots)
    assert not any(commit.found for commit in query.commits()), "what was measured is kept"


def test_the_watermark_of_a_commit_is_what_all_writers_have_completed(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """C7: in milliseconds; the newest commit tells what the epochs before it knew."""
    schema = pa.schema([("user", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    tables = [
        pa.table({"user": list(range(8)), "at": [second * 1_000_000 + n for n in range(8)]}, schema)
        for second in (10, 20, 15, 40)
    ]
    stream = stream_of(schema, event_time="at", watermark="2 s")
    output = stream.filter(lambda batch: [True] * batch.num_rows, name="all").write(Memory(table), name="out")
    run = InlineRun([{"source": rows} for rows in tables], clock)
    query = run.start(output, checkpoint=tmp_path, parallelism=3)
    query.await_termination(30)
    marks = [commit.watermark for commit in query.commits()]
    assert marks == sorted(marks, key=lambda mark: mark or 0)
    assert set(marks) <= {None, 8_000, 18_000}, "the fourth batch moves the watermark of those after it"
    assert query.manifest().sinks["out"].watermark == 18_000


def test_the_command_shows_the_commit_log(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C12."""
    query = InlineRun(batches_of(50, 3), clock).start(listened_to(table), checkpoint=tmp_path)
    query.await_termination(30)
    shown = CliRunner().invoke(main, ["commits", str(tmp_path), "--json"])
    assert shown.exit_code == 0
    log = json.loads(shown.output)
    assert [(c["sink"], c["snapshot"], c["rows"]) for c in log] == [
        ("out", s.receipt.snapshot, s.receipt.rows) for s in memory_table(table).snapshots
    ]
    text = CliRunner().invoke(main, ["commits", str(tmp_path)]).output
    assert text.count("to out: snapshot") == len(log)
    assert CliRunner().invoke(main, ["commits", str(tmp_path / "nothing")]).exit_code == 1


def test_a_listener_that_fails_now_and_then_is_told_again(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C8: state is exactly once although calls are not."""

    class Flaky(Seen):
        def on_commit(self, commit: pen.CommitInfo, state: bytes) -> bytes:
            after = super().on_commit(commit, state)
            if len(self.calls) == 1:
                raise TimeoutError
            return after

    flaky, steady = Flaky("flaky"), Seen("steady")
    query = InlineRun(batches_of(50, 2), clock).start(listened_to(table, steady, flaky), checkpoint=tmp_path)
    query.await_termination(30)
    assert flaky.calls[0] == flaky.calls[1]
    assert [final_state(query, name) for name in ("steady", "flaky")] == [b"100", b"100"]


def test_two_listeners_of_one_name_are_refused(table: str) -> None:
    with pytest.raises(pen.PenstockError, match="several commit listeners named 'seen'"):
        InlineRun([], FakeClock()).start(listened_to(table, Seen(), Seen()), checkpoint="memory://refused")


def test_a_listener_is_told_the_time_only_while_nothing_waits_for_its_commit(table: str) -> None:
    """C8: by steps, without a thread; a watermark counts once all rows before it are in the table."""

    class Waits(pen.CommitListener):
        name = "waits"

        def on_progress(self, time: SinkTime, state: bytes) -> bytes:
            told.append((time.watermark, time.now_ms))
            return str(time.watermark).encode()

    told: list[tuple[int | None, int]] = []
    clock = FakeClock()
    Memory(table).check(SCHEMA)
    commits = SinkCommits(
        "out",
        SinkStanding(SinkState()),
        Memory(table).open_committer("me"),
        generation=Generation(1),
        still_leader=lambda: True,
        events=CommitEvents(lambda _: None, lambda _: None, lambda _: None),
        spawn=Steps,
        listeners=(Waits(),),
        clock=clock,
        wall_ms=lambda: int(clock.now * 1000),
    )
    assert commits.step() == PROGRESS_EVERY_S
    clock.now = 1.0
    assert commits.step() == PROGRESS_EVERY_S - 1.0
    assert told == [(None, 0)]
    writer = Memory(table).open_writer(WriterContext(CheckpointId(2), Generation(1), 0, 1, "0"), SCHEMA)
    writer.write(pa.record_batch([[1], [2]], schema=SCHEMA))
    state = with_pending(commits.state, CheckpointId(2), tuple(writer.prepare()), watermark=70)
    commits.published(CheckpointId(2), state, frozenset())
    assert [commits.step(), commits.step()] == [AT_ONCE, AT_ONCE]
    assert told == [(None, 0)], "committed, then acknowledged; only then is it time"
    assert commits.step() == PROGRESS_EVERY_S
    assert told == [(None, 0), (70, 1000)]
    assert commits.state.listeners == {"waits": b"70"}
    commits.published(CheckpointId(3), with_pending(commits.state, CheckpointId(3), (), watermark=90), frozenset())
    commits.step()
    assert told[-1] == (90, 1000), "an epoch without rows moves the watermark, too"


def test_a_sink_that_hangs_does_not_hold_up_another(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C2: several sinks commit independently; each has its own position."""
    gate, other = threading.Event(), f"{table}-other"
    memory_table(table).on_commit = lambda _: gate.wait(30)
    rows = stream_of(SCHEMA)
    caught_up = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, Committed) and event.sink == "free" and event.last == 7:
            caught_up.set()

    outputs = [rows.write(Memory(table), name="hangs"), rows.write(Memory(other), name="free")]
    query = InlineRun(batches_of(50, 6), clock).start(*outputs, checkpoint=tmp_path, on_event=listen)
    assert caught_up.wait(30), "all six epochs are in the other table"
    assert memory_table(table).snapshots == []
    gate.set()
    query.await_termination(30)
    for name in (table, other):
        assert Counter(memory_table(name).rows()["number"].to_pylist()) == Counter(range(300))


def test_a_commit_that_hangs_leaves_the_rest_to_one_snapshot(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """C2, C3: twelve epochs pass meanwhile, as many as without it."""
    gate, published = threading.Event(), threading.Event()
    memory_table(table).on_commit = lambda _: gate.wait(30)
    events: list[Event] = []

    def listen(event: Event) -> None:
        events.append(event)
        if len(epochs(events)) == 12:
            published.set()

    query = InlineRun(batches_of(20, 12), clock).start(listened_to(table), checkpoint=tmp_path, on_event=listen)
    assert published.wait(30)
    assert query._supervisor.coordinator.uncommitted() == 12
    gate.set()
    query.await_termination(30)
    assert [s.receipt.rows for s in memory_table(table).snapshots] == [20, 220]
    assert [(commit.first, commit.last) for commit in commit_log(events)] == [(2, 2), (3, 13)]


def test_a_driver_that_starts_while_the_older_one_goes_on_looks_again(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: between reading the manifest and asking the table, the older driver published and committed more."""
    run = InlineRun(batches_of(100, 4), clock)
    run.batches = run.batches[:1]
    run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    original = MemoryCommitter.commits

    def commits(self: MemoryCommitter, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        monkeypatch.setattr(MemoryCommitter, "commits", original)
        older = InlineRun(batches_of(100, 3), clock, accepted=[0])
        older.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
        return original(self, oldest_snapshot, limit, floor)

    monkeypatch.setattr(MemoryCommitter, "commits", commits)
    newer = InlineRun(batches_of(100, 4), clock, accepted=[0, 1, 2])
    newer.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    assert_exact(table, 400)


def test_a_driver_that_claimed_earlier_does_not_take_over_from_one_that_claimed_later(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: paused right after its claim; its successor has published meanwhile."""
    original = Checkpoints.claim_generation

    def claim(self: Checkpoints, driver: Driver, **rest: int) -> Generation:
        monkeypatch.setattr(Checkpoints, "claim_generation", original)
        mine = original(self, driver, **rest)
        successor = InlineRun(batches_of(100, 2), clock, accepted=[0])
        successor.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
        return mine

    first = InlineRun(batches_of(100, 1), clock)
    first.start(keyed_slow(clock, table, 0), checkpoint=tmp_path).await_termination(30)
    monkeypatch.setattr(Checkpoints, "claim_generation", claim)
    late = InlineRun(batches_of(100, 3), clock, accepted=[0])
    with pytest.raises(Fenced, match="published by generation 3; this driver is generation 2"):
        late.start(keyed_slow(clock, table, 0), checkpoint=tmp_path)
    assert_exact(table, 200)
