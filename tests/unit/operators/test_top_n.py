"""The best rows of each key against sorting (D2)."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError
from penstock.operators.top_n.top_n import RunningTop, WindowTop
from penstock.operators.top_n.top_rows import top_rows
from penstock.operators.window.window_aggregate import WindowAggregate
from penstock.operators.window.windows import RegularWindow
from penstock.testing import Harness, stream_of
from tests.support.operator_harness import Rows, plain, run_epochs
from tests.support.window_harness import Epoch, Windows
from tests.unit.operators.test_windows import at

SCHEMA = pa.schema([
    ("k", pa.int64()), ("price", pa.float64()), ("item", pa.string()), ("ts", pa.timestamp("us", "UTC")),
])  # fmt: skip
PRICES = st.none() | st.integers(-3, 3).map(float) | st.sampled_from([math.nan, -0.0])
ROW = st.tuples(st.integers(0, 3), PRICES, st.none() | st.text(max_size=2), st.integers(0, 60))
EPOCHS = st.lists(st.tuples(st.integers(1, 3), st.lists(st.lists(ROW, max_size=8), max_size=3)), min_size=1, max_size=5)


def row_of(values: tuple[Any, ...]) -> dict[str, Any]:
    k, price, item, ts = values
    return {"k": k, "price": price, "item": item, "ts": at(ts)}


def batch_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(map(row_of, rows)), schema=SCHEMA)


def best(rows: Rows, by: str, n: int, *, ascending: bool) -> Rows:
    def place(row: dict[str, Any]) -> Any:
        value = row[by]
        if by == "item":
            return [code if ascending else -code for code in value.encode()] + ([] if ascending else [1])
        return (math.isnan(value), 0 if math.isnan(value) else value) if ascending else (
            not math.isnan(value), 0 if math.isnan(value) else -value)  # fmt: skip

    return sorted((row for row in rows if row[by] is not None), key=place)[:n]


def comparable(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(plain(value) for value in row.values())


@settings(deadline=None, max_examples=40)
@given(epochs=EPOCHS, n=st.integers(1, 3), ascending=st.booleans(), by=st.sampled_from(["price", "item"]))
def test_the_ranks_that_changed_make_the_current_list(epochs: Any, n: int, ascending: bool, by: str) -> None:
    """D2: a table keyed by key and rank holds the n best at any time, and no rank is emitted for nothing."""
    spec = RunningTop("top", SCHEMA, ("k",), by, n, ascending)
    batches = [(parallelism, [batch_of(rows) for rows in slices]) for parallelism, slices in epochs]
    table: dict[tuple[int, int], tuple[Any, ...]] = {}
    history: Rows = []
    for (_, slices), emitted in zip(epochs, run_epochs(spec, ["k"], batches), strict=True):
        history += [row_of(row) for rows in slices for row in rows]
        for row in emitted:
            place, values = (row["k"], row["rank"]), comparable({name: row[name] for name in SCHEMA.names})
            assert table.get(place) != values, "nothing changed"
            table[place] = values
        wanted = {
            (key, rank): comparable(row)
            for key in range(4)
            for rank, row in enumerate(
                best([row for row in history if row["k"] == key], by, n, ascending=ascending), start=1
            )
        }
        assert table == wanted


@settings(deadline=None, max_examples=30)
@given(slices=st.lists(st.tuples(st.integers(0, 20), st.lists(ROW, max_size=8)), max_size=5), n=st.integers(1, 3))
def test_each_window_s_list_is_emitted_when_it_closes(slices: Any, n: int) -> None:
    top = top_rows("top", SCHEMA, ("k",), "price", n, ascending=False)
    lists = WindowAggregate("top", SCHEMA, ("k",), "ts", RegularWindow(20, 20), {"rows": top})
    spec = WindowTop("top", lists, top)
    kept: dict[tuple[int, int], Rows] = {}
    watermark = 0
    with Windows(spec, ["k"]) as run:
        for number, (step, rows) in enumerate(slices):
            watermark += step
            run.run(Epoch(number % 3 + 1, [(watermark, batch_of(rows))]))
            for row in rows:
                start = row[3] // 20 * 20
                if start + 20 > watermark:
                    kept.setdefault((row[0], start), []).append(row_of(row))
        run.run(Epoch(2, [(250, batch_of([]))]))
    wanted = [
        comparable({"k": key, "start": at(start), "end": at(start + 20), "rank": rank, **row})
        for (key, start), rows in kept.items()
        for rank, row in enumerate(best(rows, "price", n, ascending=False), start=1)
    ]
    got = [
        comparable({"k": row["k"], "start": row["window_start"], "end": row["window_end"], "rank": row["rank"],
                    **{name: row[name] for name in SCHEMA.names}})
        for row in run.rows()
    ]  # fmt: skip
    assert Counter(got) == Counter(wanted)


def test_ranks_with_nothing_or_nan_in_other_columns_are_emitted_once() -> None:
    """D2: a column of nothing but null, and NaN within a list, are the same as before."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("void", pa.null()), ("list", pa.list_(pa.float64()))])
    harness = Harness(stream_of(schema).key_by("k").top_n(2, by="v"))
    row = {"k": 1, "void": None, "list": [math.nan]}
    assert [row["rank"] for row in harness.feed([{**row, "v": 2}])] == [1]
    assert [row["rank"] for row in harness.feed([{**row, "v": 1}])] == [2]


@pytest.mark.parametrize(
    ("n", "by", "words"),
    [(0, "price", ["the 0 best"]), (1, "k", ["no key"]), (1, "nothing", ["needs the column 'nothing'"])],
)
def test_what_cannot_work_is_refused(n: int, by: str, words: list[str]) -> None:
    """E5"""
    with pytest.raises(PipelineError) as caught:
        RunningTop("top", SCHEMA, ("k",), by, n, ascending=False)
    for word in words:
        assert word in str(caught.value)
