"""The whole engine with real subtasks and files, without Spark: epochs, barrier, restart, rescale."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pytest

import penstock as pen
from penstock.observe.events import EpochPublished, Event
from penstock.testing import inline
from penstock.testing.batch import TablesBatch
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import (
    SCHEMA,
    FakeClock,
    assert_exact,
    batches_of,
    epochs,
    keyed_slow,
    run_until,
    run_with_input_on_offer,
    slow_map,
)


def test_input_used_up_before_the_barrier_writes_nothing_in_flight(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """A1, A3."""
    events: list[Event] = []
    run = InlineRun(batches_of(100, 3), clock)
    run.start(keyed_slow(clock, table, 0.0), checkpoint=tmp_path, on_event=events.append).await_termination(30)
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
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="200 ms", parallelism=2, on_event=events.append
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
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="200 ms", on_event=events.append).await_termination(
        30
    )
    fired = [event for event in epochs(events) if event.barrier_fired]
    assert fired
    assert max(event.barrier_delay_s for event in fired) <= 0.05


def test_without_an_epoch_there_is_no_barrier(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A3."""
    events: list[Event] = []
    run = InlineRun(batches_of(3000, 2), clock)
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch=None, on_event=events.append).await_termination(30)
    assert_exact(table, 6000)
    assert [event.rows_in_flight for event in epochs(events)] == [0, 0]


def test_no_new_input_is_taken_beyond_the_limit_of_in_flight_data(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A9."""
    events: list[Event] = []
    run_with_input_on_offer(
        InlineRun(batches_of(1000, 5), clock),
        keyed_slow(clock, table),
        checkpoint=tmp_path,
        epoch="100 ms",
        max_in_flight="2 KB",
        on_event=events.append,
    )
    assert_exact(table, 5000)
    for before, event in itertools.pairwise(epochs(events)):
        if event.kind == "ingest":
            assert before.bytes_in_flight <= 2000


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
    run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", parallelism=chain[-1]).await_termination(
        60
    )
    assert_exact(table, 4500)


def test_rescaling_live_takes_effect_at_the_next_epoch(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B2."""
    events: list[Event] = []
    box: list = []
    wanted = iter([8, 3, 5, 1, 2] * 20)

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, EpochPublished) and box:
            box[0]._supervisor.loop.request_rescale({"slow": next(wanted, 2)})

    run = InlineRun(batches_of(1000, 2), clock)
    box.append(run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", parallelism=2, on_event=listen))
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
        output, checkpoint=tmp_path, epoch="200 ms", parallelism={"first": 1, "second": 3}, on_event=events.append
    ).await_termination(60)
    rows = memory_table(table).rows().to_pylist()
    final = {row["user"]: row for row in rows}
    assert {user: row["n"] for user, row in final.items()} == dict.fromkeys(range(7), 300)
    assert {user: row["last"] for user, row in final.items()} == {u: max(range(u, 2100, 7)) for u in range(7)}
    assert any(event.rows_in_flight for event in epochs(events))


def test_a_micro_batch_whose_work_was_planned_ahead_is_taken_as_planned_and_drains_as_wanted(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2: a rescale never makes a plan wrong that was made before it."""
    monkeypatch.setattr(inline, "TablesBatch", partial(TablesBatch, planned_for={"slow": 3}))
    events: list[Event] = []
    run = InlineRun(batches_of(2000, 2), clock)
    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="200 ms", parallelism=2, on_event=events.append
    ).await_termination(30)
    assert_exact(table, 4000)
    assert {(event.kind, event.parallelism["slow"]) for event in epochs(events)} == {("ingest", 3), ("drain", 2)}
