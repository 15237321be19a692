"""Maps are dicts for user code: in state, in rows, in broadcast maps, and deep inside other values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.operators.values.convert import arrow_values, python_values
from penstock.testing import Harness, stream_of

COUNTS = pa.map_(pa.string(), pa.int64())
SCHEMA = pa.schema([("k", pa.int64()), ("m", COUNTS)])
ROW = {"k": 1, "m": {"a": 1}}


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (COUNTS, {"a": 1, "b": None}),
        (COUNTS, {}),
        (pa.list_(COUNTS), [{"a": 1}, None, {}]),
        (pa.struct([("n", pa.int64()), ("m", COUNTS)]), {"n": 1, "m": {"a": 1}}),
        (pa.struct([("n", pa.int64()), ("m", COUNTS)]), {"n": 1, "m": None}),
        (pa.map_(pa.string(), pa.list_(COUNTS)), {"x": [{"a": 1}], "y": None}),
        (pa.map_(pa.string(), pa.struct([("m", COUNTS)])), {"x": {"m": {"a": 1}}}),
        (pa.map_(pa.struct([("x", pa.int64())]), pa.int64()), [({"x": 1}, 2)]),
    ],
)
def test_a_map_is_read_as_it_was_given_however_deep_it_is(kind: pa.DataType, value: Any) -> None:
    assert python_values(arrow_values([value, None], kind)) == [value, None]


def test_pairs_are_as_good_as_a_dict() -> None:
    assert python_values(arrow_values([[[("a", 1)]]], pa.list_(COUNTS))) == [[{"a": 1}]]


def test_a_map_in_a_value_of_state_is_a_dict_in_all_epochs() -> None:
    class Counting(pen.KeyedProcess):
        output = "seen string"
        by_name = pen.value_state("map<string,bigint>")
        deep = pen.value_state("struct<m:map<string,array<bigint>>>")

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            state.by_name = state.by_name or {}
            state.deep = state.deep or {"m": {"a": []}}
            for name, count in rows[0]["m"].items():
                state.by_name[name] = state.by_name.get(name, 0) + count
                state.deep["m"]["a"].append(count)
            out.emit(seen=f"{state.by_name} {state.deep}")

    harness = Harness(stream_of(SCHEMA).key_by("k").process(Counting))
    assert harness.feed([ROW]) == [{"seen": "{'a': 1} {'m': {'a': [1]}}"}]
    assert harness.feed([ROW]) == [{"seen": "{'a': 2} {'m': {'a': [1, 1]}}"}]


def test_a_map_in_a_row_is_a_dict_and_passes() -> None:
    def more(row: dict[str, Any]) -> list[dict[str, Any]]:
        row["m"]["b"] = 2
        return [row]

    assert Harness(stream_of(SCHEMA).flat_map(more)).feed([ROW]) == [{"k": 1, "m": [("a", 1), ("b", 2)]}]
