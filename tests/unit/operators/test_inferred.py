"""`map_batches` without a schema: the function itself tells its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from penstock.errors import PipelineError
from penstock.operators.rowwise.inferred import sample_batch
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


def test_a_function_that_needs_rows_gets_two_that_are_made_up() -> None:
    def by_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = batch.to_pylist()
        return pa.RecordBatch.from_pylist([{"user": row["user"], "long": len(row["item"]) > 3} for row in rows])

    assert after(by_rows) == pa.schema({"user": pa.int64(), "long": pa.bool_()})


def test_a_data_frame_of_pandas_gives_types_that_spark_has() -> None:
    def by_pandas(batch: pa.RecordBatch) -> pa.RecordBatch:
        frame = batch.to_pandas()
        frame["day"] = frame["ts"].dt.floor("D")
        frame["kind"] = frame["item"].astype("category")
        return pa.RecordBatch.from_pandas(frame, preserve_index=False)

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
        (lambda batch: [], "it returns no batch"),
        (lambda batch: batch.append_column("x", pa.nulls(batch.num_rows)), "the type of 'x' stays open"),
        (lambda batch: batch.select(["usr"]), "KeyError"),
    ],
)
def test_a_function_that_does_not_tell_is_asked_for_a_schema(function: Any, said: str) -> None:
    with pytest.raises(PipelineError, match=said) as raised:
        after(function)
    assert "map_batches(fn, " in raised.value.next_step


def test_a_function_without_return_is_told_so() -> None:
    with pytest.raises(PipelineError, match="`return` is missing"):
        after(lambda batch: None)


def test_there_is_a_sample_of_every_type() -> None:
    kinds = (pa.bool_(), pa.int8(), pa.float32(), pa.decimal128(5, 5), pa.date32(), pa.timestamp("us"), pa.binary())
    nested = (pa.list_(pa.string()), pa.map_(pa.string(), pa.int64()), pa.struct([("x", pa.date32())]))
    for kind in (*kinds, *nested):
        assert sample_batch(pa.schema({"x": kind})).column(0).null_count == 0
