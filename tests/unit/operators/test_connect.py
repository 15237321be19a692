"""Several inputs into one operator, with the real engine: unions, keyed, broadcast and held-back inputs (B9, B10)."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.cluster import StageJob
from penstock.observe.events import EpochPublished, Event
from penstock.testing import Harness
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock, crash_in_job, epochs, run_until, slow_map

ROWS = pa.schema([("user", pa.int64()), ("number", pa.int64())])
RATES = pa.schema([("name", pa.string()), ("rate", pa.int64())])
SEEN = pa.schema([("port", pa.string()), ("user", pa.int64()), ("number", pa.int64()), ("nth", pa.int64())])


def numbered(start: int, count: int, users: int = 7) -> pa.Table:
    numbers = list(range(start, start + count))
    return pa.table({"user": [n % users for n in numbers], "number": numbers}, schema=ROWS)


def batches(names: tuple[str, ...], rows: int, count: int) -> list[dict[str, pa.Table]]:
    """Every source has numbers of its own: 0, 1, … plus a million for each source before it."""
    return [
        {name: numbered(1_000_000 * k + rows * batch, rows) for k, name in enumerate(names)} for batch in range(count)
    ]


def expected(names: tuple[str, ...], rows: int, count: int) -> Counter[int]:
    return Counter(n for k in range(len(names)) for n in range(1_000_000 * k, 1_000_000 * k + rows * count))


class Tally(pen.ConnectProcess):
    """Hands every row on with its input and how many rows its key has seen."""

    inputs: Any = ("a", "b")
    output = SEEN
    seen = pen.value_state(pa.int64())

    def __init__(self, clock: FakeClock, cost_s: float = 0.001) -> None:
        self.clock, self.cost_s = clock, cost_s

    def process(self, port, key, rows, state, out):
        self.clock.now += len(rows) * self.cost_s
        for row in rows:
            state.seen = (state.seen or 0) + 1
            out.emit(port=port, user=key["user"], number=row["number"], nth=state.seen)


class Tally3(Tally):
    inputs = ("a", "b", "c")


def assert_tallied(table: str, wanted: Counter[int]) -> None:
    """Nothing lost or doubled, every key counted without a gap, and rows of one input and key in order (A8)."""
    rows = memory_table(table).rows().to_pylist()
    assert Counter(row["number"] for row in rows) == wanted
    for user in range(7):
        mine = sorted((row for row in rows if row["user"] == user), key=lambda row: row["nth"])
        assert [row["nth"] for row in mine] == list(range(1, len(mine) + 1))
        for _, part in itertools.groupby(sorted(mine, key=lambda row: row["port"]), key=lambda row: row["port"]):
            numbers = [row["number"] for row in part]
            assert numbers == sorted(numbers)


def run_with_restarts(run: InlineRun, output: pen.Output, tmp_path: Path, chain: tuple[int, ...]) -> list[Event]:
    """Stops in the middle of a backlog and starts again with another parallelism."""
    events: list[Event] = []
    for parallelism in chain[:-1]:
        run_until(
            run,
            output,
            lambda event: event.rows_in_flight > 0 and event.checkpoint % 3 == 0,
            checkpoint=tmp_path,
            epoch="100 ms",
            parallelism=parallelism,
        )
    run.start(
        output, checkpoint=tmp_path, epoch="100 ms", parallelism=chain[-1], on_event=events.append
    ).await_termination(60)
    return events


@pytest.mark.parametrize("chain", [(2,), (7, 2, 3), (1, 4)])
def test_a_union_of_three_sources_in_front_of_a_keyed_operator_loses_nothing(
    tmp_path: Path, clock: FakeClock, table: str, chain: tuple[int, ...]
) -> None:
    """B10: rows of each source stay in order within a key."""

    class Count(pen.KeyedProcess):
        output = SEEN
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += 0.001 * len(rows)
            for row in rows:
                state.seen = (state.seen or 0) + 1
                out.emit(port=str(row["number"] // 1_000_000), user=key["user"], number=row["number"], nth=state.seen)

    names = ("a", "b", "c")
    a, b, c = (stream_of(ROWS, name) for name in names)
    output = a.union(b, c).key_by("user").process(Count).write(Memory(table))
    run_with_restarts(InlineRun(batches(names, 200, 3), clock), output, tmp_path, chain)
    assert_tallied(table, expected(names, 200, 3))


@pytest.mark.parametrize("chain", [(3,), (7, 2, 5)])
def test_three_keyed_inputs_share_the_state_of_their_keys(
    tmp_path: Path, clock: FakeClock, table: str, chain: tuple[int, ...]
) -> None:
    """B10, with a crash."""
    names = ("a", "b", "c")
    a, b, c = (stream_of(ROWS, name).key_by("user") for name in names)
    output = a.connect(b, c, process=Tally3(clock)).write(Memory(table))
    run = InlineRun(batches(names, 300, 2), clock, prepare=crash_in_job({2, 7}))
    run_with_restarts(run, output, tmp_path, chain)
    assert_tallied(table, expected(names, 300, 2))


@pytest.mark.parametrize("through_a_stage", [False, True])
def test_a_stream_can_be_connected_with_itself(
    tmp_path: Path, clock: FakeClock, table: str, through_a_stage: bool
) -> None:
    """B10: two edges between the same two operators, or from a source to one operator."""
    stream = stream_of(ROWS)
    if through_a_stage:
        stream = stream.map_batches(slow_map(clock, 0.0002), name="first")
    keyed = stream.key_by("user")
    output = keyed.connect(keyed, process=Tally(clock)).write(Memory(table))
    run_with_restarts(InlineRun(batches(("source",), 300, 3), clock), output, tmp_path, (4, 2))
    assert_tallied(table, expected(("source",), 300, 3) + expected(("source",), 300, 3))


def test_a_held_back_input_waits_for_the_others_and_never_for_a_checkpoint(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B10: one epoch at a time the backlog of `a` goes first, and every epoch publishes."""
    names = ("a", "b")
    a, b = (stream_of(ROWS, name).key_by("user") for name in names)
    output = a.connect(b, process=Tally(clock), hold_back=("b",)).write(Memory(table))
    events = run_with_restarts(InlineRun(batches(names, 400, 1), clock), output, tmp_path, (2, 5, 1))
    assert epochs(events)[-1].checkpoint > 6, "many epochs, and each one published"
    assert_tallied(table, expected(names, 400, 1))
    for snapshot_rows in _by_key(table).values():
        ports = [row["port"] for row in sorted(snapshot_rows, key=lambda row: row["nth"])]
        assert ports == sorted(ports), "all of a before any of b"


def _by_key(table: str) -> dict[int, list[dict[str, Any]]]:
    found: dict[int, list[dict[str, Any]]] = {}
    for row in memory_table(table).rows().to_pylist():
        found.setdefault(row["user"], []).append(row)
    return found


class Rated(pen.ConnectProcess):
    """Each row with the sum and the number of all rates known when it came."""

    inputs = ("rows", "rates")
    output = pa.schema([*ROWS, ("known", pa.int64()), ("total", pa.int64()), ("nth", pa.int64())])
    rates = pen.broadcast_map(pa.string(), pa.int64())
    applied = pen.broadcast_map(pa.int64(), pa.int64())
    seen = pen.value_state(pa.int64())

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def process(self, port, key, rows, state, out):
        self.clock.now += 0.001 * len(rows)
        for row in rows:
            state.seen = (state.seen or 0) + 1
            total = sum(state.rates.values())
            out.emit(**row, known=state.applied.get(0, 0), total=total, nth=state.seen)

    def process_broadcast(self, port, rows, broadcast):
        self.clock.now += 0.0005 * len(rows)
        for row in rows:
            broadcast.rates[row["name"]] = broadcast.rates.get(row["name"], 0) + row["rate"]
        broadcast.applied[0] = broadcast.applied.get(0, 0) + len(rows)


def rate_batches(rows: int, rates: int, count: int) -> list[dict[str, pa.Table]]:
    return [
        {
            "rows": numbered(rows * batch, rows),
            "rates": pa.table(
                {"name": [f"r{n % 5}" for n in range(rates)], "rate": [1000 * batch + n for n in range(rates)]},
                schema=RATES,
            ),
        }
        for batch in range(count)
    ]


@pytest.mark.parametrize("chain", [(3,), (7, 2, 5), (1, 6)])
@pytest.mark.parametrize("rates", [20, 150])
def test_every_subtask_sees_every_broadcast_row_once_before_the_keyed_rows_of_its_epoch(
    tmp_path: Path, clock: FakeClock, table: str, chain: tuple[int, ...], rates: int
) -> None:
    """B9: with barriers, crashes and rescaling; the broadcast rows do not fit into one epoch with 150 of them."""
    given = rate_batches(400, rates, 3)
    keyed = stream_of(ROWS, "rows").key_by("user")
    output = keyed.connect(stream_of(RATES, "rates").broadcast(), process=Rated(clock)).write(Memory(table))
    run = InlineRun(given, clock, prepare=crash_in_job({3, 8}))
    run_with_restarts(run, output, tmp_path, chain)
    rows = memory_table(table).rows().to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(1200))
    amounts = [rate for batch in given for rate in batch["rates"]["rate"].to_pylist()]
    for row in rows:
        batch = row["number"] // 400
        assert row["known"] >= rates * (batch + 1), "broadcast rows of its own micro-batch came first"
        assert row["total"] == sum(amounts[: row["known"]]), "each broadcast row once, in order"


class Ticking(FakeClock):
    """Every look at the clock takes `tick_s`."""

    tick_s = 0.0

    def __call__(self) -> float:
        self.now += self.tick_s
        return self.now


def test_keyed_rows_never_overtake_broadcast_rows_of_their_micro_batch(tmp_path: Path, table: str) -> None:
    """B9: handing broadcast rows on is not cut by a barrier, however slow it is."""
    clock = Ticking()

    def prepare(cluster: InlineCluster) -> None:
        def before_job(job: StageJob) -> None:
            clock.tick_s = 0.05 if job.stage.name.startswith("from-") else 0.0

        cluster.before_job = before_job

    given = rate_batches(200, 90, 3)
    keyed = stream_of(ROWS, "rows").key_by("user")
    output = keyed.connect(stream_of(RATES, "rates").broadcast(), process=Rated(clock)).write(Memory(table))
    run = InlineRun(given, clock, prepare=prepare)
    run.start(output, checkpoint=tmp_path, epoch="100 ms", parallelism=3).await_termination(60)
    rows = memory_table(table).rows().to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(600))
    assert all(row["known"] >= 90 * (row["number"] // 200 + 1) for row in rows)


def test_a_broadcast_map_is_stored_once_and_can_be_deleted_from(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B9."""

    class Latest(pen.ConnectProcess):
        inputs = ("rows", "rates")
        output = pa.schema([*ROWS, ("names", pa.string())])
        rates = pen.broadcast_map(pa.string(), pa.int64())

        def process(self, port, key, rows, state, out):
            assert key == {}
            out.emit_many([{**row, "names": ",".join(sorted(state.rates))} for row in rows])

        def process_broadcast(self, port, rows, broadcast):
            for row in rows:
                if row["rate"] < 0:
                    broadcast.rates.pop(row["name"], None)
                else:
                    broadcast.rates[row["name"]] = row["rate"]

    def rates(*pairs: tuple[str, int]) -> pa.Table:
        return pa.Table.from_pylist([{"name": name, "rate": rate} for name, rate in pairs], schema=RATES)

    given = [
        {"rows": numbered(0, 10), "rates": rates(("x", 1), ("y", 2))},
        {"rows": numbered(10, 10), "rates": rates(("x", -1), ("z", 3))},
        {"rows": numbered(20, 10), "rates": rates()},
    ]
    output = (
        stream_of(ROWS, "rows")
        .connect(stream_of(RATES, "rates").broadcast(), process=Latest, name="latest")
        .write(Memory(table))
    )
    run = InlineRun(given, clock)
    run_until(run, output, lambda event: event.checkpoint >= 2, checkpoint=tmp_path, epoch=None, parallelism=4)
    query = run.start(output, checkpoint=tmp_path, epoch=None, parallelism=3)
    query.await_termination(30)
    rows = memory_table(table).rows().to_pylist()
    assert {row["number"]: row["names"] for row in rows} == {n: "x,y" if n < 10 else "y,z" for n in range(30)}
    assert all(file.ranges[0].hi - file.ranges[0].lo == 128 for file in query.manifest().state["latest/rates"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"inputs": ("a",)}, "names 1 inputs, connect got 2"),
        ({"inputs": "ab"}, "does not name its inputs"),
        ({"inputs": ("a", "a")}, "'a' is an input twice"),
        ({"process": pen.ConnectProcess.process}, "has no process()"),
        ({"process_broadcast": pen.ConnectProcess.process_broadcast}, "has no process_broadcast()"),
        ({"rates": pen.broadcast_map(pa.float64(), pa.int64())}, "floats are not exact"),
        ({"user": pen.value_state(pa.int64())}, "'user' is a key or state column twice"),
    ],
)
def test_an_incomplete_class_is_refused_when_the_pipeline_is_built(change: dict[str, Any], words: str) -> None:
    """E5."""
    kind = type("Changed", (Rated,), change)
    with pytest.raises(pen.PenstockError, match="PEN-002") as caught:
        stream_of(ROWS, "rows").key_by("user").connect(stream_of(RATES, "rates").broadcast(), process=kind(FakeClock()))
    assert words in str(caught.value)


def test_a_broadcast_row_that_fails_is_named(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """D8."""

    class Strict(Rated):
        def process_broadcast(self, port, rows, broadcast):
            for row in rows:
                broadcast.rates[row["name"]] = 100 // (row["rate"] - 3)

    output = (
        stream_of(ROWS, "rows")
        .key_by("user")
        .connect(stream_of(RATES, "rates").broadcast(), process=Strict(clock), name="rated")
        .write(Memory(table))
    )
    query = InlineRun(rate_batches(10, 10, 1), clock).start(output, checkpoint=tmp_path)
    with pytest.raises(pen.PenstockError, match="PEN-030") as caught:
        query.await_termination(30)
    assert "ZeroDivisionError" in str(caught.value)
    assert '{"name": "r3", "rate": 3}' in str(caught.value)


def test_keyed_code_cannot_change_a_broadcast_map(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """B9."""

    class Wrong(Rated):
        def process(self, port, key, rows, state, out):
            state.rates["x"] = 1

    output = (
        stream_of(ROWS, "rows")
        .key_by("user")
        .connect(stream_of(RATES, "rates").broadcast(), process=Wrong(clock))
        .write(Memory(table))
    )
    query = InlineRun(rate_batches(10, 10, 1), clock).start(output, checkpoint=tmp_path)
    with pytest.raises(pen.PenstockError, match="does not support item assignment"):
        query.await_termination(30)


def test_rescaling_live_keeps_broadcast_state_and_position_together(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """B9, B2."""
    box: list[Any] = []
    wanted = iter([7, 2, 5, 1, 3] * 20)

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and box:
            box[0]._supervisor.loop.request_rescale({"rated": next(wanted, 2)})

    given = rate_batches(500, 60, 3)
    output = (
        stream_of(ROWS, "rows")
        .key_by("user")
        .connect(stream_of(RATES, "rates").broadcast(), process=Rated(clock), name="rated")
        .write(Memory(table))
    )
    box.append(
        InlineRun(given, clock).start(output, checkpoint=tmp_path, epoch="100 ms", parallelism=2, on_event=listen)
    )
    box[0].await_termination(60)
    amounts = [rate for batch in given for rate in batch["rates"]["rate"].to_pylist()]
    rows = memory_table(table).rows().to_pylist()
    assert Counter(row["number"] for row in rows) == Counter(range(1500))
    assert all(row["total"] == sum(amounts[: row["known"]]) for row in rows)
    assert all(row["known"] >= 60 * (row["number"] // 500 + 1) for row in rows)


class Matched(pen.ConnectProcess):
    """Pairs an order with its payment; an order without one for a minute goes on the side."""

    inputs = ("orders", "payments")
    output = pa.schema([("user", pa.int64()), ("number", pa.int64())])
    sides = {"unpaid": pa.schema([("user", pa.int64())])}  # noqa: RUF012 - as users write it
    order = pen.value_state(pa.int64())

    def process(self, port, key, rows, state, out, timers):
        for row in rows:
            if port == "orders":
                state.order = row["number"]
                timers.after("1 min")
            elif state.order is not None:
                out.emit(user=key["user"], number=state.order)
                state.order = None
                timers.cancel()

    def on_timer(self, key, time, state, out, timers):
        out.side("unpaid").emit(user=key["user"])
        state.order = None


def test_connected_inputs_share_timers_and_have_side_outputs() -> None:
    """D3, D4."""
    orders, payments = (stream_of(ROWS, name).key_by("user") for name in ("orders", "payments"))
    stream = orders.connect(payments, process=Matched, name="matched")
    harness = Harness(stream, unpaid=stream.side("unpaid"))
    harness.feed(orders=[{"user": user, "number": 10 + user} for user in range(5)])
    harness.rescale(3)
    harness.crash()
    harness.feed(payments=[{"user": user, "number": 0} for user in (1, 3)])
    harness.pass_time("2 min")
    assert sorted(row["number"] for row in harness.output()) == [11, 13]
    assert sorted(row["user"] for row in harness.output("unpaid")) == [0, 2, 4]
    assert harness.state("matched") == []
