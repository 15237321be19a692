"""`map_batches` without a schema: the function itself tells its columns."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.engine.sigterm import Terminated
from penstock.errors import PipelineError
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema({"user": pa.int64(), "item": pa.string(), "ts": pa.timestamp("us", "UTC")})


def after(function: Callable[[pa.RecordBatch], Any]) -> pa.Schema:
    return stream_of(SCHEMA).map_batches(function).schema


def test_a_column_that_is_added_needs_no_schema() -> None:
    stream = stream_of(SCHEMA).map_batches(lambda b: b.append_column("size", pc.utf8_length(b["item"])))
    assert stream.schema == SCHEMA.append(pa.field("size", pa.int32()))
    assert Harness(stream).feed([{"user": 1, "item": "tea"}])[0]["size"] == 3


def test_a_table_and_a_generator_tell_their_columns_too() -> None:
    def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch.select(["user"])

    assert after(parts) == pa.schema([SCHEMA.field("user")])
    assert after(lambda batch: pa.Table.from_batches([batch]).drop_columns(["ts"])).names == ["user", "item"]


def test_the_function_is_called_once_with_no_rows_and_the_columns_of_the_input() -> None:
    calls: list[pa.RecordBatch] = []

    def noted(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch)
        return batch

    after(noted)
    assert [(call.num_rows, call.schema) for call in calls] == [(0, SCHEMA)]


def needs_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"long": len(row["item"]) > 3} for row in batch.to_pylist()])


@pytest.mark.parametrize(
    "function",
    [
        needs_rows,
        lambda batch: batch.append_column("first", pa.array([batch["item"][0].as_py()] * batch.num_rows)),
        lambda batch: batch.append_column("x", pa.nulls(batch.num_rows)),
        lambda batch: [],
        lambda batch: batch.select(["usr"]),
        lambda batch: sys.exit(3),
    ],
)
def test_a_function_that_does_not_tell_is_not_called_with_rows_that_are_made_up(function: Any) -> None:
    rows: list[int] = []

    def counted(batch: pa.RecordBatch) -> Any:
        rows.append(batch.num_rows)
        return function(batch)

    with pytest.raises(PipelineError):
        after(counted)
    assert rows == [0]


def test_with_a_schema_the_function_is_not_called() -> None:
    def ends_the_process(batch: pa.RecordBatch) -> pa.RecordBatch:
        os._exit(3)

    assert stream_of(SCHEMA).map_batches(ends_the_process, "user bigint").schema.names == ["user"]


def test_a_generator_is_asked_for_its_first_batch_only() -> None:
    asked: list[str] = []

    def parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        yield batch
        asked.append("for more")

    assert after(parts) == SCHEMA
    assert asked == []


def test_a_data_frame_of_pandas_gives_types_that_spark_has() -> None:
    def by_pandas(batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = batch.to_pandas()
        frame["day"] = frame["ts"].dt.floor("D")
        made = pa.RecordBatch.from_pandas(frame, preserve_index=False)
        return made.append_column("kind", batch["item"].dictionary_encode())

    made = after(by_pandas)
    assert made.field("day").type == pa.timestamp("us", "UTC")
    assert made.field("kind").type == pa.string()
    assert made.metadata is None


def test_columns_of_the_input_keep_their_order_and_their_wider_types() -> None:
    def narrowed(batch: pa.RecordBatch) -> pa.RecordBatch:
        narrow = batch.set_column(0, "user", batch["user"].cast(pa.int32()))
        return narrow.select(["ts", "item", "user"])

    assert after(narrowed) == SCHEMA
    assert after(lambda b: b.set_column(0, "user", b["user"].cast(pa.string()))).field("user").type == pa.string()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (needs_rows, "it returns no columns"),
        (lambda batch: [], "it returns no batch"),
        (lambda batch: batch.append_column("x", pa.nulls(batch.num_rows)), "the type of 'x' stays open"),
        (lambda batch: batch.select(["usr"]), "KeyError"),
        (lambda batch: sys.exit("no model"), "SystemExit: no model"),
    ],
)
def test_a_function_that_does_not_tell_is_asked_for_a_schema(function: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said) as raised:
        after(function)
    assert "with no rows" in str(raised.value)
    assert "map_batches(fn, schema=" in raised.value.next_step


def test_a_sigterm_in_the_meantime_still_ends_the_program() -> None:
    def terminated(batch: pa.RecordBatch) -> pa.RecordBatch:
        raise Terminated

    with pytest.raises(Terminated):
        after(terminated)


def test_a_function_without_return_is_told_so() -> None:
    with pytest.raises(PipelineError, match="`return` is missing"):
        after(lambda batch: None)


def test_there_is_an_empty_batch_of_every_type() -> None:
    kinds = (pa.bool_(), pa.int8(), pa.float32(), pa.decimal128(5, 5), pa.date32(), pa.timestamp("us"), pa.binary())
    nested = (pa.list_(pa.string()), pa.map_(pa.string(), pa.int64()), pa.struct([("x", pa.date32())]))
    schema = pa.schema([(f"c{number}", kind) for number, kind in enumerate((*kinds, *nested))])
    assert stream_of(schema).map_batches(lambda batch: batch).schema == schema
