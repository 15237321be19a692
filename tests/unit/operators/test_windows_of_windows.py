"""Windows over what windows emit, and what leaves a windowed stream on the side (D2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.operators.window.window_aggregate import WindowAggregate
from penstock.operators.window.windows import RegularWindow, SessionWindow, Window
from penstock.records import LATE
from penstock.testing import Harness, stream_of
from tests.support.window_harness import Epoch, Windows
from tests.unit.operators.test_windows import batch_of

SCHEMA = pa.schema([("site", pa.string()), ("page", pa.string()), ("ts", pa.timestamp("us", "UTC"))])
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def moment(second: int) -> datetime:
    return START + timedelta(seconds=second)


def clicks(*rows: tuple[str, int]) -> list[dict[str, Any]]:
    return [{"site": "a", "page": page, "ts": moment(second)} for page, second in rows]


def counts() -> pen.Stream:
    stream = stream_of(SCHEMA, event_time="ts")
    return stream.key_by("site", "page").window(pen.tumbling_window("10 s")).aggregate(n=pen.count(), name="counts")


@pytest.mark.parametrize("renamed", [False, True])
def test_a_result_counts_to_the_window_it_ended_in_also_under_another_name(renamed: bool) -> None:
    """D2: its end is the first moment after it."""
    stream, on = counts(), None
    if renamed:
        names = ["until" if name == "window_end" else name for name in stream.schema.names]
        schema = pa.schema([field.with_name(name) for field, name in zip(stream.schema, names, strict=True)])
        stream, on = stream.map_batches(lambda batch: batch.rename_columns(names), schema), "until"
    total = stream.key_by("site").window(pen.tumbling_window("30 s"), on=on).aggregate(n=pen.sum("n"))
    harness = Harness(total)
    harness.feed(clicks(("x", 0), ("x", 15), ("x", 25), ("x", 31)))
    harness.feed(clicks(("x", 1_000)))
    harness.settle()
    rows = [(row["window_start"], row["window_end"], row["n"]) for row in harness.output()]
    assert sorted(rows) == [(moment(0), moment(30), 3), (moment(30), moment(60), 1)]


def test_the_best_of_windowed_counts_are_written_as_one_says_it() -> None:
    """D2: the bounds are those of the outer window."""
    best = counts().key_by("site").top_n(2, by="n", window=pen.tumbling_window("20 s"))
    assert best.schema.names == ["site", "window_start", "window_end", "rank", "page", "n"]
    harness = Harness(best)
    harness.feed(clicks(("x", 0), ("x", 1), ("y", 2), ("y", 11), ("y", 12), ("y", 13), ("z", 14)))
    harness.feed(clicks(("x", 1_000)))
    harness.settle()
    rows = [(row["window_start"], row["rank"], row["page"], row["n"]) for row in harness.output()]
    assert sorted(rows) == [(moment(0), 1, "y", 3), (moment(0), 2, "x", 2)]


def test_bounds_of_windows_as_keys_of_windows_are_refused_with_a_way_out() -> None:
    """E5."""
    keyed = counts().key_by("site", "window_end").window(pen.tumbling_window("10 s"))
    for make in (lambda: keyed.aggregate(n=pen.sum("n")), lambda: keyed.top_n(2, by="n")):
        with pytest.raises(pen.PenstockError, match=r"(?s)PEN-002.*'window_end' is a key.*rename the column"):
            make()
    with pytest.raises(pen.PenstockError, match=r"(?s)PEN-002.*'window_end'.*the window's own"):
        counts().key_by("site").window(pen.tumbling_window("10 s")).top_n(2, by="window_end")


def test_a_key_may_have_the_name_of_what_top_n_stores() -> None:
    """Names of state are not the user's business."""
    schema = pa.schema([("rows", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    stream = stream_of(schema, event_time="ts").key_by("rows")
    for best in (stream.top_n(1, by="n"), stream.top_n(1, by="n", window=pen.tumbling_window("10 s"))):
        harness = Harness(best)
        harness.feed([{"rows": "a", "n": n, "ts": moment(n)} for n in (1, 2)])
        harness.feed([{"rows": "b", "n": 0, "ts": moment(1_000)}])
        harness.settle()
        assert [row["n"] for row in harness.output() if row["rows"] == "a"] == [2]


@pytest.mark.parametrize("window", [RegularWindow(10, 10), SessionWindow(10)])
def test_late_rows_have_the_columns_of_the_input_without_what_was_computed(window: Window) -> None:
    """D2: an expression is a column that only the aggregate wants."""
    given = batch_of([(1, 5, 7)])
    computed = given.append_column("amount * 2", pa.array([14]))
    spec = WindowAggregate(
        "w",
        computed.schema,
        ("user",),
        "ts",
        window,
        {"n": pen.sum("amount * 2")},
        late_columns=("user", "ts", "amount"),
    )
    assert spec.side_outputs[LATE] == given.schema
    with Windows(spec, ["user"]) as run:
        run.run(Epoch(1, [(1_000, computed)]))
    assert run.late == given.to_pylist()


@pytest.mark.parametrize("window", [pen.tumbling_window("1 s"), pen.session_window("1 s")])
def test_a_key_with_the_name_of_the_pane_is_refused(window: Window) -> None:
    """E5."""
    schema = pa.schema([("__pane", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
    keyed = stream_of(schema, event_time="ts").key_by("__pane").window(window)
    with pytest.raises(pen.PenstockError, match=r"PEN-002.*'__pane' is a state column twice"):
        keyed.aggregate(n=pen.count())
