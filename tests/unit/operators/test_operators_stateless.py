"""map_batches, filter and flat_map: what they give, what they refuse, whom they blame (D1, D8)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle

from penstock.errors import OperatorFailed, PipelineError
from penstock.operators.base import OperatorContext
from penstock.operators.rowwise.stateless import Filter, FlatMap, MapBatches
from penstock.records import Records
from tests.support.operator_harness import Rows, stateless

INPUT = pa.schema([("user", pa.string()), ("amount", pa.int64())])
OUTPUT = pa.schema([("user", pa.string()), ("double", pa.int32())])
ROWS = [{"user": "a", "amount": 1}, {"user": "b", "amount": 2}, {"user": None, "amount": None}]
BATCH = pa.RecordBatch.from_pylist(ROWS, schema=INPUT)
DOUBLED = [{"user": "a", "double": 2}, {"user": "b", "double": 4}, {"user": None, "double": None}]


def doubled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Columns in another order, one wider than declared."""
    return pa.record_batch({"double": pc.multiply(batch["amount"], 2), "user": batch["user"]})


def in_parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch | pa.Table]:
    yield doubled(batch.slice(0, 1))
    yield doubled(batch.slice(0, 0))
    yield pa.Table.from_batches([doubled(batch.slice(1))])


def map_batches(function: Callable[..., Any], batch: pa.RecordBatch = BATCH, schema: pa.Schema = OUTPUT) -> Rows:
    return stateless(MapBatches("double", function, INPUT, schema), batch)


def flat_map(function: Callable[..., Any], batch: pa.RecordBatch = BATCH) -> Rows:
    return stateless(FlatMap("split", function, INPUT, OUTPUT), batch)


def failure(run: Callable[[], object]) -> OperatorFailed:
    with pytest.raises(OperatorFailed) as caught:
        run()
    return caught.value


@pytest.mark.parametrize(
    "function", [doubled, lambda batch: pa.Table.from_batches([doubled(batch)]), in_parts, lambda b: [doubled(b)]]
)
def test_output_is_put_in_order_and_cast_where_nothing_is_lost(function: Callable[..., Any]) -> None:
    assert map_batches(function) == DOUBLED


def test_memory_that_a_function_uses_again_does_not_change_what_it_gave() -> None:
    """Rows wait together to be written, those of several calls too."""
    buffer = np.zeros(1, np.int32)

    def one_by_one(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        for row in range(batch.num_rows):
            buffer[0] = batch["amount"][row].as_py()
            yield pa.record_batch({"user": batch["user"].slice(row, 1), "double": pa.array(buffer)})

    outputs = [part for call in range(2) for part in _parts(one_by_one, [call, call + 2])]
    assert [part["double"].to_pylist() for part in outputs] == [[0], [2], [1], [3]]


def test_columns_that_a_function_passes_on_are_not_copied() -> None:
    (output,) = _parts(lambda batch: doubled(batch.slice(1)), [1, 2])
    assert output["user"].buffers()[2].address == BATCH["user"].buffers()[2].address


def _parts(function: Callable[..., Any], amounts: list[int]) -> list[pa.RecordBatch]:
    batch = pa.record_batch([BATCH["user"].slice(0, len(amounts)), amounts], schema=INPUT)
    return list(MapBatches("m", function, INPUT, OUTPUT).build(OperatorContext()).process(Records(batch, np.zeros(2))))


def test_a_function_may_drop_everything() -> None:
    assert map_batches(lambda batch: doubled(batch).slice(0, 0)) == []
    assert map_batches(lambda batch: []) == []


def test_a_cast_that_loses_something_blames_its_row() -> None:
    batch = pa.RecordBatch.from_pylist([{"user": "a", "amount": 1}, {"user": "b", "amount": 2**40}], schema=INPUT)
    error = failure(lambda: map_batches(doubled, batch))
    assert "'double' is declared as int32, got int64" in error.seen
    assert error.fields["record"] == '{"user": "b", "amount": 1099511627776}'


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: batch, ["wanted the columns user string, double int32", "got user string, amount int64"]),
        (lambda batch: doubled(batch).append_column("x", batch["user"]), ["double int64, user string, x string"]),
        (lambda batch: None, ["the function returned None"]),
        (lambda batch: [batch.to_pylist()], ["got list"]),
        (lambda batch: "text", ["got str"]),
    ],
)
def test_output_of_another_shape_is_refused(function: Callable[..., Any], words: list[str]) -> None:
    error = failure(lambda: map_batches(function))
    for word in words:
        assert word in error.seen
    assert error.fields["operator"] == "double"


def test_a_column_declared_not_null_takes_no_null() -> None:
    schema = pa.schema([pa.field("user", pa.string(), nullable=False), ("double", pa.int32())])
    error = failure(lambda: map_batches(doubled, schema=schema))
    assert "NOT NULL" in error.seen
    assert error.fields["record"] == '{"user": null, "amount": null}'


def test_a_failing_function_is_blamed_with_its_line_and_the_record() -> None:
    """D8"""

    def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
        for user in batch["user"].to_pylist():
            user.upper()
        return doubled(batch)

    error = failure(lambda: map_batches(fragile))
    assert "AttributeError: 'NoneType' object has no attribute 'upper'" in error.seen
    assert "test_operators_stateless.py:" in error.seen
    assert "in fragile" in error.seen
    assert error.fields == {
        "operator": "double",
        "exception": "AttributeError",
        "record": '{"user": null, "amount": null}',
    }
    assert isinstance(error.__cause__, AttributeError)


@pytest.mark.parametrize(
    "predicate",
    [
        pc.field("amount") > 1,
        lambda batch: pc.greater(batch["amount"], 1),
        lambda batch: pa.chunked_array([pc.greater(batch["amount"], 1)]),
        lambda batch: np.array([False, True, False]),
        lambda batch: [False, True, None],
        lambda batch: batch.to_pandas()["amount"] > 1,
    ],
)
def test_filter_keeps_rows_that_are_true_and_drops_null(predicate: Any) -> None:
    assert stateless(Filter("big", predicate, INPUT), BATCH) == ROWS[1:2]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ([True], "wanted a boolean array of 3 rows, got 1 of type bool"),
        ([1, 0, 1], "got 3 of type int64"),
        (None, "got NoneType"),
    ],
)
def test_filter_refuses_what_is_no_mask(result: object, words: str) -> None:
    assert words in failure(lambda: stateless(Filter("big", lambda _: result, INPUT), BATCH)).seen


def test_an_expression_over_a_missing_column_is_refused_at_once() -> None:
    with pytest.raises(PipelineError, match=r"amuont[\s\S]*user string, amount int64"):
        Filter("big", pc.field("amuont") > 1, INPUT)


@pytest.mark.parametrize("make", [lambda f: MapBatches("m", f, INPUT, OUTPUT), lambda f: Filter("m", f, INPUT)])
def test_what_cannot_be_called_is_refused_at_once(make: Callable[[Any], object]) -> None:
    with pytest.raises(PipelineError, match="not a function"):
        make(doubled(BATCH))


def test_flat_map_gives_any_number_of_rows_in_order() -> None:
    def repeat(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(row["amount"] or 0):
            yield {"user": row["user"], "double": row["amount"]}

    assert [row["double"] for row in flat_map(repeat)] == [1, 2, 2]
    assert flat_map(lambda row: ()) == []


def test_flat_map_blames_the_row_even_if_the_function_changed_it() -> None:
    def spoil(row: dict[str, Any]) -> list[dict[str, Any]]:
        row["user"] = "?"
        return [{"user": "a", "double": row["amount"] + 1}]

    error = failure(lambda: flat_map(spoil))
    assert error.fields["record"] == '{"user": null, "amount": null}'
    assert error.fields["exception"] == "TypeError"


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ([{"user": "a"}], "wanted the columns double, user; got user"),
        ([{"user": "a", "double": 1, "x": 1}], "got double, user, x"),
        ([{"user": 1, "double": 1}], "'user' is declared as string"),
        ([{"user": "a", "double": 1.5}], "got a float for int32"),
        ([{"user": "a", "double": 2**31}], "'double' is declared as int32"),
        (["a"], "got str 'a' for a row"),
        ({"user": "a", "double": 1}, "wanted an iterable of rows, got dict"),
        (None, "the function returned None"),
    ],
)
def test_flat_map_blames_the_row_whose_output_does_not_fit(output: Any, words: str) -> None:
    good = [{"user": "a", "double": 1}] * 2
    error = failure(lambda: flat_map(lambda row: output if row["user"] == "b" else good))
    assert words in error.seen
    assert error.fields["record"] == '{"user": "b", "amount": 2}'


def test_rows_hold_plain_python_values() -> None:
    utc = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC)
    row = {
        "i": 1, "f": 0.5, "s": "ü", "b": b"\x00", "t": True, "d": dt.date(1969, 12, 31), "utc": utc,
        "ntz": dt.datetime(1969, 12, 31, 23), "l": [1], "z": {"a": None},  # noqa: DTZ001
    }  # fmt: skip
    nulls = dict.fromkeys(row)
    schema = pa.schema([
        ("i", pa.int8()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.binary()), ("t", pa.bool_()),
        ("d", pa.date32()), ("utc", pa.timestamp("us", "UTC")), ("ntz", pa.timestamp("us")), ("l", pa.list_(pa.int8())),
        ("z", pa.struct([("a", pa.int8())])),
    ])  # fmt: skip
    seen: Rows = []
    spec = FlatMap("f", lambda row: seen.append(row) or [row], schema, schema)  # type: ignore[func-returns-value]
    assert stateless(spec, pa.RecordBatch.from_pylist([row, nulls], schema=schema)) == [row, nulls]
    assert seen == [row, nulls]
    assert all(type(seen[0][name]) is type(value) for name, value in row.items())
    assert stateless(spec, pa.RecordBatch.from_pylist([], schema=schema)) == []


def test_column_names_may_be_anything() -> None:
    schema = pa.schema([("it's", pa.int64()), ('a"b\\', pa.int64()), ("class", pa.int64()), ("{x}\n", pa.int64())])
    row = {name: number for number, name in enumerate(schema.names)}
    spec = FlatMap("f", lambda row: [row], schema, schema)
    assert stateless(spec, pa.RecordBatch.from_pylist([row], schema=schema)) == [row]


@pytest.mark.parametrize(
    "spec",
    [
        MapBatches("m", lambda batch: [doubled(batch)], INPUT, OUTPUT),
        Filter("m", pc.field("amount") > 1, INPUT),
        FlatMap("m", lambda row: [{"user": row["user"], "double": 1}], INPUT, OUTPUT),
    ],
)
def test_specs_travel_to_subtasks_and_emit_as_they_go(spec: Any) -> None:
    copy = cloudpickle.loads(cloudpickle.dumps(spec))
    assert stateless(copy, BATCH) == stateless(spec, BATCH) != []
    assert copy.output_schema == spec.output_schema
    assert not copy.emits_at_end
    assert not copy.state_tables


def test_an_expression_that_keeps_no_row_of_a_slice_gives_nothing() -> None:
    schema = pa.schema([("n", pa.int64())])
    operator = Filter("none", pc.field("n") > 10, schema).build(OperatorContext())
    batch = pa.record_batch([pa.array([1, 2, 3])], schema=schema)
    assert list(operator.process(Records(batch, np.zeros(3, np.int64)))) == []
