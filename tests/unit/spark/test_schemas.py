"""Columns that users declare: the forms they may have, and those that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructType

import penstock as pen
from penstock.errors import OperatorFailed, PipelineError
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
ROW = {"k": 1, "v": 9}
SPARK = StructType().add("k", LongType(), False)


def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
    out.emit(k=key["k"] or None)


def keyed(**attributes: Any) -> pen.Stream:
    code = type("Code", (pen.KeyedProcess,), {"output": "k bigint", "process": process, **attributes})
    return stream_of(SCHEMA).key_by("k").process(code)


def sliced(**attributes: Any) -> pen.Stream:
    own = {"output": "k bigint", "process": lambda self, batch, keys, state: None}
    return stream_of(SCHEMA).key_by("k").process(type("Code", (pen.BatchProcess,), {**own, **attributes}))


def refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        build()
    assert message in caught.value.seen


@pytest.mark.parametrize("output", ["k bigint NOT NULL", "k BIGINT not null", SPARK])
def test_output_columns_may_be_declared_not_null_and_as_a_type_of_spark(output: Any) -> None:
    stream = keyed(output=output)
    assert stream.schema == pa.schema([pa.field("k", pa.int64(), nullable=False)])
    assert Harness(stream).feed([ROW]) == [{"k": 1}]
    with pytest.raises(OperatorFailed, match="declared NOT NULL and got null"):
        Harness(stream).feed([{"k": 0, "v": 1}])


def test_side_outputs_may_be_declared_as_a_type_of_spark() -> None:
    assert keyed(sides={"more": SPARK}).side("more").schema.names == ["k"]


@pytest.mark.parametrize("text", ["k bigint COMMENT 'x'", "k big int", ""])
def test_text_that_only_spark_could_read_is_refused_without_a_session(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    # Other tests may have left one behind.
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    refused(lambda: stream_of(SCHEMA).flat_map(list, text), "it needs a SparkSession")
    refused(lambda: keyed(output=text), "it needs a SparkSession")


def test_a_schema_without_columns_is_refused() -> None:
    refused(lambda: stream_of(SCHEMA).flat_map(list, pa.schema([])), "operator flat_map has no columns")
    refused(lambda: stream_of(SCHEMA).map_batches(list, StructType()), "operator map_batches has no columns")
    refused(lambda: keyed(output=pa.schema([])), "Code.output has no columns")
    refused(lambda: keyed(sides={"x": StructType()}), "Code.sides['x'] has no columns")


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float16(), pa.dictionary(pa.int32(), pa.string())])
def test_types_that_spark_does_not_have_are_refused(kind: pa.DataType) -> None:
    """Their order and their nulls are not what operators expect."""
    refused(lambda: stream_of(SCHEMA).map_batches(list, pa.schema([("x", kind)])), f"the column 'x' of type {kind}")


@pytest.mark.parametrize("kind", [pa.list_(pa.uint8()), pa.struct({"a": pa.float16()}), pa.map_("string", pa.uint64())])
def test_types_that_spark_does_not_have_are_refused_inside_of_others(kind: pa.DataType) -> None:
    refused(lambda: stream_of(SCHEMA).map_batches(list, pa.schema([("x", kind)])), "the column 'x' of type")
    refused(lambda: stream_of(pa.schema([("x", kind)]), "clicks"), "source clicks has the column 'x' of type")


@pytest.mark.parametrize("name", ["__penstock_hash", "__penstock_time", "__Penstock_mine"])
def test_columns_called_like_hidden_ones_are_refused_where_the_graph_is_made(name: str) -> None:
    column = SCHEMA.names[0]
    stream, schema = stream_of(SCHEMA), pa.schema([(name, pa.int64())])
    said = f"has columns {name}"
    refused(lambda: stream_of(schema, "clicks"), f"source clicks {said}")
    refused(lambda: stream.map_batches(list, schema), said)
    refused(lambda: stream.flat_map(list, schema), said)
    refused(lambda: stream.select(**{name: column}), said)
    refused(lambda: stream.with_column(name, f"{column} + 1"), said)
    refused(lambda: stream.rename({column: name}), said)
    timed = stream_of(pa.schema({"k": pa.int64(), "at": pa.timestamp("us")}), event_time="at").key_by("k")
    refused(lambda: timed.join(timed, within="1 s", event_time=name), said)
    refused(lambda: stream.key_by(column).aggregate(**{name: pen.count()}), said)
    refused(lambda: keyed(output=schema), said)


def test_columns_of_side_outputs_are_checked_like_others() -> None:
    refused(lambda: keyed(sides={"x": "a bigint, a bigint"}), "'a' is a column of sides['x'] twice")
    refused(lambda: keyed(sides={"x": "__penstock_a bigint"}), "side output x of process has columns __penstock_a")


@pytest.mark.parametrize("name", ["open", "process", "on_timer"])
def test_state_called_like_a_method_is_refused(name: str) -> None:
    refused(lambda: keyed(**{name: pen.value_state("bigint")}), f"the state {name!r} is called like")


def test_state_called_like_a_part_of_the_class_or_of_state_itself_is_refused() -> None:
    refused(
        lambda: keyed(_empty=pen.value_state("bigint")), "the state '_empty' is called like a part of pen.KeyedProcess"
    )
    refused(lambda: keyed(output=pen.value_state("bigint")), "has no output columns")


def test_code_over_slices_has_neither_side_outputs_nor_timers() -> None:
    refused(lambda: sliced(sides={"x": "a bigint"}), "Code has sides")
    refused(lambda: sliced(on_timer=lambda self, key, time, state, out, timers: None), "Code has on_timer")


def frame_of(batch: pa.RecordBatch, *rest: Any) -> pd.DataFrame:
    return batch.to_pandas()


def test_a_data_frame_is_refused_with_the_way_to_make_a_batch_of_it() -> None:
    with pytest.raises(PipelineError, match="got DataFrame") as told:
        stream_of(SCHEMA).map_batches(frame_of)
    assert "pa.RecordBatch.from_pandas(frame, preserve_index=False)" in told.value.next_step
    rows = stream_of(SCHEMA)
    batches = (rows.map_batches(frame_of, SCHEMA), rows.map_batches(lambda b: [frame_of(b)], SCHEMA))
    for stream in (*batches, sliced(process=lambda self, *rest: frame_of(*rest))):
        with pytest.raises(OperatorFailed, match="got DataFrame") as caught:
            Harness(stream).feed([ROW])
        assert "pa.RecordBatch.from_pandas(frame, preserve_index=False)" in caught.value.next_step


class Lookup(pen.AsyncFunction):
    """Adds one."""

    def __init__(self, step: int = 1) -> None:
        self.step = step

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "v": row["v"] + self.step}


def test_the_class_of_an_async_function_is_as_good_as_an_instance() -> None:
    assert Harness(stream_of(SCHEMA).map_async(Lookup)).feed([ROW]) == [{"k": 1, "v": 10}]


def test_the_class_of_an_async_function_that_needs_arguments_is_refused() -> None:
    class Needy(Lookup):
        def __init__(self, url: str) -> None:
            super().__init__()

    refused(lambda: stream_of(SCHEMA).map_async(Needy), "map_async got the class Needy(url: 'str')")


def test_an_open_that_is_not_async_is_refused() -> None:
    class Eager(Lookup):
        def open(self) -> None:
            pass

    refused(lambda: stream_of(SCHEMA).map_async(Eager()), "Eager.open is not async")
