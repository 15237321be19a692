"""Timers, lists, maps, times to live and side outputs of user code, with barriers, crashes and rescaling (D3)."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import OperatorFailed
from penstock.testing import Harness, stream_of

EVENTS = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("do", pa.string()), ("n", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def event(user: int, second: float, do: str = "", n: int = 0) -> dict[str, Any]:
    return {"user": user, "ts": at(second), "do": do, "n": n}


def events(**time: Any) -> pen.KeyedStream:
    return stream_of(EVENTS, event_time="ts", **time).key_by("user")


class Alarms(pen.KeyedProcess):
    """`do` sets ("a", "b"), moves, cancels ("-a") timers n seconds after the row; "chain" sets one from the other."""

    output = pa.schema([("user", pa.int64()), ("name", pa.string()), ("time", pa.int64()), ("nth", pa.int64())])
    fired = pen.value_state(pa.int64())

    def process(self, key, rows, state, out, timers):
        for row in rows:
            if row["do"].startswith("-"):
                timers.cancel(row["do"][1:])
            elif row["do"]:
                timers.at(row["ts"] + timedelta(seconds=row["n"]), row["do"])

    def on_timer(self, key, time, state, out, timers):
        state.fired = (state.fired or 0) + 1
        assert timers.watermark >= time
        out.emit(user=key["user"], name=timers.name, time=int((time - START).total_seconds()), nth=state.fired)
        if timers.name == "chain":
            timers.at(time + timedelta(seconds=2), "link")


def alarms_model(batches: list[list[dict[str, Any]]]) -> dict[int, list[tuple[str, int]]]:
    """What fires for each key, in order: rows of a batch are seen with the watermark of the batches before."""
    pending: dict[int, dict[str, int]] = {}
    fired: dict[int, list[tuple[str, int]]] = {}
    newest: int | None = None
    for batch in [*batches, []]:
        for user, timers in pending.items():
            queue = [(time, name) for name, time in timers.items()]
            heapq.heapify(queue)
            while queue and newest is not None and queue[0][0] <= newest:
                time, name = heapq.heappop(queue)
                if timers.get(name) != time:
                    continue
                del timers[name]
                fired.setdefault(user, []).append((name, time))
                if name == "chain":
                    timers["link"] = time + 2
                    heapq.heappush(queue, (time + 2, "link"))
        for row in batch:
            mine = pending.setdefault(row["user"], {})
            second = int((row["ts"] - START).total_seconds())
            if row["do"].startswith("-"):
                mine.pop(row["do"][1:], None)
            elif row["do"]:
                mine[row["do"]] = second + row["n"]
            newest = second if newest is None else max(newest, second)
    return fired


EVENT = st.builds(
    event,
    st.integers(0, 3),
    st.integers(0, 30),
    st.sampled_from(["a", "b", "chain", "-a", "-chain", ""]),
    st.integers(-3, 12),
)
BATCHES = st.lists(st.lists(EVENT, max_size=8), min_size=1, max_size=5)


@settings(deadline=None, max_examples=40)
@given(batches=BATCHES, chain=st.lists(st.integers(1, 5), min_size=1, max_size=3), crash=st.integers(0, 5))
def test_event_timers_fire_in_order_per_key_whatever_happens_in_between(
    batches: list[list[dict[str, Any]]], chain: list[int], crash: int
) -> None:
    """D3, A10: moved, cancelled, set again by timers; each epoch at another parallelism, one of them lost."""
    harness = Harness(events().process(Alarms, name="alarms"), parallelism=chain[0])
    for number, batch in enumerate(batches):
        harness.rescale(chain[number % len(chain)])
        if number == crash:
            harness.crash()
        harness.feed(batch)
    harness.settle()
    harness.run()
    got: dict[int, list[tuple[str, int]]] = {}
    for row in sorted(harness.output(), key=lambda row: row["nth"]):
        got.setdefault(row["user"], []).append((row["name"], row["time"]))
    wanted = alarms_model(batches)
    assert {user: sorted(rows, key=lambda r: (r[1], r[0])) for user, rows in got.items()} == {
        user: sorted(rows, key=lambda r: (r[1], r[0])) for user, rows in wanted.items()
    }
    for user, rows in got.items():
        assert [row["nth"] for row in harness.output() if row["user"] == user] == list(range(1, len(rows) + 1))


def test_timers_of_one_key_fire_in_the_order_of_time() -> None:
    """D3: also one that a timer sets in between, and across key groups of different subtasks."""
    harness = Harness(events().process(Alarms, name="alarms"), parallelism=3)
    harness.feed([event(user, 0, do, n) for user in range(20) for do, n in [("late", 9), ("a", 2), ("chain", 4)]])
    harness.feed([event(99, 30)])
    harness.settle()
    for user in range(20):
        mine = [(row["name"], row["time"]) for row in harness.output() if row["user"] == user]
        assert mine == [("a", 2), ("chain", 4), ("link", 6), ("late", 9)]
    assert harness.state("alarms", "timers") == []
    assert harness.state("alarms", "event_timers") == []


def test_a_timer_set_by_a_timer_fires_after_another_one_of_the_same_moment() -> None:
    """D3: "link" is set for second 2 by "chain"; "a", which fires before it, must not make the key forget it."""
    harness = Harness(events().process(Alarms, name="alarms"))
    harness.feed([event(0, 0, "chain"), event(0, 2, "a")])
    harness.settle()
    assert [(row["name"], row["time"]) for row in harness.output()] == [("chain", 0), ("a", 2), ("link", 2)]
    assert harness.state("alarms", "timers") == []


def test_timers_of_one_moment_fire_by_name_wherever_a_step_ends() -> None:
    """The first step takes sixteen of them."""
    names = [f"{number:02d}" for number in range(50)]
    test = Harness(events().process(Alarms, name="alarms"), parallelism=1)
    test.feed([event(1, 0, name, 5) for name in reversed(names)])
    test.feed([event(2, 9)])
    test.settle()
    assert [row["name"] for row in test.output()] == names


def test_the_barrier_can_end_the_firing_of_many_timers() -> None:
    """A2, D3: 3,000 timers are due at once; epochs end before all have fired, and nothing is lost or fires twice."""

    class Both(Alarms):
        sides = {"copy": pa.schema([("user", pa.int64())])}  # noqa: RUF012 - as users write it

        def on_timer(self, key, time, state, out, timers):
            super().on_timer(key, time, state, out, timers)
            out.side("copy").emit(user=key["user"])

    stream = events().process(Both, name="alarms")
    harness = Harness(stream, parallelism=1, steps=1, copy=stream.side("copy"))
    harness.feed([event(user, 0, "a", 1) for user in range(3000)])
    harness.settle()
    harness.feed([event(0, 60)])
    epochs = 0
    while len(harness.output()) < 3000:
        harness.run()
        epochs += 1
        assert epochs < 100
    # How many depends on the machine: between two looks at the clock it fires as many as it can in 20 ms.
    assert epochs > 1
    assert sorted(row["user"] for row in harness.output()) == list(range(3000))
    harness.settle()
    assert len(harness.output()) == 3000
    assert sorted(row["user"] for row in harness.output("copy")) == list(range(3000))


class Reminder(pen.KeyedProcess):
    """Reminds once if a key is silent for ten seconds of processing time."""

    output = pa.schema([("user", pa.int64()), ("now", pa.timestamp("us", "UTC"))])

    def process(self, key, rows, state, out, timers):
        timers.after("10 s")

    def on_timer(self, key, time, state, out, timers):
        out.emit(user=key["user"], now=timers.now)


def test_processing_timers_fire_without_input() -> None:
    """D3: on the epoch's time; a new row of the key moves its timer."""
    harness = Harness(events().process(Reminder), now=START)
    harness.feed([event(1, 0), event(2, 0)])
    assert harness.pass_time("6 s") == []
    harness.feed([event(2, 0)])
    assert harness.pass_time("4 s") == [{"user": 1, "now": at(10)}]
    harness.rescale(5)
    harness.crash()
    assert harness.pass_time("20 s") == [{"user": 2, "now": at(30)}]
    assert harness.pass_time("1 h") == []


class Basket(pen.KeyedProcess):
    """Lists, maps, a value that is forgotten, and rows on the side."""

    output = pa.schema([("user", pa.int64()), ("items", pa.string()), ("counts", pa.string()), ("recent", pa.int64())])
    sides = {"odd": pa.schema([("n", pa.int64())])}  # noqa: RUF012 - as users write it
    items = pen.list_state(pa.int64())
    counts = pen.map_state(pa.string(), pa.int64())
    recent = pen.value_state(pa.int64(), ttl="10 s")

    def process(self, key, rows, state, out):
        for row in rows:
            if row["do"] == "clear":
                state.items.clear()
                state.counts.clear()
                state.recent = None
            elif row["do"] != "look":
                state.items.append(row["n"])
                state.counts[row["do"]] = state.counts.get(row["do"], 0) + 1
                state.recent = row["n"]
            if row["n"] % 2:
                out.side("odd").emit(n=row["n"])
            out.emit(user=key["user"], items=str(state.items), counts=str(state.counts), recent=state.recent)


def test_lists_and_maps_are_ordinary_python_and_survive() -> None:
    """D3."""
    stream = events().process(Basket, name="basket")
    harness = Harness(stream, odd=stream.side("odd"))
    harness.feed([event(1, 0, "x", 1), event(1, 0, "y", 2), event(2, 0, "x", 3)])
    harness.rescale(3)
    harness.crash()
    assert harness.feed([event(1, 0, "x", 4)]) == [
        {"user": 1, "items": "[1, 2, 4]", "counts": "{'x': 2, 'y': 1}", "recent": 4}
    ]
    assert sorted(row["n"] for row in harness.output("odd")) == [1, 3]
    assert harness.feed([event(1, 0, "clear", 0)]) == [{"user": 1, "items": "[]", "counts": "{}", "recent": None}]
    assert [row["user"] for row in harness.state("basket")] == [2], "a key without anything has no state"


def test_a_list_that_was_emitted_is_what_it_was_then() -> None:
    """D3: also if the state it came from is changed behind it."""

    class Flush(pen.KeyedProcess):
        output = pa.schema([("items", pa.list_(pa.int64())), ("counts", pa.map_(pa.string(), pa.int64()))])
        items = pen.list_state(pa.int64())
        counts = pen.map_state(pa.string(), pa.int64())

        def process(self, key, rows, state, out):
            for row in rows:
                state.items.append(row["n"])
                state.counts[row["do"]] = row["n"]
                out.emit(items=state.items, counts=state.counts)
            state.items.clear()
            state.counts.clear()

    assert Harness(events().process(Flush)).feed([event(1, 0, "x", 1), event(1, 0, "y", 2)]) == [
        {"items": [1], "counts": [("x", 1)]},
        {"items": [1, 2], "counts": [("x", 1), ("y", 2)]},
    ]


def test_a_value_is_forgotten_after_its_time_to_live() -> None:
    """D3: counted from the last write, and dropped from files when they are merged."""
    harness = Harness(events().process(Basket, name="basket"), parallelism=1)
    harness.feed([event(1, 0, "x", 7)])
    harness.pass_time("6 s")
    harness.feed([event(1, 0, "x", 7)])
    harness.pass_time("6 s")
    assert harness.feed([event(1, 0, "look")])[0]["recent"] == 7, "the same value was written again six seconds ago"
    harness.pass_time("5 s")
    assert harness.feed([event(1, 0, "look")])[0]["recent"] is None


class Seen(pen.KeyedProcess):
    output = pa.schema([("user", pa.int64()), ("seen", pa.bool_())])
    seen = pen.value_state(pa.bool_(), ttl="10 s")

    def process(self, key, rows, state, out):
        out.emit(user=key["user"], seen=bool(state.seen))
        state.seen = True


def test_what_has_expired_leaves_the_files() -> None:
    """D3, D6."""
    harness = Harness(events().process(Seen, name="seen"), parallelism=1)
    harness.feed([event(user, 0) for user in range(100)])
    harness.pass_time("20 s")
    assert all(not row["seen"] for row in harness.feed([event(user, 0) for user in range(50, 150)]))
    assert {row["user"] for row in harness.state("seen")} == set(range(50, 150))


def test_an_unknown_side_output_and_a_bad_time_name_the_record() -> None:
    """E5, D8."""

    class Wrong(Reminder):
        def process(self, key, rows, state, out, timers):
            if rows[0]["do"] == "side":
                out.side("nowhere").emit(n=1)
            timers.at("noon")

    with pytest.raises(OperatorFailed, match="no side output 'nowhere'"):
        Harness(events().process(Wrong)).feed([event(1, 0, "side")])
    with pytest.raises(OperatorFailed, match="'noon'"):
        Harness(events().process(Wrong)).feed([event(1, 0, "x")])


def test_a_class_with_on_timer_must_take_timers() -> None:
    """E5."""

    class Wrong(Reminder):
        def process(self, key, rows, state, out):
            pass

    with pytest.raises(pen.PenstockError, match="process\\(self, key, rows, state, out, timers\\)"):
        events().process(Wrong)
