"""Deduplicate against a dictionary, with barriers, crashes and rescaling (D4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.graph.compiler import compile_pipeline
from penstock.graph.nodes import SinkNode
from penstock.sinks.discard import Discard
from penstock.testing import Harness, stream_of
from tests.support.evolving import words

SCHEMA = pa.schema([("user", pa.string()), ("ts", pa.timestamp("us", "UTC")), ("part", pa.int64()), ("n", pa.int64())])
START = datetime(2026, 1, 1, tzinfo=UTC)

ROW = st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(0, 40) | st.none(), st.integers(0, 2))
BATCHES = st.lists(st.lists(ROW, max_size=12), min_size=1, max_size=5)


def rows_of(batches: list[list[tuple[Any, Any, int]]]) -> list[list[dict[str, Any]]]:
    n = 0
    made = []
    for batch in batches:
        rows = []
        for user, second, part in batch:
            ts = None if second is None else START + timedelta(seconds=second)
            rows.append({"user": user, "ts": ts, "part": part, "n": n})
            n += 1
        made.append(rows)
    return made


def model(batches: list[list[dict[str, Any]]], within: int | None, columns: tuple[str, ...]) -> tuple[list, list]:
    """What is kept and what is late: rows are seen with the watermark of the micro-batches before, 5 s behind."""
    until: dict[Any, Any] = {}
    kept, late = [], []
    newest: datetime | None = None
    for batch in batches:
        watermark = None if newest is None else newest - timedelta(seconds=5)
        for row in batch:
            key = tuple(row[column] for column in columns)
            if within is None:
                if key not in until:
                    until[key] = None
                    kept.append(row["n"])
            elif row["ts"] is None or (watermark is not None and row["ts"] < watermark):
                late.append(row["n"])
            elif key not in until or row["ts"] > until[key]:
                until[key] = row["ts"] + timedelta(seconds=within)
                kept.append(row["n"])
        newest = max([row["ts"] for row in batch if row["ts"]] + ([newest] if newest else []), default=None)
    return kept, late


@pytest.mark.parametrize("within", [None, 0, 3, 15])
@pytest.mark.parametrize("columns", [(), ("part",)])
@settings(deadline=None, max_examples=12)
@given(
    batches=BATCHES,
    chain=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    crash=st.integers(0, 5),
    steps=st.sampled_from([None, 1, 3]),
)
def test_the_first_row_of_each_key_is_kept_whatever_happens_in_between(
    within: int | None,
    columns: tuple[str, ...],
    batches: list[list[tuple[Any, Any, int]]],
    chain: list[int],
    crash: int,
    steps: int | None,
) -> None:
    """D4, A8, A10: rows that wait in flight are judged by the watermark they arrived with."""
    rows = rows_of(batches)
    span = None if within is None else f"{within} s"
    stream = (
        stream_of(SCHEMA, event_time="ts", watermark="5 s").key_by("user").deduplicate(within=span, columns=columns)
    )
    outputs = {} if within is None else {"late": stream.side("late")}
    harness = Harness(stream, parallelism=chain[0], steps=steps, **outputs)
    for number, batch in enumerate(rows):
        harness.rescale(chain[number % len(chain)])
        if number == crash:
            harness.crash()
        harness.feed(batch)
    harness.settle()
    kept, late = model(rows, within, ("user", *columns))
    assert sorted(row["n"] for row in harness.output()) == kept
    if within is not None:
        assert sorted(row["n"] for row in harness.output("late")) == late


def test_keys_are_forgotten_as_the_watermark_passes() -> None:
    """D4, D6: state stays small however many keys come by."""
    stream = stream_of(SCHEMA, event_time="ts").key_by("user").deduplicate(within="10 s", name="once")
    harness = Harness(stream, parallelism=1)
    for minute in range(20):
        ts = START + timedelta(minutes=minute)
        rows = [{"user": f"{minute} {n}", "ts": ts, "part": 0, "n": n} for n in range(50)]
        assert len(harness.feed(rows + rows)) == 50
    assert len(harness.state("once")) <= 150


@pytest.mark.parametrize(
    ("before", "after", "fits"),
    [(None, "1 s", False), ("1 s", None, False), ("1 s", "1 h", True), (None, None, True)],
)
def test_a_restart_may_change_the_span_and_not_whether_there_is_one(
    before: str | None, after: str | None, fits: bool
) -> None:
    """E6: a key kept for ever has no end of its span that could be compared with a time."""
    keyed = stream_of(SCHEMA, event_time="ts").key_by("user")
    stored, current = (
        compile_pipeline([SinkNode("out", Discard(), keyed.deduplicate(within=within).node)]).shape()
        for within in (before, after)
    )
    assert ("refused" not in words(stored, current).values()) is fits


@pytest.mark.parametrize("operator", ["deduplicate", "window", "join"])
def test_event_times_finer_than_a_microsecond_are_cut(operator: str) -> None:
    """Watermarks are in microseconds."""
    schema = pa.schema([("user", pa.string()), ("ts", pa.timestamp("ns", "UTC"))])
    keyed = stream_of(schema, event_time="ts").key_by("user")
    streams = {
        "deduplicate": lambda: keyed.deduplicate(within="1 s"),
        "window": lambda: keyed.window(pen.tumbling_window("1 s")).aggregate(n=pen.count()),
        "join": lambda: keyed.join(stream_of(schema, "other", event_time="ts").key_by("user"), within="1 s"),
    }
    harness = Harness(streams[operator]())
    for seconds in (0, 5):
        times = pa.array([seconds * 10**9 + 1, seconds * 10**9 + 1_999]).cast(schema.field("ts").type)
        rows = pa.table([["a", "a"], times], schema=schema)
        harness.feed(source=rows, **({"other": rows} if operator == "join" else {}))
    harness.settle()
    assert len(harness.output()) == {"deduplicate": 2, "window": 1, "join": 8}[operator]


def test_within_needs_event_time() -> None:
    """E5."""
    with pytest.raises(pen.PenstockError, match="needs event time"):
        stream_of(SCHEMA).key_by("user").deduplicate(within="1 s")
    with pytest.raises(pen.PenstockError, match="'where' does not exist"):
        stream_of(SCHEMA).key_by("user").deduplicate(columns=("where",))
