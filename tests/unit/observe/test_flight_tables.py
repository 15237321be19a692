"""Rows in flight as Arrow: exactly those that the engine has not processed yet, whoever is to read them (G1, E3).

Each row has a number. What an operator has seen and what is in flight must be all rows that were fed, each once, after
any epochs, crashes and rescales; and what was in flight is what the next epochs process, in that order per key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.observe.tables.opened import OpenFolder
from penstock.testing import Harness, stream_of

NUMBERED = pa.schema({"user": pa.int64(), "number": pa.int64()})


class HandOn(pen.KeyedProcess):
    output = NUMBERED
    seen = pen.value_state("bigint")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        rows = list(rows)
        state.seen = (state.seen or 0) + len(rows)
        out.emit_many(rows)


class HandOnBoth(pen.ConnectProcess):
    inputs = ("a", "b")
    output = NUMBERED
    seen = pen.broadcast_map("bigint", "bigint")

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many(list(rows))

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        for row in rows:
            broadcast.seen[row["number"]] = row["user"]


async def answer(row: dict[str, Any]) -> dict[str, Any]:
    return row


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def one() -> Any:
    return stream_of(NUMBERED)


CASES: dict[str, Callable[[], Any]] = {
    "rows without a key": lambda: one().map_batches(same, name="it"),
    "rows with a key": lambda: one().key_by("user").process(HandOn, name="it"),
    "two stages": lambda: one().key_by("user").process(HandOn, name="a").key_by("number").process(HandOn, name="b"),
    "calls": lambda: one().map_async(answer, concurrency=3, name="it"),
    "calls behind a key": lambda: (
        one().key_by("user").process(HandOn, name="a").map_async(answer, concurrency=3, name="b")
    ),
    "deduplicate": lambda: one().key_by("number").deduplicate(name="it"),
    "two sources": lambda: stream_of(NUMBERED, "a").union(stream_of(NUMBERED, "b")).key_by("user").process(HandOn),
}


def numbers_in_flight(harness: Harness) -> list[int]:
    look = OpenFolder(harness._store)
    return [n for edge in look.edges for n in look.in_flight(edge).to_table().column("number").to_pylist()]


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 100_000))
def test_what_came_out_and_what_is_in_flight_are_all_rows_once(name: str, seed: int) -> None:
    random = Random(seed)
    harness = Harness(CASES[name](), parallelism=random.choice([1, 2, 3]), steps=random.choice([1, 2, 3]), seed=seed)
    fed = 0
    for _ in range(random.randrange(1, 5)):
        count = random.randrange(1, 40)
        rows = [{"user": random.randrange(7), "number": fed + n} for n in range(count)]
        fed += count
        if name == "two sources":
            cut = random.randrange(count)
            harness.feed(a=rows[:cut], b=rows[cut:])
        else:
            harness.feed(rows)
        match random.randrange(4):
            case 0:
                harness.rescale(random.choice([1, 2, 4]))
            case 1:
                harness.crash()
        waiting = numbers_in_flight(harness)
        assert len(waiting) == harness.rows_in_flight
        out = [row["number"] for row in harness.output()]
        assert Counter([*out, *waiting]) == Counter(range(fed))
    expected = Counter(numbers_in_flight(harness))
    before = len(harness.output())
    harness.settle()
    assert Counter(row["number"] for row in harness.output()[before:]) == expected
    assert numbers_in_flight(harness) == []


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 100_000))
def test_rows_of_a_key_are_shown_in_the_order_in_which_they_are_processed(seed: int) -> None:
    random = Random(seed)
    harness = Harness(CASES["rows with a key"](), parallelism=2, steps=1, seed=seed)
    for batch in range(3):
        harness.feed([{"user": random.randrange(4), "number": batch * 100 + n} for n in range(40)])
    look = OpenFolder(harness._store)
    shown = {user: look.in_flight(key=user).to_table().column("number").to_pylist() for user in range(4)}
    before = len(harness.output())
    harness.settle()
    later = harness.output()[before:]
    assert shown == {user: [row["number"] for row in later if row["user"] == user] for user in range(4)}


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 100_000))
def test_broadcast_rows_are_in_flight_until_every_subtask_has_them(seed: int) -> None:
    random = Random(seed)
    keyed, told = stream_of(NUMBERED, "a").key_by("user"), stream_of(NUMBERED, "b").broadcast()
    harness = Harness(keyed.connect(told, process=HandOnBoth, name="it"), parallelism=2, steps=random.choice([1, 2]))
    for batch in range(3):
        rows = [{"user": random.randrange(5), "number": batch * 50 + n} for n in range(20)]
        harness.feed(a=rows, b=[{**row, "number": row["number"] + 1000} for row in rows[:5]])
        look = OpenFolder(harness._store)
        edges = look.manifest.edges
        for edge, state in edges.items():
            assert look.in_flight(edge).count() == state.rows_in_flight
        out = [row["number"] for row in harness.output()]
        waiting = look.in_flight("a-to-it").to_table().column("number").to_pylist()
        assert Counter([*out, *waiting]) == Counter(batch_ * 50 + n for batch_ in range(batch + 1) for n in range(20))
        seen = {row["key"] for row in look.state("it", "seen").to_pylist()}
        still = {number for number in numbers_in_flight(harness) if number >= 1000}
        assert seen | still == {b * 50 + n + 1000 for b in range(batch + 1) for n in range(5)}
