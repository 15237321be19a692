"""Running aggregates against a dictionary, and what they refuse (D2)."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.aggregate import functions as pen
from penstock.operators.aggregate import gathered as held
from penstock.operators.aggregate import parts as module
from penstock.operators.aggregate.running import RunningAggregate
from penstock.operators.aggregate.running_operator import gathering_for
from penstock.operators.base import OperatorContext
from penstock.records import MAIN_STATE, Records
from tests.support.operator_harness import Hashes, Rows, few_hashes, hashes_of, one_hash, plain, plain_rows, run_epochs

INPUT = pa.schema([
    ("user", pa.string()), ("x", pa.float64()),
    ("amount", pa.int32()), ("price", pa.float64()), ("cost", pa.decimal128(6, 2)), ("name", pa.string()),
    ("day", pa.date32()), ("tags", pa.list_(pa.int64())),
])  # fmt: skip
KEYS = ("user", "x")
QUARTERS = st.integers(-1000, 1000).map(lambda n: n / 4)  # sums of these are exact in any order
ROW = st.fixed_dictionaries({
    "user": st.sampled_from(["a", "b", "", None]),
    "x": st.sampled_from([0.0, -0.0, 2.5, math.nan, -math.nan, None]),
    "amount": st.none() | st.integers(-(2**31), 2**31 - 1),
    "price": st.none() | QUARTERS | st.sampled_from([math.nan, -0.0]),
    "cost": st.none() | st.decimals(-9999, 9999, places=2),
    "name": st.none() | st.text(max_size=3),
    "day": st.none() | st.dates(),
    "tags": st.none() | st.lists(st.integers(0, 9), max_size=2),
})  # fmt: skip
SLICE = st.lists(ROW, max_size=12)
EPOCHS = st.lists(st.tuples(st.integers(1, 3), st.lists(SLICE, max_size=4)), min_size=1, max_size=4)

AGGREGATES = {
    "n": pen.count(),
    "names": pen.count("name"),
    "total": pen.sum("amount"),
    "turnover": pen.sum("price"),
    "costs": pen.sum("cost"),
    "cheapest": pen.min("price"),
    "dearest": pen.max("price"),
    "a": pen.min("name"),
    "z": pen.max("name"),
    "newest": pen.max("day"),
    "typical": pen.mean("amount"),
    "typical_cost": pen.mean("cost"),
    "first_name": pen.first("name"),
    "last_name": pen.last("name"),
    "first_known": pen.first("tags", ignore_nulls=True),
    "last_known": pen.last("tags", ignore_nulls=True),
    "first_amount": pen.first("amount"),
    "last_price": pen.last("price", ignore_nulls=True),
}
NARROW = ("n", "total", "turnover", "cheapest", "dearest", "newest", "typical", "first_amount", "last_price")


def batch_of(rows: Rows, schema: pa.Schema = INPUT) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def over(rows: Rows, column: str, function: Callable[[list[Any]], Any]) -> Any:
    """A function of the values that are not null; null if there is none."""
    values = [row[column] for row in rows if row[column] is not None]
    return function(values) if values else None


def nan_last(value: float) -> tuple[bool, float]:
    return (math.isnan(value), value)


def expected(rows: Rows) -> dict[str, Any]:
    return {
        "n": len(rows),
        "names": sum(row["name"] is not None for row in rows),
        "total": over(rows, "amount", sum),
        "turnover": over(rows, "price", sum),
        "costs": over(rows, "cost", sum),
        "cheapest": over(rows, "price", lambda values: min(values, key=nan_last)),
        "dearest": over(rows, "price", lambda values: max(values, key=nan_last)),
        "a": over(rows, "name", lambda values: min(values, key=str.encode)),
        "z": over(rows, "name", lambda values: max(values, key=str.encode)),
        "newest": over(rows, "day", max),
        "typical": over(rows, "amount", lambda values: sum(values) / len(values)),
        "typical_cost": over(rows, "cost", lambda values: (sum(values) / len(values)).quantize(
            Decimal("0.000001"), "ROUND_HALF_UP")),
        "first_name": rows[0]["name"],
        "last_name": rows[-1]["name"],
        "first_known": over(rows, "tags", lambda values: values[0]),
        "last_known": over(rows, "tags", lambda values: values[-1]),
        "first_amount": rows[0]["amount"],
        "last_price": over(rows, "price", lambda values: values[-1]),
    }  # fmt: skip


def by_key(rows: Rows, keys: tuple[str, ...]) -> dict[tuple[Any, ...], dict[str, Any]]:
    found = {tuple(plain(row[key]) for key in keys): row for row in plain_rows(rows)}
    assert len(found) == len(rows), "one row per key"
    return found


def check_against_history(
    epochs: list[tuple[int, list[Rows]]],
    hashes: Hashes,
    keys: tuple[str, ...] = KEYS,
    outputs: Iterable[str] = AGGREGATES,
) -> None:
    spec = RunningAggregate("totals", INPUT, keys, {name: AGGREGATES[name] for name in outputs})
    batches = [(parallelism, [batch_of(rows) for rows in slices]) for parallelism, slices in epochs]
    history: dict[tuple[Any, ...], Rows] = {}
    for (_, slices), emitted in zip(epochs, run_epochs(spec, keys, batches, hashes), strict=True):
        touched = set()
        for row in (row for rows in slices for row in rows):
            key = tuple(plain(row[name]) for name in keys)
            touched.add(key)
            history.setdefault(key, []).append(row)
        wanted = []
        for key in touched:
            results = expected(history[key])
            wanted.append({**dict(zip(keys, key, strict=True)), **{name: results[name] for name in outputs}})
        assert by_key(emitted, keys) == by_key(wanted, keys)


@pytest.mark.parametrize("hashes", [hashes_of, few_hashes, one_hash])
@settings(deadline=None, max_examples=40)
@given(epochs=EPOCHS)
def test_each_epoch_emits_the_aggregates_of_everything_its_keys_have_seen(
    hashes: Hashes, epochs: list[tuple[int, list[Rows]]]
) -> None:
    """D2, with state flushed, opened again and rescaled between epochs."""
    check_against_history(epochs, hashes)


@settings(deadline=None, max_examples=40)
@given(epochs=EPOCHS)
def test_parts_that_pile_up_are_combined_in_order(epochs: list[tuple[int, list[Rows]]]) -> None:
    with mock.patch.object(module, "_COMBINE_ROWS_MIN", 3):
        check_against_history(epochs, hashes_of)


@settings(deadline=None, max_examples=60)
@given(epochs=EPOCHS)
def test_slices_held_back_count_in_the_order_in_which_they_came(epochs: list[tuple[int, list[Rows]]]) -> None:
    """Slices with nulls, and those that are too large, are not held back."""
    with mock.patch.object(held, "ROWS_MAX", 6):
        check_against_history(epochs, hashes_of, ("x",), NARROW)


def test_narrow_rows_are_held_back_unless_an_aggregate_is_dear() -> None:
    narrow = {"n": pen.count(), "total": pen.sum("amount"), "newest": pen.max("day")}
    assert gathering_for(RunningAggregate("totals", INPUT, ("x",), narrow)) is not None
    assert gathering_for(RunningAggregate("totals", INPUT, ("user",), narrow)) is None
    assert (
        gathering_for(RunningAggregate("totals", INPUT, ("x",), {**narrow, "all": pen.collect_list("amount", 9)}))
        is None
    )


def test_a_slice_s_memory_may_be_used_again_after_process() -> None:
    """The reader's buffer is filled anew for every slice (B4)."""
    memory = np.array([1, 2, 1], np.int64)
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    column = pa.Array.from_buffers(pa.int64(), 3, [None, pa.py_buffer(memory)])
    batch = pa.RecordBatch.from_arrays([column, column], schema=schema)
    spec = RunningAggregate("t", schema, ("k",), {"n": pen.count(), "s": pen.first("v"), "m": pen.max("v")})
    state = mock.Mock()
    state.lookup.return_value = mock.Mock(found=np.zeros(2, bool))
    operator = spec.build(OperatorContext({MAIN_STATE: state}))
    hashes = memory.copy()
    list(operator.process(Records(batch, hashes)))
    memory[:] = 77
    hashes[:] = 77
    (output,) = operator.finish()
    assert sorted(map(tuple, (row.values() for row in output.to_pylist()))) == [(1, 2, 1, 1), (2, 1, 2, 2)]
    assert sorted(state.update.call_args.args[0].tolist()) == [1, 2]


def test_state_is_looked_up_and_written_once_per_epoch() -> None:
    schema = pa.schema([("k", pa.int64())])
    state = mock.Mock()
    state.lookup.return_value = mock.Mock(found=np.zeros(3, bool))
    operator = RunningAggregate("t", schema, ("k",), {"n": pen.count()}).build(OperatorContext({MAIN_STATE: state}))
    for key in (1, 2, 3, 2):
        list(operator.process(Records(pa.record_batch({"k": [key]}), np.array([key]))))
    assert not state.method_calls
    list(operator.finish())
    assert [call[0] for call in state.method_calls] == ["lookup", "update"]


def test_an_epoch_without_rows_touches_nothing() -> None:
    spec = RunningAggregate("t", INPUT, KEYS, {"n": pen.count()})
    assert run_epochs(spec, KEYS, [(2, []), (1, [batch_of([])])]) == [[], []]


def test_types_are_those_of_spark() -> None:
    spec = RunningAggregate("t", INPUT, ("user",), AGGREGATES)
    assert {field.name: field.type for field in spec.output_schema} == {
        "user": pa.string(), "n": pa.int64(), "names": pa.int64(), "total": pa.int64(), "turnover": pa.float64(),
        "costs": pa.decimal128(16, 2), "cheapest": pa.float64(), "dearest": pa.float64(), "a": pa.string(),
        "z": pa.string(), "newest": pa.date32(), "typical": pa.float64(), "typical_cost": pa.decimal128(10, 6),
        "first_name": pa.string(), "last_name": pa.string(), "first_known": pa.list_(pa.int64()),
        "last_known": pa.list_(pa.int64()), "first_amount": pa.int32(), "last_price": pa.float64(),
    }  # fmt: skip
    assert spec.emits_at_end
    assert spec.state_schema.keys.names == ["user"]


def test_a_sum_that_leaves_bigint_stops_the_query_and_names_the_key() -> None:
    """D8: never a wrapped number, neither within a slice nor with the state."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    spec = RunningAggregate("totals", schema, ("k",), {"n": pen.count(), "s": pen.sum("v")})
    rows = [batch_of([{"k": key, "v": 2**62} for key in keys], schema) for keys in ([1, 5], [7, 5])]
    for epochs in ([(1, rows)], [(1, rows[:1]), (1, rows[1:])]):
        with pytest.raises(OperatorFailed, match=r"s = sum\(v\) does not fit into int64") as caught:
            run_epochs(spec, ["k"], epochs)
        assert caught.value.fields["operator"] == "totals"
        assert caught.value.fields["record"] == '{"k": 5}'


def test_the_spec_travels_to_subtasks() -> None:
    spec = RunningAggregate("t", INPUT, KEYS, AGGREGATES)
    copy = cloudpickle.loads(cloudpickle.dumps(spec))
    assert copy == spec
    assert copy.output_schema == spec.output_schema


@pytest.mark.parametrize(
    ("keys", "aggregates", "words"),
    [
        (("nobody",), {"n": pen.count()}, ["needs the column 'nobody'", "user string, x double"]),
        ((), {"n": pen.count()}, ["no key columns"]),
        (("tags",), {"n": pen.count()}, ["key column 'tags'", "list<"]),
        (("user", "user"), {"n": pen.count()}, ["'user' is a key column twice"]),
        (("user",), {}, ["aggregate(n=pen.count()"]),
        (("user",), {"n": pen.count}, ["aggregate(n=pen.count()"]),
        (("user",), {"n": pen.sum("amuont")}, ["sum(amuont) needs the column 'amuont'", "amount int32"]),
        (("user",), {"n": pen.sum("name")}, ["sum(name) over a column of type string", "numbers"]),
        (("user",), {"n": pen.mean("day")}, ["mean(day)", "date32"]),
        (("user",), {"n": pen.max("tags")}, ["max(tags)", "order"]),
        (("user",), {"user": pen.count()}, ["'user' is an output column twice"]),
        (("user",), {"m": pen.mean("x"), "m__sum": pen.sum("x")}, ["'m__sum' is a state column twice"]),
    ],
)
def test_what_cannot_work_is_refused_when_the_pipeline_is_built(
    keys: tuple[str, ...], aggregates: dict[str, Any], words: list[str]
) -> None:
    """E5"""
    with pytest.raises(PipelineError) as caught:
        RunningAggregate("totals", INPUT, keys, aggregates)
    for word in ["totals", *words]:
        assert word in str(caught.value)


def test_dates_and_timestamps_as_keys_come_out_as_they_went_in() -> None:
    schema = pa.schema([("d", pa.date32()), ("t", pa.timestamp("us", "UTC"))])
    row = {"d": dt.date(2026, 1, 2), "t": dt.datetime(2026, 1, 2, 3, tzinfo=dt.UTC)}
    spec = RunningAggregate("t", schema, ("d", "t"), {"n": pen.count()})
    assert run_epochs(spec, ["d", "t"], [(1, [batch_of([row, row], schema)])]) == [[{**row, "n": 2}]]
