"""Promises of the engine that hang on one line each: without that line, one of these tests fails."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest

import penstock as pen
from penstock.observe.events import EpochPublished, Event
from penstock.protocol.report import SubtaskReport
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory
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

EPOCH_S = 0.1


def backlog(tmp_path: Path, clock: FakeClock, table: str, *, rows: int = 3_000) -> InlineRun:
    """A stopped query with nearly all rows in flight, at a millisecond each."""
    run = InlineRun(batches_of(rows, 1), clock)
    query = run_until(
        run,
        keyed_slow(clock, table),
        lambda event: event.rows_in_flight > 0,
        checkpoint=tmp_path,
        epoch=EPOCH_S,
        parallelism=2,
    )
    assert query.manifest().rows_in_flight > rows / 2
    return run


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_the_first_checkpoint_after_a_restart_does_not_wait_for_what_is_in_flight(
    tmp_path: Path, clock: FakeClock, table: str, parallelism: int
) -> None:
    """Each epoch after a restart, the first one too, ends at its barrier."""
    run = backlog(tmp_path, clock, table)
    moments = [clock.now]

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind != "takeover":
            moments.append(clock.now)

    run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch=EPOCH_S, parallelism=parallelism, on_event=listen
    ).await_termination(60)
    assert_exact(table, 3_000)
    # Inline, subtasks run one after the other: each may take an epoch, and a step of 50 ms.
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    assert len(gaps) > 5
    assert max(gaps[:5]) <= parallelism * (2 * EPOCH_S + 0.05)


def test_a_report_that_adds_up_but_was_read_from_the_wrong_place_stops_the_query(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    run = backlog(tmp_path, clock, table)

    def misread(reports: list[SubtaskReport]) -> list[SubtaskReport]:
        """As many rows as there were, from one row further on."""
        moved = []
        for report in reports:
            inputs = tuple(
                msgspec.structs.replace(
                    part,
                    spans=tuple(
                        msgspec.structs.replace(span, start_cursor=span.start_cursor + 1, cursor=span.cursor + 1)
                        for span in part.spans
                    ),
                )
                for part in report.inputs
            )
            moved.append(msgspec.structs.replace(report, inputs=inputs))
        return moved

    def prepare(cluster: InlineCluster) -> None:
        cluster.rewrite = misread

    run.prepare = prepare
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, epoch=EPOCH_S, parallelism=2)
    before = query.manifest().checkpoint
    with pytest.raises(pen.PenstockError, match="from the cursor"):
        query.await_termination(60)
    assert query.manifest().checkpoint == before


def test_no_new_input_is_taken_beyond_the_number_of_segments_in_flight(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    events: list[Event] = []
    run_with_input_on_offer(
        InlineRun(batches_of(600, 4), clock),
        keyed_slow(clock, table),
        checkpoint=tmp_path,
        epoch=EPOCH_S,
        max_in_flight_segments=2,
        on_event=events.append,
    )
    assert_exact(table, 2400)
    assert max(event.segments_in_flight for event in epochs(events)) > 2, "the limit plays a role"
    for before, event in itertools.pairwise(epochs(events)):
        if event.kind == "ingest":
            assert before.segments_in_flight <= 2


def test_rows_that_wait_where_nobody_needs_their_order_are_shared_by_all_subtasks_of_a_larger_query(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    output = stream_of(SCHEMA).map_batches(slow_map(clock), name="slow").write(Memory(table))
    run = InlineRun(batches_of(5000, 1), clock)
    run_until(run, output, lambda event: event.rows_in_flight > 0, checkpoint=tmp_path, epoch=EPOCH_S, parallelism=1)
    shares: dict[int, int] = {}

    def count(reports: list[SubtaskReport]) -> list[SubtaskReport]:
        for report in reports:
            shares[report.subtask] = shares.get(report.subtask, 0) + sum(part.consumed for part in report.inputs)
        return reports

    def prepare(cluster: InlineCluster) -> None:
        cluster.rewrite = count

    run.prepare = prepare
    run.start(output, checkpoint=tmp_path, epoch=EPOCH_S, parallelism=4).await_termination(60)
    assert sum(shares.values()) > 4000
    assert sorted(shares) == [0, 1, 2, 3]
    assert min(shares.values()) > sum(shares.values()) / 8
