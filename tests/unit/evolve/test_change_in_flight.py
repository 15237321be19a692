"""A program that was changed goes on with the rows that the old one left in flight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import penstock as pen
from penstock.errors import CheckpointMismatch
from penstock.testing.inline import stream_of
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, batches_of
from tests.support.routed import Routed

ALL = list(range(ROWS * BATCHES))


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(tmp_path, table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)])


def orders() -> pen.Stream:
    return stream_of(SCHEMA, "orders")


def numbers(job: Changing, name: str = "") -> list[int]:
    return sorted(row["number"] for row in job.rows(name))


def in_order(job: Changing, name: str = "") -> bool:
    by_user: dict[int, list[int]] = {}
    for row in job.rows(name):
        by_user.setdefault(row["user"], []).append(row["number"])
    return all(mine == sorted(mine) for mine in by_user.values())


def keep_even(stream: pen.Stream, name: str = "even") -> pen.Stream:
    return stream.filter(pc.equal(pc.bit_wise_and(pc.field("number"), 1), 0), name=name)


class Seen(pen.KeyedProcess):
    """Numbers the rows of a key."""

    output = pa.schema([*SCHEMA, ("nth", pa.int64())])
    n = pen.value_state(pa.int64())

    def process(self, key, rows, state, out):
        for row in rows:
            state.n = (state.n or 0) + 1
            out.emit(**row, nth=state.n)


def test_the_same_program_goes_on_with_everything(job: Changing) -> None:
    output = lambda: orders().map_batches(job.slow, name="slow").write(job.sink(), name="out")  # noqa: E731
    before = job.start_and_leave_behind(output())
    job.finish(output())
    assert numbers(job) == ALL
    assert before.shape.operators["slow"].inputs is not None


def test_rows_in_flight_pass_a_filter_that_was_put_in_front(job: Changing) -> None:
    """F5."""
    job.start_and_leave_behind(orders().map_batches(job.slow, name="slow").write(job.sink(), name="out"))
    done = numbers(job)
    job.finish(keep_even(orders()).map_batches(job.slow, name="slow").write(job.sink(), name="out"))
    assert numbers(job) == sorted([*done, *(n for n in ALL if n not in set(done) and n % 2 == 0)])


def test_rows_in_flight_pass_a_filter_that_was_put_behind_their_producer_in_its_stage(job: Changing) -> None:
    """F5: the filter has no edge of its own to read them from."""
    parsed = orders().map_batches(lambda batch: batch, name="parse")
    job.start_and_leave_behind(parsed.key_by("user").process(slow_seen(job), name="seen").write(job.sink(), name="out"))
    done = job.rows()
    changed = keep_even(parsed).key_by("user").process(slow_seen(job), name="seen").write(job.sink(), name="out")
    job.finish(changed)
    assert in_order(job)
    new = [row for row in job.rows() if row not in done]
    assert new
    assert all(row["number"] % 2 == 0 for row in new)
    wanted = Counter(n for n in ALL if n % 2 == 0 or n in {row["number"] for row in done})
    assert Counter(numbers(job)) == wanted
    assert max(row["nth"] for row in job.rows()) == max(Counter(row["user"] for row in job.rows()).values())


def slow_seen(job: Changing) -> type[pen.KeyedProcess]:
    class SlowSeen(Seen):
        def process(self, key, rows, state, out):
            job.clock.now += len(rows) * 0.004
            super().process(key, rows, state, out)

    return SlowSeen


@pytest.mark.parametrize("from_source", [True, False])
def test_rows_in_flight_are_exchanged_anew_for_another_key(job: Changing, from_source: bool) -> None:
    """F5: each row reaches the subtask of its new key, once, before every row that arrived later. Rows that had been
    exchanged by another key have no order among themselves."""
    start = orders() if from_source else orders().map_batches(lambda batch: batch, name="parse")
    old = start.key_by("number").process(slow_seen(job), name="old").write(job.sink(), name="out")
    before = job.start_and_leave_behind(old)
    (edge,) = (edge for name, edge in before.edges.items() if name.startswith("orders-to-"))
    done, arrived = numbers(job), edge.accepted
    other = start.key_by("user").process(slow_seen(job), name="new").write(job.sink(), name="out")
    with pytest.raises(CheckpointMismatch, match=r"operator old +refused .*forget=\['old'\]"):
        job.finish(other)
    query = job.finish(other, forget=["old"])
    assert numbers(job) == ALL
    new = job.rows()[len(done) :]
    for user in range(7):
        mine = [row for row in new if row["user"] == user]
        assert [row["nth"] for row in mine] == list(range(1, len(mine) + 1))
        late = [row["number"] for row in mine if row["number"] >= arrived]
        assert late == sorted(late)
        assert [row["number"] for row in mine][-len(late) :] == late
    assert query.manifest().counters["old.forgotten"] > 0


def test_a_consumer_that_was_split_in_two_gives_both_halves_every_row(job: Changing) -> None:
    """F5."""
    job.start_and_leave_behind(orders().map_batches(job.slow, name="all").write(job.sink(), name="out"))
    done = set(numbers(job))
    shared = orders()
    odd = shared.filter(pc.equal(pc.bit_wise_and(pc.field("number"), 1), 1), name="odd")
    job.finish(keep_even(shared).write(job.sink(), name="out"), odd.write(job.sink("odd"), name="odd_out"))
    assert numbers(job) == sorted({*done, *(n for n in ALL if n % 2 == 0)})
    assert numbers(job, "odd") == sorted(n for n in ALL if n % 2 and n not in done)


def test_a_removed_operator_leaves_its_rows_to_those_behind_it(job: Changing) -> None:
    """F5: rows before it go around it, rows behind it go on."""
    keyed = lambda stream: stream.key_by("user").process(slow_seen(job), name="seen").write(job.sink(), name="out")  # noqa: E731
    job.start_and_leave_behind(keyed(orders().map_batches(lambda batch: batch, name="parse")))
    job.finish(keyed(orders()))
    assert numbers(job) == ALL
    assert in_order(job)


def test_rows_in_flight_get_columns_that_were_added_as_null(job: Changing) -> None:
    """F5."""
    schema = pa.schema([*SCHEMA, ("note", pa.string())])

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([*batch.columns, pa.array(["x"] * batch.num_rows)], schema=schema)

    class Noted(pen.KeyedProcess):
        output = schema

        def process(self, key, rows, state, out):
            job.clock.now += len(rows) * 0.004
            for row in rows:
                out.emit(user=row["user"], number=row["number"], note=row.get("note"))

    slow = lambda stream: stream.key_by("user").process(Noted, name="slow").write(job.sink(), name="out")  # noqa: E731
    before = job.start_and_leave_behind(slow(orders().map_batches(lambda batch: batch, name="parse")))
    waiting = before.edges["parse-to-slow"].rows_in_flight
    assert waiting
    job.finish(slow(orders().map_batches(noted, schema, name="parse")))
    assert numbers(job) == ALL
    notes = Counter(row.get("note") for row in job.rows())
    assert notes["x"] > 0
    assert notes[None] >= waiting


def test_rows_that_nobody_reads_any_more_are_refused_until_they_are_dropped_by_name(job: Changing) -> None:
    """F3."""
    shared = orders()
    slow = shared.map_batches(job.slow, name="slow").write(job.sink(), name="out")
    other = shared.map_batches(lambda batch: batch, name="other").write(job.sink("other"), name="other_out")
    before = job.start_and_leave_behind(slow, other)
    waiting = before.edges["orders-to-slow"].rows_in_flight
    with pytest.raises(CheckpointMismatch, match=r"rows in flight orders-to-slow +refused .*drop_in_flight"):
        job.finish(other)
    query = job.finish(other, drop_in_flight=["orders-to-slow"])
    assert numbers(job, "other") == ALL
    assert query.manifest().counters["orders-to-slow.dropped"] == waiting
    job.finish(other, drop_in_flight=["orders-to-slow"])


def test_a_crash_while_rows_are_rerouted_repeats_nothing(job: Changing) -> None:
    """F5: rows that are on their way stay rerouted in every checkpoint until they are through."""
    parsed = orders().map_batches(lambda batch: batch, name="parse")
    job.start_and_leave_behind(
        parsed.key_by("number").process(slow_seen(job), name="old").write(job.sink(), name="out"), rows=100
    )
    done = numbers(job)
    other = lambda: parsed.key_by("user").process(slow_seen(job), name="new").write(job.sink(), name="out")  # noqa: E731
    for _ in range(3):
        before = job.start_and_leave_behind(other(), forget=["old"])
        assert before.rows_in_flight
    job.finish(other())
    assert numbers(job) == ALL
    assert len(done) < len(ALL)


class Counted(pen.KeyedProcess):
    """Counts the rows of a key."""

    output = SCHEMA
    n = pen.value_state(pa.int64())

    def process(self, key, rows, state, out):
        state.n = (state.n or 0) + len(rows)
        for row in rows:
            out.emit(**row)


def test_rows_on_their_way_to_a_writer_find_the_state_of_their_key(job: Changing) -> None:
    """They carry lanes of the sink, which names columns: they must not pass for hashes of these columns."""
    parsed = orders().map_batches(lambda batch: batch, name="parse")
    before = job.start_and_leave_behind(parsed.write(Routed(job.table, job.clock), name="out"), rows=40)
    assert before.edges["parse-to-write-out"].rows_in_flight > 0
    seen = orders().map_batches(lambda batch: batch, name="parse").key_by("user").process(Counted, name="seen")
    query = job.finish(seen.write(Routed(job.table, job.clock), name="out"))
    assert numbers(job) == ALL
    state = pen.open(str(job.folder)).state("seen").to_table()
    assert sorted(state["user"].to_pylist()) == list(range(7))
    assert query.manifest().rows_in_flight == 0
