"""Which timers may be set, and that setting them again and again never holds an epoch up (D3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import OperatorFailed
from penstock.operators.process import firing
from penstock.testing import Harness, stream_of

MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("ts", MOMENT)])
START = datetime(2026, 1, 1, tzinfo=UTC)
ROW = {"k": 1, "ts": START}


class Timed(pen.KeyedProcess):
    """Emits when a timer fires, then does `again`; `first` is done for rows."""

    output = "name string"
    fired = pen.value_state("bigint")

    def __init__(self, first: Any, again: Any = lambda timers, time: None, times: int | None = None) -> None:
        self.first, self.again, self.times = first, again, times

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        self.first(timers, rows[0]["ts"])

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
        out.emit(name=timers.name)
        state.fired = (state.fired or 0) + 1
        if self.times is None or state.fired < self.times:
            self.again(timers, time)


class Untimed(pen.KeyedProcess):
    """Takes timers, and would not hear of one."""

    output = "name string"

    def __init__(self, first: Any) -> None:
        self.first = first

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        self.first(timers, rows[0]["ts"])


def harness(process: Any, **options: Any) -> Harness:
    return Harness(stream_of(SCHEMA, event_time="ts").key_by("k").process(process, name="p"), **options)


@pytest.mark.parametrize("set_one", [lambda t, ts: t.after("1 s"), lambda t, ts: t.at(ts)])
def test_a_timer_in_a_class_without_on_timer_is_refused(set_one: Any) -> None:
    with pytest.raises(OperatorFailed, match=r"there is no on_timer\(\)"):
        harness(Untimed(set_one)).feed([ROW])


def test_the_time_alone_needs_no_on_timer() -> None:
    harness(Untimed(lambda timers, ts: (timers.now, timers.watermark, timers.cancel("a")))).feed([ROW])


def test_a_timer_in_event_time_on_a_stream_without_it_is_refused() -> None:
    stream = stream_of(SCHEMA).key_by("k")
    with pytest.raises(OperatorFailed, match="in event time, which this stream does not have"):
        Harness(stream.process(Timed(lambda timers, ts: timers.at(ts)))).feed([ROW])
    patient = Harness(stream.process(Timed(lambda timers, ts: timers.after("1 s", "a"))))
    patient.feed([ROW])
    assert patient.pass_time("1 s") == [{"name": "a"}]


def test_connected_streams_have_event_time_if_one_of_them_has() -> None:
    class Both(pen.ConnectProcess):
        inputs = ("a", "b")
        output = "name string"

        def process(self, port: str, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
            timers.at(rows[0]["ts"], "a")

        def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
            out.emit(name=timers.name)

    def running(**time: Any) -> Harness:
        other = stream_of(SCHEMA, "b").key_by("k")
        return Harness(stream_of(SCHEMA, "a", **time).key_by("k").connect(other, process=Both))

    timed = running(event_time="ts")
    assert timed.feed(a=[ROW], b=[]) + timed.settle() == [{"name": "a"}]
    with pytest.raises(OperatorFailed, match="in event time"):
        running().feed(a=[ROW], b=[])


@pytest.mark.parametrize(
    ("set_one", "message"),
    [
        (lambda t, ts: t.after("1 s", 5), "called 5"),
        (lambda t, ts: t.at(ts, None), "called None"),
        (lambda t, ts: t.cancel(b"a"), "called b'a'"),
        (lambda t, ts: t.at(ts, "\ud83d"), "called '"),
        (lambda t, ts: t.at(None), "set to None"),
        (lambda t, ts: t.at(1.5), "set to 1.5"),
        (lambda t, ts: t.at(2**63), "set to 9223372036854775808"),
        (lambda t, ts: t.at(-(2**62)), "set to -4611686018427387904"),
        (lambda t, ts: t.after(10**15), "timers.after=1000000000000000"),
        (lambda t, ts: t.after("-1 s"), "timers.after"),
    ],
)
def test_a_timer_with_a_wrong_name_or_moment_is_refused(set_one: Any, message: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        harness(Timed(set_one)).feed([ROW])
    assert message in str(caught.value)


def test_a_watermark_beyond_the_years_of_python_is_the_last_moment() -> None:
    seen: list[datetime | None] = []
    far = pa.table({"k": [1], "ts": pa.array([1_767_225_600_000 * 10**6], MOMENT)}, schema=SCHEMA)

    class Looking(pen.KeyedProcess):
        output = "k bigint"

        def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
            seen.append(timers.watermark)

    without_time = stream_of(SCHEMA, event_time="ts").map_batches(lambda batch: batch.select(["k"]), "k bigint")
    running = Harness(without_time.key_by("k").process(Looking))
    running.feed(far)
    for _ in range(3):
        running.feed([ROW])
    assert datetime.max.replace(tzinfo=UTC) in seen


def test_a_timer_that_sets_itself_for_now_fires_once_per_epoch() -> None:
    running = harness(Timed(lambda timers, ts: timers.after(0, "a"), lambda timers, time: timers.after(0, "a")))
    running.feed([ROW])
    assert running.settle() == [{"name": "a"}]
    for _ in range(3):
        assert running.pass_time("1 s") == [{"name": "a"}]


@pytest.mark.parametrize("earlier_s", [0, 5])
@pytest.mark.parametrize("name", ["a", "b"])
def test_a_timer_that_sets_one_that_is_not_later_fires_once_per_epoch(name: str, earlier_s: int) -> None:
    def again(timers: Any, time: datetime) -> None:
        timers.at(time - timedelta(seconds=earlier_s), name)

    running = harness(Timed(lambda timers, ts: timers.at(ts, "a"), again, times=4))
    running.feed([ROW])
    epochs = [running.run() for _ in range(5)]
    assert [len(rows) for rows in epochs] == [1, 1, 1, 1, 0]
    assert running.state("p", "timers") == running.state("p", "event_timers") == []


def test_a_timer_of_processing_time_may_set_one_that_event_time_has_passed() -> None:
    running = harness(
        Timed(lambda timers, ts: timers.after("1 s", "a"), lambda timers, time: timers.at(0, "b"), times=2)
    )
    running.feed([ROW])
    running.settle()
    assert running.pass_time("1 s") == [{"name": "a"}, {"name": "b"}]


def test_a_long_chain_of_timers_is_cut_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2: the barrier is looked at in between, and other timers of the key keep their turn."""
    monkeypatch.setattr(firing, "_CHAINED_MAX", 10)

    def first(timers: Any, time: datetime) -> None:
        timers.at(time + timedelta(seconds=1), "tick")
        timers.at(time + timedelta(seconds=31, milliseconds=500), "other")
        timers.at(time + timedelta(seconds=100), "last")

    def again(timers: Any, time: datetime) -> None:
        if timers.name == "tick" and time < START + timedelta(seconds=60):
            timers.at(time + timedelta(seconds=1), "tick")

    running = harness(Timed(first, again))
    running.feed([ROW])
    running.feed([{"k": 2, "ts": START + timedelta(seconds=150)}])
    names = [row["name"] for row in running.run()]
    assert names == ["tick"] * 31 + ["other"] + ["tick"] * 29 + ["last"]
    assert running.settle() == []
    assert [row["k"] for row in running.state("p", "timers")] == [2, 2, 2]
