"""Variance, distinct values, lists, quantiles and users' own aggregates against plain Python (D2)."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.collecting import ApproximateDistinct
from penstock.operators.aggregate.running import RunningAggregate
from penstock.operators.grouping import Groups, Numbered
from tests.support.operator_harness import Rows, plain, run_epochs

SCHEMA = pa.schema([
    ("k", pa.int64()), ("x", pa.float64()), ("n", pa.int32()), ("s", pa.string()), ("l", pa.list_(pa.int64())),
])  # fmt: skip
ROW = st.fixed_dictionaries({
    "k": st.integers(0, 3),
    "x": st.none() | st.integers(-40, 40).map(lambda n: n / 4) | st.sampled_from([math.nan, -0.0, 0.0]),
    "n": st.none() | st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3),
    "s": st.none() | st.sampled_from(["", "a", "b", "ab"]),
    "l": st.none() | st.lists(st.integers(0, 3), max_size=2),
})  # fmt: skip
EPOCHS = st.lists(
    st.tuples(st.integers(1, 3), st.lists(st.lists(ROW, max_size=12), max_size=3)), min_size=1, max_size=4
)


class Range(pen.UserAggregate):
    """Largest minus smallest number."""

    state = {"low": pa.int64(), "high": pa.int64()}  # noqa: RUF012
    output = pa.int64()

    def update(self, rows: pa.RecordBatch, groups: Groups) -> Any:
        values = rows.column("n").cast(pa.int64()).fill_null(0).to_numpy()
        return self._ends(values, values, groups)

    def merge(self, states: pa.RecordBatch, groups: Groups) -> Any:
        return self._ends(states["low"].to_numpy(), states["high"].to_numpy(), groups)

    def result(self, states: pa.RecordBatch) -> Any:
        return states["high"].to_numpy() - states["low"].to_numpy()

    @staticmethod
    def _ends(low: Any, high: Any, groups: Groups) -> Any:
        least, most = np.full(groups.count, 2**62), np.full(groups.count, -(2**62))
        np.minimum.at(least, groups.ids, low)
        np.maximum.at(most, groups.ids, high)
        return {"low": least, "high": pa.array(most)}


AGGREGATES: dict[str, Aggregate] = {
    "variance": pen.variance("n"),
    "var_pop": pen.var_pop("n"),
    "stddev": pen.stddev("n"),
    "stddev_pop": pen.stddev_pop("n"),
    "spread": pen.var_pop("x"),
    "xs": pen.count_distinct("x"),
    "ss": pen.count_distinct("s"),
    "about": pen.approx_count_distinct("s"),
    "list": pen.collect_list("l", 3),
    "set": pen.collect_set("x", 3),
    "range": Range(),
}


def known(rows: Rows, column: str) -> list[Any]:
    return [row[column] for row in rows if row[column] is not None]


def expected(rows: Rows) -> dict[str, Any]:
    numbers, floats = known(rows, "n"), known(rows, "x")
    spread = [value for value in floats if not math.isnan(value)]
    return {
        "variance": float(statistics.variance(numbers)) if len(numbers) > 1 else None,
        "var_pop": float(statistics.pvariance(numbers)) if numbers else None,
        "stddev": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "stddev_pop": statistics.pstdev(numbers) if numbers else None,
        "spread": None
        if not floats
        else float(statistics.pvariance(spread))
        if len(spread) == len(floats)
        else math.nan,
        "xs": len({plain(value) for value in floats}),
        "ss": len(set(known(rows, "s"))),
        "about": len(set(known(rows, "s"))),
        "list": known(rows, "l")[:3],
        "set": list(dict.fromkeys(plain(value) for value in floats))[:3],
        "range": max(row["n"] or 0 for row in rows) - min(row["n"] or 0 for row in rows),
    }


def close(got: Any, wanted: Any) -> bool:
    if isinstance(wanted, float):
        return plain(got) == plain(wanted) or got == pytest.approx(wanted, rel=1e-9, abs=1e-9)
    return [plain(item) for item in got] == wanted if isinstance(wanted, list) else got == wanted


@settings(deadline=None, max_examples=40)
@given(epochs=EPOCHS)
def test_each_epoch_emits_the_aggregates_of_everything_its_keys_have_seen(epochs: Any) -> None:
    """D2, with state flushed, opened again and rescaled between epochs."""
    spec = RunningAggregate("a", SCHEMA, ("k",), AGGREGATES)
    batches = [
        (parallelism, [pa.RecordBatch.from_pylist(rows, schema=SCHEMA) for rows in slices])
        for parallelism, slices in epochs
    ]
    history: dict[int, Rows] = {}
    for (_, slices), emitted in zip(epochs, run_epochs(spec, ["k"], batches), strict=True):
        touched = set()
        for row in (row for rows in slices for row in rows):
            touched.add(row["k"])
            history.setdefault(row["k"], []).append(row)
        assert {row["k"] for row in emitted} == touched
        for row in emitted:
            wanted = expected(history[row["k"]])
            assert {name for name, value in wanted.items() if not close(row[name], value)} == set(), (row, wanted)


def test_variance_of_large_numbers_that_are_close_to_each_other_keeps_its_digits() -> None:
    values = [1e9 + n / 8 for n in range(40)]
    rows = [{"k": 1, "x": value} for value in values]
    spec = RunningAggregate("a", SCHEMA, ("k",), {"v": pen.variance("x")})
    epochs = [(1, [pa.RecordBatch.from_pylist(rows[n : n + 7], schema=SCHEMA)]) for n in range(0, 40, 7)]
    assert run_epochs(spec, ["k"], epochs)[-1][0]["v"] == pytest.approx(statistics.variance(values), rel=1e-9)


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (pen.mean("v"), float),
        (pen.variance("v"), lambda _: 0.0),
        (pen.stddev_pop("v"), lambda _: 0.0),
        (pen.quantiles("v", [0.5]), lambda value: [float(value)]),
    ],
    ids=["mean", "variance", "stddev_pop", "quantiles"],
)
def test_an_integer_that_no_double_holds_counts_as_the_nearest_one(aggregate: Any, expected: Any, value: int) -> None:
    """D2, as in Spark."""
    batch = pa.RecordBatch.from_pydict({"k": [1, 1, 1], "v": pa.array([value, value, None], pa.int64())})
    spec = RunningAggregate("a", batch.schema, ("k",), {"out": aggregate})
    [[row]] = run_epochs(spec, ["k"], [(1, [batch])])
    assert row["out"] == expected(value)


@pytest.mark.parametrize("count", [10, 402, 5_000, 200_000])
def test_about_how_many_values_there_are_is_within_four_deviations(count: int) -> None:
    """Parts of any size give the same as the whole."""
    rsd = 0.05
    accumulator = ApproximateDistinct("v", ApproximateDistinct.size_for(rsd))
    values = np.repeat(np.arange(count), 2)
    parts = [
        accumulator.partial(pa.record_batch({"v": part}), Numbered(np.zeros(len(part), np.int64), 1))
        for part in np.array_split(values, 7)
        if len(part)
    ]
    together = pa.concat_arrays([part[0] for part in parts])
    combined = accumulator.combine([together], Numbered(np.zeros(len(parts), np.int64), 1))
    assert len(combined[0][0]) <= accumulator.size
    (estimate,) = accumulator.result(combined).to_pylist()
    assert abs(estimate - count) <= (0 if count < accumulator.size else 4 * rsd * count)


def test_quantiles_are_within_the_promised_rank_error() -> None:
    """The library's bound for a single rank is 1.33 % at 99 %; shares that have values before they are merged."""
    pytest.importorskip("datasketches")
    values = np.random.default_rng(7).permutation(50_000).astype(float)
    table = pa.table({"k": np.arange(50_000) % 2, "x": values}).cast(pa.schema([SCHEMA.field("k"), SCHEMA.field("x")]))
    spec = RunningAggregate("a", table.schema, ("k",), {"q": pen.quantiles("x", [0.01, 0.5, 0.99])})
    epochs = [(2, table.slice(start, 10_000).to_batches(3_000)) for start in range(0, 50_000, 10_000)]
    for row in run_epochs(spec, ["k"], epochs)[-1]:
        mine = np.sort(values[row["k"] :: 2])
        ranks = np.searchsorted(mine, row["q"]) / len(mine)
        assert np.abs(ranks - [0.01, 0.5, 0.99]).max() < 0.02


def test_quantiles_of_no_values_are_null_and_nan_does_not_count() -> None:
    pytest.importorskip("datasketches")
    spec = RunningAggregate("a", SCHEMA, ("k",), {"q": pen.quantiles("x", [0.5])})
    rows = [{"k": 1, "x": None}, {"k": 2, "x": math.nan}, {"k": 2, "x": 7.0}]
    (emitted,) = run_epochs(spec, ["k"], [(1, [pa.RecordBatch.from_pylist(rows, schema=SCHEMA)])])
    assert {row["k"]: row["q"] for row in emitted} == {1: None, 2: [7.0]}


class Reusing(pen.UserAggregate):
    """Computes into the same memory in every call, and gives it away."""

    state = {"total": pa.int64(), "moment": pa.timestamp("us")}  # noqa: RUF012
    output = pa.int64()

    def __init__(self) -> None:
        self.buffer = np.zeros(8, np.int64)

    def update(self, rows: pa.RecordBatch, groups: Groups) -> Any:
        return self._total(rows["n"].to_numpy(), groups)

    def merge(self, states: pa.RecordBatch, groups: Groups) -> Any:
        return self._total(states["total"].to_numpy().copy(), groups)

    def result(self, states: pa.RecordBatch) -> Any:
        self.buffer[: len(states)] = states["moment"].cast(pa.int64()).to_numpy()
        return pa.array(self.buffer[: len(states)])

    def _total(self, values: Any, groups: Groups) -> Any:
        total = self.buffer[: groups.count]
        total[:] = np.bincount(groups.ids, values, groups.count)
        return {"total": total, "moment": pa.array(total)}


def test_memory_that_a_user_s_aggregate_uses_again_changes_neither_parts_nor_results() -> None:
    """D2."""
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    spec = RunningAggregate("a", schema, ("k",), {"one": (one := Reusing()), "other": one})
    slices = [pa.record_batch([[k], [n]], schema=schema) for k, n in ((1, 10), (2, 20), (1, 1))]
    first, second = run_epochs(spec, ["k"], [(1, slices), (1, slices)])
    assert sorted(map(tuple, (row.values() for row in first))) == [(1, 11, 11), (2, 20, 20)]
    assert sorted(map(tuple, (row.values() for row in second))) == [(1, 22, 22), (2, 40, 40)]


class Broken(Range):
    """Gives what `answer` makes."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def update(self, rows: pa.RecordBatch, groups: Groups) -> Any:
        return self.answer(groups)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda groups: 1 // 0, ["ZeroDivisionError"]),
        (lambda groups: {"low": [1]}, ["wanted the state ['low', 'high']", "got ['low']"]),
        (lambda groups: [1, 2], ["got list"]),
        (lambda groups: {"low": [1], "high": [1]}, ["low has 1 values for 2 groups"]),
        (lambda groups: {"low": [1, 2], "high": ["a", "b"]}, ["high is declared as int64", "string"]),
    ],
)
def test_a_user_s_aggregate_that_fails_is_named(answer: Any, words: list[str]) -> None:
    """D8"""
    spec = RunningAggregate("totals", SCHEMA, ("k",), {"r": Broken(answer)})
    batch = pa.RecordBatch.from_pylist([{"k": 1, "n": 1}, {"k": 2, "n": 1}], schema=SCHEMA)
    with pytest.raises(OperatorFailed) as caught:
        run_epochs(spec, ["k"], [(1, [batch])])
    for word in ["totals", *words]:
        assert word in str(caught.value)


class Coded(Range):
    """State of a type that is stored nowhere."""

    state = {"low": pa.dictionary(pa.int32(), pa.string())}  # noqa: RUF012


class Undeclared(pen.UserAggregate):
    """Has neither state nor output."""


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pen.variance("s").bind("o", SCHEMA), ["variance(s) over a column of type string", "numbers"]),
        (lambda: pen.quantiles("s", [0.5]).bind("o", SCHEMA), ["quantiles(s)", "numbers"]),
        (lambda: pen.count_distinct("l").bind("o", SCHEMA), ["count_distinct(l)", "keys"]),
        (lambda: pen.collect_set("l", 3).bind("o", SCHEMA), ["collect_set(l)", "keys"]),
        (lambda: pen.collect_list("l", 0), ["limit=0"]),
        *(
            (partial(make("u").bind, "o", pa.schema([("u", pa.uint64())])), ["(u) over a column of type uint64"])
            for make in (pen.sum, partial(pen.collect_list, limit=3), partial(pen.collect_set, limit=3))
        ),
        (lambda: pen.approx_count_distinct("s", rsd=0), ["rsd=0"]),
        (lambda: pen.quantiles("x", [1.5]), ["shares=[1.5]"]),
        (lambda: Coded().bind("o", SCHEMA), ["dictionary", "not of dictionaries"]),
        (lambda: Undeclared().bind("o", SCHEMA), ["Undeclared() has state None", "Arrow types"]),
    ],
)
def test_what_cannot_work_is_refused(make: Any, words: list[str]) -> None:
    """E5"""
    with pytest.raises(PipelineError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)
