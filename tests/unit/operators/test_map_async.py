"""map_async with the whole engine, without Spark: calls that run at the barrier stay in flight."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import OperatorFailed, PipelineError
from penstock.observe.events import Event
from penstock.operators.calls import calling
from penstock.operators.calls.event_loop import event_loop
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import (
    SCHEMA,
    FakeClock,
    assert_exact,
    assert_once,
    batches_of,
    crash_in_job,
    epochs,
    run_until,
)

Row = dict[str, Any]
NUMBERED = pa.schema([("number", pa.int64())])


class Service:
    """Something slow that answers with the row it was asked about, and remembers how it was used."""

    def __init__(self, latency_s: float = 0.001, jitter_s: float = 0.0, seed: int = 5) -> None:
        self.latency_s, self.jitter_s, self.random = latency_s, jitter_s, random.Random(seed)
        self.calls: Counter[int] = Counter()
        self.running = self.running_max = self.cancelled = 0

    async def ask(self, row: Row) -> Row:
        self.calls[row["number"]] += 1
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            await asyncio.sleep(self.latency_s + self.random.uniform(0, self.jitter_s))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        return row


def output(service: Service, table: str, **options: Any) -> pen.Output:
    return stream_of(SCHEMA).map_async(service.ask, name="ask", **options).write(Memory(table))


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_unfinished_at_the_barrier_stay_in_flight_and_are_repeated(
    tmp_path: Path, table: str, ordered: bool
) -> None:
    """D5, A7: every epoch publishes, and in the end each row is there once."""
    service = Service(0.002, jitter_s=0.02)
    events: list[Event] = []
    run = InlineRun(batches_of(600, 3), time.monotonic)
    run.start(
        output(service, table, concurrency=20, ordered=ordered),
        checkpoint=tmp_path,
        epoch="100 ms",
        on_event=events.append,
    ).await_termination(60)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(1800))
    fired = [event for event in epochs(events) if event.barrier_fired]
    assert len(fired) > 3
    assert service.running_max <= 20 * 2, "abandoned calls may still be there when the next epoch begins"
    assert sum(service.calls.values()) > 1800, "no call was ever abandoned, so the test shows nothing"


def test_ordered_results_come_in_the_order_of_the_rows(tmp_path: Path, table: str) -> None:
    """D5, A8: per key, across barriers and restarts at other parallelism."""
    service = Service(0.0, jitter_s=0.02)
    numbers = iter([2, 5, 1])
    run = InlineRun(batches_of(250, 2), time.monotonic)

    def job() -> pen.Output:
        return (
            stream_of(SCHEMA)
            .key_by("user")
            .process(Relay, name="relay")
            .map_async(service.ask, concurrency=10, name="ask")
            .write(Memory(table))
        )

    for parallelism in itertools.islice(numbers, 2):
        run_until(
            run,
            job(),
            lambda event: event.rows_in_flight > 0 and event.checkpoint % 3 == 0,
            checkpoint=tmp_path,
            epoch="80 ms",
            parallelism=parallelism,
        )
    run.start(job(), checkpoint=tmp_path, epoch="80 ms", parallelism=next(numbers)).await_termination(60)
    assert_exact(table, 500)


class Relay(pen.KeyedProcess):
    output = SCHEMA

    def process(self, key: Row, rows: list[Row], state: Any, out: Any) -> None:
        out.emit_many(rows)


@pytest.mark.parametrize("ordered", [True, False])
def test_crashes_in_the_middle_lose_and_double_nothing(tmp_path: Path, table: str, ordered: bool) -> None:
    """D5, A6: an attempt whose report never arrives leaves its rows where they were."""
    service = Service(0.001, jitter_s=0.01)
    run = InlineRun(batches_of(150, 3), time.monotonic, prepare=crash_in_job({0, 2, 5, 9}))
    run.start(
        output(service, table, concurrency=16, ordered=ordered),
        checkpoint=tmp_path,
        epoch="60 ms",
        parallelism=3,
        epoch_retries=3,
    ).await_termination(60)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(450))


def test_a_call_longer_than_the_epoch_still_makes_progress(tmp_path: Path, table: str) -> None:
    """D5: the barrier waits for a round of calls when no call can end in an epoch."""
    service = Service(0.2, jitter_s=0.02)
    events: list[Event] = []
    run = InlineRun(batches_of(40, 1), time.monotonic)
    run.start(
        output(service, table, concurrency=20), checkpoint=tmp_path, epoch="50 ms", on_event=events.append
    ).await_termination(30)
    assert_once(table, 40)
    assert len(epochs(events)) <= 20, "one row per epoch is not what is meant by progress"


def test_unordered_rows_pass_a_slower_one_which_stays_in_flight(tmp_path: Path, table: str) -> None:
    """D5: the slow row alone is put back; the next epoch begins with it and waits for it."""
    calls: Counter[int] = Counter()

    async def ask(row: Row) -> Row:
        calls[row["number"]] += 1
        if row["number"] == 3:
            await asyncio.sleep(0.5)
        return row

    run = InlineRun(batches_of(100, 1), time.monotonic)
    job = stream_of(SCHEMA).map_async(ask, concurrency=10, ordered=False, name="ask").write(Memory(table))
    run.start(job, checkpoint=tmp_path, epoch="100 ms").await_termination(30)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(100))
    first = [number for batch in memory_table(table).snapshots[0].batches for number in batch["number"].to_pylist()]
    assert max(first) > 3
    assert 3 not in first
    assert calls[3] == 2


def test_put_back_rows_keep_the_watermark_they_came_with(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """A10: downstream must not think that everything up to a row that was put back is complete."""
    second = 1_000_000
    schema = pa.schema([("number", pa.int64()), ("ts", pa.timestamp("us"))])
    batches = [
        {"source": pa.table({"number": numbers, "ts": [number * second for number in numbers]}, schema=schema)}
        for numbers in (list(range(start, start + 10)) for start in range(0, 40, 10))
    ]
    calls: Counter[int] = Counter()

    async def ask(row: Row) -> Row:
        calls[row["number"]] += 1
        if row["number"] == 5 and calls[5] == 1:
            await asyncio.sleep(3600)  # until it is abandoned at the barrier
        if row["number"] == 9:
            clock.now += 1  # all ten were begun: the barrier fires
        return row

    marks: list[tuple[int | None, int]] = []
    run = InlineRun(batches, clock)

    def listen(event: Event) -> None:
        if box and epochs([event]):
            manifest = box[0].manifest()
            marks.append((manifest.stages["ask"].watermark, manifest.rows_in_flight))

    box: list[pen.Query] = []
    job = stream_of(schema, event_time="ts").map_async(ask, concurrency=10, ordered=False, name="ask")
    box.append(run.start(job.write(Memory(table)), checkpoint=tmp_path, epoch="50 ms", on_event=listen))
    box[0].await_termination(30)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(40))
    held = [mark for mark, in_flight in marks if in_flight]
    assert held
    assert calls[5] == 2
    assert all(mark is None or mark < 5 * second for mark in held)


def test_concurrency_is_bounded(tmp_path: Path, table: str) -> None:
    """D5."""
    service = Service(0.002)
    run = InlineRun(batches_of(300, 1), time.monotonic)
    run.start(output(service, table, concurrency=7), checkpoint=tmp_path, epoch=None).await_termination(30)
    assert_once(table, 300)
    assert 4 <= service.running_max <= 7
    assert service.calls == Counter(range(300))


@pytest.mark.parametrize("until", [math.inf, 0.0])
def test_rows_in_reserve_are_called_when_others_end_unless_it_is_too_late(until: float) -> None:
    """D5: what does not begin in time never begins, so nobody outside is asked in vain."""
    service = Service(0.001)
    schemas = (NUMBERED, NUMBERED)
    calls = calling.Calls(service.ask, schemas, concurrency=2, timeout_s=30, retries=0, clock=time.monotonic)
    rows = [{"number": number} for number in range(6)]
    calls.begin(0, rows[:2], math.inf)
    calls.begin(1, rows[2:], until)
    wanted = 6 if until == math.inf else 2

    async def idle() -> None:
        while calls._tasks:  # noqa: ASYNC110 - each ended call may begin another one
            await asyncio.sleep(0)

    ended: list[calling.Ended] = []
    while len(ended) < wanted:
        ended += calls.ended(10.0, wanted - len(ended))
    asyncio.run_coroutine_threadsafe(idle(), event_loop()).result(10)
    assert sorted(service.calls) == list(range(wanted))
    assert service.running_max == 2


def test_a_call_that_fails_now_and_then_is_repeated(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5: with a copy of the row each time."""
    monkeypatch.setattr(calling, "BACKOFF_S", 0.001)
    tries: Counter[int] = Counter()

    async def ask(row: Row) -> Row:
        number = row.pop("number")
        tries[number] += 1
        if number % 10 == 0 and tries[number] < 3:
            raise ConnectionError("try again")
        return {**row, "number": number}

    run = InlineRun(batches_of(50, 1), time.monotonic)
    job = stream_of(SCHEMA).map_async(ask, retries=2, name="ask").write(Memory(table))
    run.start(job, checkpoint=tmp_path).await_termination(30)
    assert_once(table, 50)
    assert {number for number, count in tries.items() if count == 3} == {0, 10, 20, 30, 40}


async def boom(row: Row) -> Row:
    if row["number"] == 17:
        raise ValueError("no such user")
    return row


async def stuck(row: Row) -> Row:
    await asyncio.sleep(30 if row["number"] == 17 else 0)
    return row


async def misfit(row: Row) -> Row:
    return {**row, "number": "seventeen" if row["number"] == 17 else row["number"]}


async def other_columns(row: Row) -> Row:
    return {"number": row["number"]} if row["number"] == 17 else row


async def gives_up(row: Row) -> Row:
    if row["number"] == 17:
        raise SystemExit(1)
    return row


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (boom, "ValueError: no such user"),
        (stuck, "no answer within 0.05 s"),
        (misfit, "the column 'number' is declared as int64"),
        (other_columns, "wanted the columns number, user; got number"),
        (gives_up, "the call ended itself by SystemExit"),
    ],
)
def test_a_call_that_fails_for_good_stops_the_query_and_names_the_record(
    tmp_path: Path, table: str, function: Any, message: str
) -> None:
    """D5, D8."""
    run = InlineRun(batches_of(40, 1), time.monotonic)
    job = stream_of(SCHEMA).map_async(function, retries=0, timeout="50 ms", name="ask").write(Memory(table))
    query = run.start(job, checkpoint=tmp_path)
    with pytest.raises(OperatorFailed) as caught:
        query.await_termination(30)
    assert message in str(caught.value)
    assert '"number": 17' in str(caught.value)
    assert "subtask" in str(caught.value)


class Pooled(pen.AsyncFunction):
    opened = 0

    async def open(self) -> None:
        type(self).opened += 1
        self.ready = True

    async def __call__(self, row: Row) -> Row:
        assert self.ready
        return row


def test_a_function_is_opened_once_in_a_process(tmp_path: Path, table: str) -> None:
    """D5: connections survive the epoch that opened them."""
    run = InlineRun(batches_of(20, 4), time.monotonic)
    job = stream_of(SCHEMA).map_async(Pooled(), name="ask").write(Memory(table))
    run.start(job, checkpoint=tmp_path, parallelism=2).await_termination(30)
    assert_once(table, 80)
    assert Pooled.opened == 1


def test_two_operators_alike_but_for_their_functions_are_two(tmp_path: Path, table: str) -> None:
    """D5: what was opened for one is not taken for the other."""

    def plus(amount: int) -> Any:
        async def add(row: Row) -> Row:
            return {**row, "number": row["number"] + amount}

        return add

    job = stream_of(SCHEMA).map_async(plus(1), name="one").map_async(plus(10), name="ten").write(Memory(table))
    InlineRun(batches_of(20, 1), time.monotonic).start(job, checkpoint=tmp_path).await_termination(30)
    assert Counter(memory_table(table).rows()["number"].to_pylist()) == Counter(range(11, 31))


def test_what_is_no_async_function_is_refused() -> None:
    """E5."""
    with pytest.raises(PipelineError, match="not an async function"):
        stream_of(SCHEMA).map_async(lambda row: row)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"concurrency": 2.5}, {"retries": -1}, {"timeout": 0}])
def test_options_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    """E5."""
    with pytest.raises(PipelineError):
        stream_of(SCHEMA).map_async(boom, **options)
