"""Savepoints for another number of key groups."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.engine.regrouping import RegroupWork, regrouped_savepoint
from penstock.records import Regrouped
from penstock.store import open_store
from penstock.subtask.regroup import regroup
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.changing import BATCHES, ROWS, Changing
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of
from tests.support.routed import Routed


def here(work: RegroupWork) -> list[Regrouped]:
    return [regroup(task, work.origin, work.target) for task in work.tasks]


def rewritten(folder: Path, path: Path, groups: int) -> None:
    store = open_store(str(folder))
    manifest = Checkpoints(store).newest()
    assert manifest is not None
    made = regrouped_savepoint(manifest, store, open_store(str(path)), str(path), groups, here)
    assert made.rows_in_flight == manifest.rows_in_flight


@pytest.fixture
def job(tmp_path: Path, table: str) -> Changing:
    return Changing(
        tmp_path / "first", table, batches=[{"orders": part["source"]} for part in batches_of(ROWS, BATCHES)]
    )


class Timed(pen.KeyedProcess):
    """Numbers the rows of a key, and counts the timers that it set for each."""

    output = pa.schema([*SCHEMA, ("nth", pa.int64())])
    seen = pen.value_state("bigint")
    job: Any = None

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        type(self).job.clock.now += len(rows) * 0.004
        for row in rows:
            state.seen = (state.seen or 0) + 1
            timers.after("1000 h", name=f"t{row['number']}")
            out.emit(user=row["user"], number=row["number"], nth=state.seen)

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
        raise AssertionError("far in the future")


def program(job: Changing) -> pen.Output:
    made = type("Timed", (Timed,), {"job": job})
    seen = stream_of(SCHEMA, "orders").map_batches(lambda batch: batch, name="same").key_by("user")
    return seen.process(made, name="seen").write(job.sink(), name="out")


@pytest.mark.parametrize("groups", [7, 64], ids=["fewer", "more"])
def test_state_timers_and_rows_in_flight_go_on_with_other_key_groups(
    job: Changing, tmp_path: Path, groups: int
) -> None:
    """F9: each row once, numbered on, in the order of its key."""
    before = job.start_and_leave_behind(program(job), rows=40)
    rewritten(job.folder, tmp_path / "copy", groups)
    pen_rows = {name: sum(file.rows for file in files) for name, files in before.state.items()}
    job.folder = tmp_path / "second"
    job.finish(program(job), restore=str(tmp_path / "copy"), max_parallelism=groups, parallelism=3)
    rows = job.rows()
    assert Counter(row["number"] for row in rows) == Counter(range(ROWS * BATCHES))
    for user in range(7):
        mine = [row for row in rows if row["user"] == user]
        assert [row["nth"] for row in mine] == list(range(1, len(mine) + 1))
    assert pen_rows["seen"] > 0
    timers = pen.open(str(job.folder)).state("seen", "timers").to_table()
    assert timers.num_rows == ROWS * BATCHES


def test_rows_on_their_way_to_a_writer_meet_those_that_come_later(job: Changing, tmp_path: Path) -> None:
    """F9: lanes of a sink depend on the number of key groups, and only the sink knows them."""

    def made(sink: Routed) -> pen.Output:
        return stream_of(SCHEMA, "orders").map_batches(lambda batch: batch, name="same").write(sink, name="out")

    before = job.start_and_leave_behind(made(Routed(job.table, job.clock)), rows=40)
    assert before.edges["same-to-write-out"].rows_in_flight > 0
    rewritten(job.folder, tmp_path / "copy", 64)
    job.folder, sink = tmp_path / "second", Routed(job.table, job.clock)
    job.finish(made(sink), restore=str(tmp_path / "copy"), max_parallelism=64, parallelism=4)
    assert Counter(row["number"] for row in job.rows()) == Counter(range(ROWS * BATCHES))
    assert {user: len(subtasks) for user, subtasks in sink.writers.items()} == dict.fromkeys(range(7), 1)


def test_aggregates_and_deduplication_are_found_again(job: Changing, tmp_path: Path) -> None:
    def made() -> pen.Output:
        read = stream_of(SCHEMA, "orders").map_batches(job.slow, name="slow")
        once = read.key_by("user").deduplicate(columns="number", name="once")
        return once.key_by("user").aggregate(n=pen.count(), name="totals").write(job.sink(), name="out")

    job.start_and_leave_behind(made(), rows=40)
    rewritten(job.folder, tmp_path / "copy", 5)
    job.folder = tmp_path / "second"
    query = job.finish(made(), restore=str(tmp_path / "copy"), max_parallelism=5)
    found = pen.open(str(job.folder)).state("totals").to_table().to_pylist()
    assert sum(row["n"] for row in found) == ROWS * BATCHES
    assert query.manifest().max_parallelism == 5


CLICKS = pa.schema({"user": pa.int64(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()})


def clicks(first: int, count: int) -> pa.Table:
    """Rows of 40 users, one for each second."""
    at = [1_767_268_800_000_000 + second * 1_000_000 for second in range(first, first + count)]
    numbers = list(range(first, first + count))
    times = pa.array(at, pa.int64()).cast(CLICKS.field("at").type)
    return pa.table({"user": [n * 7 % 40 for n in numbers], "at": times, "n": numbers}, schema=CLICKS)


def keyed(name: str = "clicks") -> pen.KeyedStream:
    return stream_of(CLICKS, name, event_time="at", watermark="30 s").key_by("user")


def counted(window: Any) -> pen.Stream:
    return keyed().window(window).aggregate(n=pen.count(), name="op")


PROGRAMS = {
    "tumbling windows": lambda: counted(pen.tumbling_window("1 min")),
    "sliding windows": lambda: counted(pen.sliding_window("2 min", every="1 min")),
    "sessions": lambda: counted(pen.session_window("20 s")),
    "outer join": lambda: keyed().join(keyed("others"), within="20 s", how="full", name="op"),
    "deduplication within": lambda: keyed().deduplicate(within="1 min", name="op"),
    "best rows": lambda: keyed().top_n(2, by="n", name="op"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kind_of_state_goes_on_with_other_key_groups(tmp_path: Path, table: str, name: str) -> None:
    """F9: as without the change."""
    made = PROGRAMS[name]
    batches = [{"clicks": clicks(n * 300, 300), "others": clicks(n * 300 + 5, 290)} for n in range(4)]

    def run(place: Path, into: str, accepted: int, upto: int, **options: Any) -> None:
        inline = InlineRun(batches[:upto], FakeClock())
        inline.accepted[:] = range(accepted)
        output = made().write(Memory(table + into), name="out")
        options = {"epoch": None, "max_parallelism": 16, "parallelism": 2, **options}
        inline.start(output, checkpoint=place, **options).await_termination(60)

    for into in ("plain", "other"):
        run(tmp_path / into, into, 0, 2)
    rewritten(tmp_path / "other", tmp_path / "copy", 10)
    run(tmp_path / "plain", "plain", 2, 4)
    run(tmp_path / "second", "other", 2, 4, restore=str(tmp_path / "copy"), max_parallelism=10, parallelism=3)
    found, wanted = (memory_table(table + into).rows().to_pylist() for into in ("other", "plain"))
    assert Counter(map(str, found)) == Counter(map(str, wanted))
    assert len(wanted) > 40
