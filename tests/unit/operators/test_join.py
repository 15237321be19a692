"""The interval join against nested loops, with barriers, crashes and rescaling (D4)."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.testing import Harness, stream_of

LEFT = pa.schema([("k", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("n", pa.int64())])
RIGHT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
START = datetime(2026, 1, 1, tzinfo=UTC)
DELAY = 6

ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 6))
BATCHES = st.lists(
    st.tuples(st.integers(0, 12), st.lists(ROW, max_size=8), st.lists(ROW, max_size=8)), min_size=1, max_size=5
)


def moment(second: int) -> datetime:
    return START + timedelta(seconds=second)


def tables(batches: list[Any]) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]]]]:
    """Time moves on from batch to batch; nobody is later than the watermarks allow."""
    made, n, base = [], 0, 0
    for step, lefts, rights in batches:
        base += step
        left = [{"k": k, "ts": moment(base + late), "n": n + i} for i, (k, late) in enumerate(lefts)]
        n += len(left)
        right = [{"k": k, "n": n + i, "at": moment(base + late)} for i, (k, late) in enumerate(rights)]
        n += len(right)
        made.append((left, right))
    return made


def oracle(lefts: list[Any], rights: list[Any], lower: int, upper: int, how: str) -> Counter[Any]:
    pairs = [
        (a, b)
        for a in lefts
        for b in rights
        if a["k"] is not None
        and a["k"] == b["k"]
        and timedelta(seconds=lower) <= b["at"] - a["ts"] <= timedelta(seconds=upper)
    ]
    result = Counter((a["k"], a["n"], b["n"]) for a, b in pairs)
    if how in ("left", "full"):
        met = {a["n"] for a, _ in pairs}
        result += Counter((a["k"], a["n"], None) for a in lefts if a["n"] not in met)
    if how in ("right", "full"):
        met = {b["n"] for _, b in pairs}
        result += Counter((b["k"], None, b["n"]) for b in rights if b["n"] not in met)
    return result


def joined(lower: int, upper: int, how: Any, **more: Any) -> pen.Stream:
    left = stream_of(LEFT, "left", event_time="ts", watermark=f"{DELAY} s").key_by("k")
    right = stream_of(RIGHT, "right", event_time="at", watermark=f"{DELAY} s").key_by("k")
    return left.join(right, within=(f"{lower} s", f"{upper} s"), how=how, name="join", **more)


@pytest.mark.parametrize("how", ["inner", "left", "right", "full"])
@pytest.mark.parametrize(("lower", "upper"), [(-5, 5), (0, 8), (-7, -2), (0, 0)])
@settings(deadline=None, max_examples=8)
@given(
    batches=BATCHES,
    chain=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    crash=st.integers(0, 5),
    steps=st.sampled_from([None, 1, 3]),
)
def test_all_pairs_and_only_those_come_out_whatever_happens_in_between(
    how: str, lower: int, upper: int, batches: list[Any], chain: list[int], crash: int, steps: int | None
) -> None:
    """D4, A10: each pair once; each row without a match once, when none can come any more."""
    given_rows = tables(batches)
    harness = Harness(joined(lower, upper, how), parallelism=chain[0], steps=steps)
    for number, (left, right) in enumerate(given_rows):
        harness.rescale(chain[number % len(chain)])
        if number == crash:
            harness.crash()
        harness.feed(left=left, right=right)
    end = [{"k": "end", "ts": moment(1000), "n": -1}], [{"k": "end", "n": -2, "at": moment(2000)}]
    harness.feed(left=end[0], right=end[1])
    harness.settle()
    lefts = [row for left, _ in given_rows for row in left]
    rights = [row for _, right in given_rows for row in right]
    got = Counter((row["k"], row["n"], row["n_right"]) for row in harness.output() if row["k"] != "end")
    assert got == oracle(lefts, rights, lower, upper, how)


def test_a_row_without_a_match_comes_out_as_soon_as_the_watermark_allows() -> None:
    """D4: and not before."""
    harness = Harness(joined(-5, 5, "left"))
    harness.feed(left=[{"k": "a", "ts": moment(10), "n": 1}], right=[{"k": "z", "n": 0, "at": moment(10)}])
    edge = moment(15 + DELAY)
    harness.feed(left=[{"k": "z", "ts": edge, "n": 2}], right=[{"k": "z", "n": 3, "at": edge}])
    harness.settle()
    assert [row["n"] for row in harness.output() if row["k"] == "a"] == [], "a right row at 15 s may still come"
    later = edge + timedelta(microseconds=1)
    harness.feed(left=[{"k": "z", "ts": later, "n": 4}], right=[{"k": "z", "n": 5, "at": later}])
    harness.settle()
    assert [row["n"] for row in harness.output() if row["k"] == "a"] == [1]


def test_late_rows_leave_on_the_side() -> None:
    """D4."""
    stream = joined(-5, 5, "full")
    harness = Harness(stream, left_late=stream.side("late_left"), right_late=stream.side("late_right"))
    harness.feed(left=[{"k": "a", "ts": moment(100), "n": 1}], right=[{"k": "a", "n": 2, "at": moment(100)}])
    harness.feed(
        left=[{"k": "a", "ts": moment(1), "n": 3}, {"k": "a", "ts": None, "n": 4}],
        right=[{"k": "a", "n": 5, "at": moment(1)}],
    )
    assert [row["n"] for row in harness.output("left_late")] == [3, 4]
    assert [row["n"] for row in harness.output("right_late")] == [5]


@pytest.mark.parametrize("through_stages", [False, True])
@settings(deadline=None, max_examples=25)
@given(
    batches=st.lists(
        st.tuples(*[st.lists(st.sampled_from([0, 10, 20, 30]), max_size=2)] * 2, st.booleans()), min_size=2, max_size=4
    ),
    steps=st.sampled_from([1, 2]),
)
@example(batches=[([0], [50], False), ([50], [0], False)], steps=1)
def test_a_row_does_not_become_late_while_it_waits_and_the_other_input_moves_on(
    through_stages: bool, batches: list[Any], steps: int
) -> None:
    """A10: also where it was behind its own source's watermark, but not behind the other one's when it arrived."""
    late: dict[int | None, set[int]] = {}
    for barrier in (None, steps):
        left, right = stream_of(LEFT, "left", event_time="ts"), stream_of(RIGHT, "right", event_time="at")
        if through_stages:
            left, right = (stream.key_by("n").deduplicate() for stream in (left, right))
        stream = left.key_by("k").join(right.key_by("k"), within="1 s")
        sides = {"left_late": stream.side("late_left"), "right_late": stream.side("late_right")}
        harness = Harness(stream, parallelism=1, steps=barrier, **sides)
        for number, (lefts, rights, quiet) in enumerate(batches):
            harness.feed(
                left=[{"k": "a", "ts": moment(second), "n": 10 * number + i} for i, second in enumerate(lefts)],
                right=[{"k": "a", "n": 10 * number + 5 + i, "at": moment(second)} for i, second in enumerate(rights)],
            )
            if quiet:
                harness.run()
        harness.settle()
        late[barrier] = {row["n"] for side in sides for row in harness.output(side)}
    assert late[steps] <= late[None]


def test_time_goes_on_though_both_inputs_always_have_rows_in_flight() -> None:
    """A10: what arrives carries the watermarks of the edges, and not that of what waits before it."""
    harness = Harness(joined(-1, 1, "left"), parallelism=1, steps=1)
    for number in range(30):
        harness.feed(
            left=[{"k": f"l{number}", "ts": moment(10 * number), "n": number}] * 2,
            right=[{"k": f"r{number}", "n": number, "at": moment(10 * number)}] * 2,
        )
        harness.run()
    assert harness.rows_in_flight > 20
    assert len({row["n"] for row in harness.output()}) > 4


@pytest.mark.parametrize("how", ["inner", "full"])
def test_state_is_dropped_as_watermarks_pass(how: str) -> None:
    """D6."""
    harness = Harness(joined(-5, 5, how), parallelism=1)
    for minute in range(30):
        ts = moment(60 * minute)
        harness.feed(
            left=[{"k": str(n), "ts": ts, "n": n} for n in range(20)],
            right=[{"k": str(n), "n": n, "at": ts} for n in range(20)],
        )
    assert len(harness.output()) == 600
    assert len(harness.state("join", "left")) <= 100
    assert len(harness.state("join", "right")) <= 100


def test_names_keys_and_event_time_of_the_result() -> None:
    """D4: one key column, suffixes for other names that both sides have, and event time on demand."""
    plain = joined(-5, 5, "inner")
    assert plain.schema.names == ["k", "ts", "n", "n_right", "at"]
    assert plain.event_time is None
    timed = joined(-5, 5, "full", suffixes=("_l", "_r"), event_time="when")
    assert timed.schema.names == ["k", "ts", "n_l", "n_r", "at", "when"]
    assert timed.event_time == "when"
    harness = Harness(timed)
    harness.feed(
        left=[{"k": "a", "ts": moment(10), "n": 1}, {"k": "b", "ts": moment(10), "n": 1}],
        right=[{"k": "a", "n": 2, "at": moment(13)}, {"k": "c", "n": 2, "at": moment(13)}],
    )
    harness.feed(left=[{"k": "z", "ts": moment(99), "n": 0}], right=[{"k": "z", "n": 0, "at": moment(99)}])
    harness.settle()
    assert {row["k"]: row["when"] for row in harness.output()} == {
        "a": moment(13),
        "b": moment(15),
        "c": moment(18),
        "z": moment(99),
    }


def test_keys_of_different_names_are_both_kept() -> None:
    """D4."""
    left = stream_of(LEFT, "left", event_time="ts").key_by("k")
    schema = pa.schema([("key", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    right = stream_of(schema, "right", event_time="at").key_by("key")
    harness = Harness(left.join(right, within="5 s"))
    assert harness.feed(left=[{"k": "a", "ts": moment(1), "n": 7}], right=[{"key": "a", "at": moment(2)}]) == [
        {"k": "a", "ts": moment(1), "n": 7, "key": "a", "at": moment(2)}
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"how": "outer"}, "how is 'outer'"),
        ({"within": ("5 s", "-5 s")}, "give the earlier bound first"),
        ({"suffixes": ("_x", "_x")}, "give two different ones"),
        ({"event_time": "n"}, "'n' is a column of the result twice"),
    ],
)
def test_a_join_that_cannot_be_made_is_refused(change: dict[str, Any], words: str) -> None:
    """E5."""
    left = stream_of(LEFT, "left", event_time="ts").key_by("k")
    right = stream_of(RIGHT, "right", event_time="at").key_by("k")
    with pytest.raises(pen.PenstockError, match="PEN-002") as caught:
        left.join(right, **{"within": "5 s", **change})
    assert words in str(caught.value)
    with pytest.raises(pen.PenstockError, match="needs event time"):
        left.join(stream_of(RIGHT, "plain").key_by("k"), within="5 s")
    with pytest.raises(pen.PenstockError, match="use the same types"):
        left.join(right_by_number(), within="5 s")


def test_a_checkpoint_knows_how_its_rows_are_stored() -> None:
    """E6: with another interval waiting rows would not be found, so it is another operator."""
    kinds = {upper: joined(0, upper, "inner").node.spec.kind for upper in (60, 61, 600)}  # type: ignore[union-attr]
    assert kinds[60] == kinds[61] != kinds[600]


def right_by_number() -> pen.KeyedStream:
    return stream_of(RIGHT, "right", event_time="at").key_by("n")
