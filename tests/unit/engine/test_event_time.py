"""Watermarks as numbers: sources, idle sources, key groups of a channel, timers (A10)."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.cluster import JobFailed, StageJob
from penstock.errors import StorageFailed
from penstock.inflight.watermarks import ChannelWatermarks
from penstock.protocol.eventtime import (
    Seen,
    SourceTime,
    advance_sources,
    advance_timers,
    due_subtasks,
    highest,
    lowest,
    next_processing_time,
    resumed,
    undeliverable,
)
from penstock.protocol.ids import Generation
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Manifest, SourceClock, Timer
from penstock.protocol.reads import ReadSpan
from penstock.records import NO_WATERMARK
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock, run_with_input_on_offer, slow_map, wait_until

GROUPS = KeyGroupRange(4, 12)


def test_nothing_is_known_as_long_as_one_input_has_no_watermark() -> None:
    assert lowest([5, None, 3]) is None
    assert lowest([]) is None
    assert lowest([5, 3]) == 3
    assert highest([None, 3, 5]) == 5
    assert highest([None]) is None


def test_a_source_s_watermark_follows_its_largest_event_time_and_never_goes_back() -> None:
    times = {"a": SourceTime(delay=10)}
    first = advance_sources({}, times, {"a": Seen(100)}, now=1)
    assert first["a"] == SourceClock(max_event_time=100, watermark=90, active_at=1)
    older = advance_sources(first, times, {"a": Seen(50)}, now=2)
    assert older["a"].watermark == 90
    slower = advance_sources(first, {"a": SourceTime(delay=60)}, {"a": Seen(110)}, now=3)
    assert slower["a"].watermark == 90, "a larger delay after a restart must not take the promise back"


def test_an_idle_source_follows_the_slowest_of_the_others_and_may_come_back() -> None:
    times = {"a": SourceTime(0), "b": SourceTime(0), "c": SourceTime(0, idle=10)}
    clocks = advance_sources({}, times, {"a": Seen(100), "b": Seen(70), "c": Seen(5)}, now=0)
    assert [clocks[name].watermark for name in "abc"] == [100, 70, 5]
    clocks = advance_sources(clocks, times, {"a": Seen(120), "b": Seen(80)}, now=9)
    assert clocks["c"].watermark == 5, "not idle yet"
    clocks = advance_sources(clocks, times, {"a": Seen(130), "b": Seen(90)}, now=10)
    assert clocks["c"].watermark == 90
    clocks = advance_sources(clocks, times, {"c": Seen(60)}, now=11)
    assert clocks["c"].watermark == 90, "what others have passed meanwhile stays passed"
    assert clocks["c"].max_event_time == 60


def test_a_source_that_never_delivered_counts_as_idle_only_after_its_time() -> None:
    times = {"a": SourceTime(0), "b": SourceTime(0, idle=10)}
    clocks = advance_sources({}, times, {"a": Seen(100)}, now=1_000)
    assert clocks["b"].watermark is None
    clocks = advance_sources(clocks, times, {"a": Seen(110)}, now=1_009)
    assert clocks["b"].watermark is None
    clocks = advance_sources(clocks, times, {"a": Seen(120)}, now=1_010)
    assert clocks["b"].watermark == 120


def test_when_all_sources_are_idle_nothing_moves() -> None:
    times = {name: SourceTime(0, idle=10) for name in "ab"}
    clocks = advance_sources({}, times, {"a": Seen(100), "b": Seen(70)}, now=0)
    assert advance_sources(clocks, times, {}, now=1_000) == clocks


def test_the_time_without_a_driver_counts_for_no_source() -> None:
    times = {"a": SourceTime(0), "b": SourceTime(0, idle=10)}
    clocks = advance_sources({}, times, {"a": Seen(100), "b": Seen(70)}, now=0)
    clocks = resumed(advance_sources(clocks, times, {"a": Seen(110)}, now=4), away=1_000)
    clocks = advance_sources(clocks, times, {"a": Seen(120)}, now=1_009)
    assert clocks["b"].watermark == 70, "idle for 9, of which 4 were before"
    clocks = advance_sources(clocks, times, {"a": Seen(120)}, now=1_010)
    assert clocks["b"].watermark == 120


def test_the_time_without_a_driver_counts_for_no_part() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(500, {"0": 500, "1": 200})}, now=0)
    clocks = advance_sources(resumed(clocks, away=1_000), PARTS, {"a": Seen(600, {"0": 600})}, now=1_099)
    assert clocks["a"].watermark == 190
    clocks = advance_sources(clocks, PARTS, {}, now=1_100)
    assert clocks["a"].watermark == 590


def test_a_restart_after_a_while_makes_no_row_late(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """One partition of the source delivers in the first micro-batch after it, the slower one in the second."""
    schema = pa.schema([("part", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    noon, wall = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)

    def rows(*minutes: tuple[int, int]) -> dict[str, pa.Table]:
        """Partitions, and minutes after noon."""
        at = [noon + timedelta(minutes=minute) for _, minute in minutes]
        return {"clicks": pa.table({"part": [part for part, _ in minutes], "at": at}, schema=schema)}

    batches = [rows((0, 20), (1, 1))]
    run = InlineRun(batches, clock, wall_us=lambda: int(wall.timestamp() * 1e6))
    for later in ([rows((0, 30)), rows((0, 31)), rows((1, 2))], []):
        clicks = stream_of(schema, "clicks", event_time="at", watermark="1 s", watermark_by="part")
        windows = clicks.key_by("part").window(pen.tumbling_window("1 min")).aggregate(n=pen.count(), name="windows")
        outputs = [windows.write(Memory(table), name="out"), windows.side("late").write(Memory(f"{table}-late"))]
        run.start(*outputs, checkpoint=tmp_path).await_termination(60)
        batches += later
        wall += timedelta(hours=1)
    assert memory_table(f"{table}-late").rows().to_pylist() == []


def test_the_time_in_which_sources_could_not_deliver() -> None:
    assert undeliverable(100, 150, away=0, offered=None) == 0
    assert undeliverable(100, 150, away=20, offered=None) == 20
    assert undeliverable(100, 150, away=0, offered=130) == 20, "since a micro-batch waits"
    assert undeliverable(100, 150, away=0, offered=90) == 50, "a checkpoint has counted what was before"
    assert undeliverable(100, 150, away=40, offered=110) == 50, "no time counts twice"
    assert undeliverable(100, 150, away=0, offered=160) == 0


SPAN = pa.schema([("part", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows_at(part: int, minute: float, count: int = 1) -> list[tuple[int, datetime]]:
    return [(part, NOON + timedelta(minutes=minute))] * count


def batch_of(*rows: list[tuple[int, datetime]]) -> dict[str, pa.Table]:
    every = [row for some in rows for row in some]
    return {"clicks": pa.table({"part": [row[0] for row in every], "at": [row[1] for row in every]}, schema=SPAN)}


def slow_windows(clock: FakeClock, table: str, **event_time: str) -> tuple[pen.Output, ...]:
    """Each row costs 100 ms beside the windows; what is late goes to a table of its own."""
    clicks = stream_of(SPAN, "clicks", event_time="at", watermark="1 s", **event_time)
    slow = clicks.map_batches(slow_map(clock, 0.1), SPAN, name="slow")
    windows = clicks.key_by("part").window(pen.tumbling_window("1 min")).aggregate(n=pen.count(), name="windows")
    late = windows.side("late").write(Memory(f"{table}-late"))
    return slow.write(Memory(f"{table}-slow")), windows.write(Memory(table), name="out"), late


def driven_by(clock: FakeClock, batches: list[dict[str, pa.Table]]) -> InlineRun:
    """A driver for which time passes only when an operator says so."""
    wall = round(datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1e6)
    return InlineRun(batches, clock, wall_us=lambda: wall + round(clock.now * 1e6), driver_clock=clock)


@pytest.mark.parametrize("limit", [{"max_in_flight": 1}, {"max_backlog": "100 ms"}])
def test_a_part_is_not_idle_while_a_micro_batch_waits_for_its_turn(
    tmp_path: Path, clock: FakeClock, table: str, limit: dict[str, Any]
) -> None:
    """The second micro-batch has no row of the slower partition, and waits for longer than a partition may be idle; the
    third one has."""
    batches = [batch_of(rows_at(0, 20, 300), rows_at(1, 1)), batch_of(rows_at(0, 30)), batch_of(rows_at(1, 2))]
    run = driven_by(clock, batches)
    outputs = slow_windows(clock, table, watermark_by="part", idle="5 s")
    run_with_input_on_offer(run, outputs, checkpoint=tmp_path, epoch="1 s", **limit)
    assert clock.now > 20
    assert memory_table(f"{table}-late").rows().to_pylist() == []


def test_a_part_is_not_idle_while_too_many_commits_keep_a_micro_batch_waiting(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    batches = [batch_of(rows_at(0, 20), rows_at(1, 1)), batch_of(rows_at(0, 30)), batch_of(rows_at(1, 2))]
    box: list[pen.Query] = []
    started = threading.Event()

    def hang(_: object) -> None:
        if clock.now < 60:
            assert started.wait(30)
            loop = box[0]._supervisor.loop
            wait_until(lambda: loop._offer is not None and "max_uncommitted" in (box[0].waiting_for or ""), box[0])
            clock.now += 60

    memory_table(table).on_commit = hang
    run = driven_by(clock, batches)
    outputs = slow_windows(clock, table, watermark_by="part", idle="5 s")
    box.append(run.start(*outputs, checkpoint=tmp_path, max_uncommitted=1))
    started.set()
    box[0].await_termination(60)
    assert clock.now > 60
    assert memory_table(f"{table}-late").rows().to_pylist() == []


def test_a_part_is_not_idle_while_an_epoch_is_tried_again(tmp_path: Path, clock: FakeClock, table: str) -> None:
    batches = [batch_of(rows_at(0, 20), rows_at(1, 1)), batch_of(rows_at(0, 30)), batch_of(rows_at(1, 2))]

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            if job.batch is not None and job.batch.batch_id == 1 and clock.now < 60:
                clock.now += 60
                raise JobFailed("executor lost")

        cluster.before_job = before_job

    run = driven_by(clock, batches)
    run.prepare = prepare
    outputs = slow_windows(clock, table, watermark_by="part", idle="5 s")
    run.start(*outputs, checkpoint=tmp_path).await_termination(60)
    assert clock.now > 60
    assert memory_table(f"{table}-late").rows().to_pylist() == []


def test_a_part_is_not_idle_while_the_storage_refuses_a_checkpoint_with_a_micro_batch(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches = [batch_of(rows_at(0, 20), rows_at(1, 1)), batch_of(rows_at(0, 30)), batch_of(rows_at(1, 2))]
    publish, require_leader = Checkpoints.publish, Checkpoints.require_leader
    refused: list[Manifest] = []

    def refuse(self: Checkpoints, manifest: Manifest) -> int:
        if manifest.source.batch_id == 0 and not refused:
            refused.append(manifest)
            raise StorageFailed("no answer", cause="a test", next_step="none")
        return publish(self, manifest)

    def look(self: Checkpoints, generation: Generation) -> None:
        """Before it tries again."""
        if refused and clock.now < 60:
            clock.now += 60
        require_leader(self, generation)

    monkeypatch.setattr(Checkpoints, "publish", refuse)
    monkeypatch.setattr(Checkpoints, "require_leader", look)
    monkeypatch.setattr("penstock.protocol.outage.FIRST_PAUSE_S", 0.0)
    outputs = slow_windows(clock, table, watermark_by="part", idle="5 s")
    driven_by(clock, batches).start(*outputs, checkpoint=tmp_path).await_termination(60)
    assert clock.now > 60
    assert memory_table(f"{table}-late").rows().to_pylist() == []


def test_a_part_that_delivers_nothing_is_idle_while_others_deliver(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """Micro-batches that are taken at once are chances to deliver, however long their epochs are."""
    batches = [batch_of(rows_at(0, 20), rows_at(1, 1)), *(batch_of(rows_at(0, 30, 40)) for _ in range(3))]
    batches.append(batch_of(rows_at(1, 2)))
    outputs = slow_windows(clock, table, watermark_by="part", idle="5 s")
    driven_by(clock, batches).start(*outputs, checkpoint=tmp_path, epoch=None).await_termination(60)
    assert memory_table(f"{table}-late").rows().num_rows == 1


PARTS = {"a": SourceTime(delay=10, idle=100, by_part=True)}


def test_a_source_with_parts_is_as_far_as_its_slowest_part() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(500, {"0": 500, "1": 200})}, now=0)
    assert clocks["a"].watermark == 190
    clocks = advance_sources(clocks, PARTS, {"a": Seen(900, {"0": 900})}, now=1)
    assert clocks["a"].watermark == 190, "the slow part said nothing, and is not idle yet"
    clocks = advance_sources(clocks, PARTS, {"a": Seen(400, {"1": 400})}, now=2)
    assert clocks["a"].watermark == 390
    assert clocks["a"].max_event_time == 900


def test_a_new_part_that_is_ahead_makes_no_row_of_the_others_late() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(100, {"0": 100})}, now=0)
    clocks = advance_sources(clocks, PARTS, {"a": Seen(9_000, {"0": 120, "8": 9_000})}, now=1)
    assert clocks["a"].watermark == 110


def test_a_new_part_that_is_behind_takes_no_promise_back() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(100, {"0": 100})}, now=0)
    clocks = advance_sources(clocks, PARTS, {"a": Seen(120, {"0": 120, "8": 5})}, now=1)
    assert clocks["a"].watermark == 90


def test_an_idle_part_does_not_count_until_it_delivers_again() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(500, {"0": 500, "1": 200})}, now=0)
    clocks = advance_sources(clocks, PARTS, {"a": Seen(600, {"0": 600})}, now=99)
    assert clocks["a"].watermark == 190
    clocks = advance_sources(clocks, PARTS, {}, now=100)
    assert clocks["a"].watermark == 590
    clocks = advance_sources(clocks, PARTS, {"a": Seen(800, {"0": 800, "1": 650})}, now=101)
    assert clocks["a"].watermark == 640


def test_when_all_parts_are_idle_the_watermark_stays() -> None:
    clocks = advance_sources({}, PARTS, {"a": Seen(500, {"0": 500, "1": 200})}, now=0)
    assert advance_sources(clocks, PARTS, {}, now=1_000)["a"].watermark == 190


@given(st.lists(st.dictionaries(st.sampled_from("012"), st.integers(0, 50), min_size=1), max_size=20))
def test_no_row_is_late_that_is_in_order_within_its_part(epochs: list[dict[str, int]]) -> None:
    """Parts that were there from the beginning, none idle; steps of each go up."""
    clocks = advance_sources({}, PARTS, {"a": Seen(0, dict.fromkeys("012", 0))}, now=0)
    at = dict.fromkeys("012", 0)
    for number, steps in enumerate(epochs):
        watermark = clocks["a"].watermark
        assert watermark is not None
        assert all(at[part] >= watermark for part in steps)
        at |= {part: at[part] + step for part, step in steps.items()}
        seen = {part: at[part] for part in steps}
        clocks = advance_sources(clocks, PARTS, {"a": Seen(max(seen.values()), seen)}, now=number)
        assert clocks["a"].watermark == min(at.values()) - 10


def read(lo: int, hi: int, watermark: int | None) -> ReadSpan:
    return ReadSpan(path=f"{lo}-{hi}-{watermark}", checksum="", lo=lo, hi=hi, watermark=watermark)


def test_a_key_group_has_the_watermark_of_its_oldest_unread_span() -> None:
    reads = [read(4, 8, 1), read(4, 12, 2), read(8, 12, 3), read(4, 8, 4)]
    marks = ChannelWatermarks(GROUPS, reads, 9)
    expected = [(1, 2), (2, 2), (4, 3), (4, 9), (9, 9)]
    for done, (low, high) in enumerate(expected):
        marks.passed(done)
        assert marks.now.tolist() == [low] * 4 + [high] * 4


def test_before_the_first_watermark_nothing_is_late() -> None:
    marks = ChannelWatermarks(GROUPS, [read(4, 12, None)], 7)
    assert marks.now.tolist() == [NO_WATERMARK] * 8
    marks.passed(1)
    assert marks.now.tolist() == [7] * 8


@given(
    st.lists(st.tuples(st.integers(4, 11), st.integers(1, 8)), max_size=12),
    st.lists(st.integers(0, 12), max_size=20),
)
def test_watermarks_of_key_groups_never_go_back(cuts: list[tuple[int, int]], steps: list[int]) -> None:
    """A10: also when several spans are passed at once, and whatever ranges they have."""
    reads = [read(lo, min(12, lo + width), number) for number, (lo, width) in enumerate(cuts)]
    marks = ChannelWatermarks(GROUPS, reads, len(reads))
    before = marks.now.copy()
    for done in sorted(min(step, len(reads)) for step in steps):
        marks.passed(done)
        assert (marks.now >= before).all()
        model = np.full(8, len(reads))
        for span in reversed(reads[done:]):
            model[span.lo - 4 : span.hi - 4] = span.watermark
        assert marks.now.tolist() == model.tolist()
        before = marks.now.copy()


@pytest.mark.parametrize(
    ("watermark", "now", "due"), [(None, 0, False), (9, 0, False), (10, 0, True), (None, 50, True), (3, 49, False)]
)
def test_a_moment_is_due_once_time_has_reached_it(watermark: int | None, now: int, due: bool) -> None:
    timers = [Timer(groups=KeyGroupRange(0, 8), event_time=10, processing_time=50)]
    found = due_subtasks(timers, [watermark] * 3, now, max_parallelism=12)
    assert found == ({0, 1} if due else set()), "the third subtask has other key groups"


def test_timers_of_other_key_groups_stay() -> None:
    old = (Timer(groups=KeyGroupRange(0, 12), event_time=5),)
    mine = Timer(groups=KeyGroupRange(4, 8), event_time=7, processing_time=1)
    timers = advance_timers(old, [(KeyGroupRange(4, 8), mine)])
    assert timers == (
        Timer(groups=KeyGroupRange(0, 4), event_time=5),
        mine,
        Timer(groups=KeyGroupRange(8, 12), event_time=5),
    )
    assert advance_timers(timers, [(KeyGroupRange(0, 12), None)]) == ()
    assert next_processing_time(timers) == 1
