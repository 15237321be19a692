"""Rows are what they were when user code gave them, whatever it does to them later."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import penstock as pen
from penstock.operators.values.copies import row_copier
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
LISTS = pa.schema([("l", pa.list_(pa.int64()))])
COUNTED = [{"k": 1, "v": number} for number in range(3)]


def test_a_row_that_flat_map_yields_again_and_again_is_kept_as_it_was_each_time() -> None:
    def counted(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for row["v"] in range(3):
            yield row

    assert Harness(stream_of(SCHEMA).flat_map(counted)).feed([{"k": 1, "v": 9}]) == COUNTED


def test_a_list_that_flat_map_yields_again_is_kept_as_it_was() -> None:
    def growing(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for number in range(2):
            row["l"].append(number)
            yield row

    assert Harness(stream_of(LISTS).flat_map(growing)).feed([{"l": []}]) == [{"l": [0]}, {"l": [0, 1]}]


def test_a_row_that_is_emitted_again_and_again_is_kept_as_it_was_each_time() -> None:
    class Counted(pen.KeyedProcess):
        output = "k bigint, v bigint"

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            row = {"k": 1, "v": 0}
            for row["v"] in range(3):
                out.emit_many([row])

    assert Harness(stream_of(SCHEMA).key_by("k").process(Counted)).feed([{"k": 1, "v": 9}]) == COUNTED


def test_what_is_deep_inside_an_emitted_row_is_kept_as_it_was() -> None:
    class Grown(pen.KeyedProcess):
        output = "items array<struct<n:bigint>>"
        items = pen.list_state("struct<n:bigint>")

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            state.items.append({"n": 0})
            for _ in rows:
                state.items[0]["n"] += 1
                out.emit(items=state.items)

    emitted = Harness(stream_of(SCHEMA).key_by("k").process(Grown)).feed([{"k": 1, "v": 9}] * 3)
    assert emitted == [{"items": [{"n": number}]} for number in (1, 2, 3)]


def test_a_call_sees_nothing_of_what_an_earlier_try_did_to_its_row() -> None:
    tries = []

    async def unlucky(row: dict[str, Any]) -> dict[str, Any]:
        row["l"].append(9)
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return row

    assert Harness(stream_of(LISTS).map_async(unlucky)).feed([{"l": [1]}]) == [{"l": [1, 9]}]


def test_a_list_that_all_calls_return_is_kept_as_it_was_each_time() -> None:
    seen: list[int] = []

    async def remember(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0)
        seen.extend(row["l"])
        return {"l": seen}

    rows = [{"l": [number]} for number in range(20)]
    emitted = Harness(stream_of(LISTS).map_async(remember, concurrency=1), parallelism=1).feed(rows)
    assert [len(row["l"]) for row in emitted] == list(range(1, 21))


def test_maps_structs_tuples_and_pairs_are_copied_as_deep_as_their_type_goes() -> None:
    inner = pa.map_(pa.string(), pa.list_(pa.int64()))
    copy = row_copier(pa.schema([("a", pa.struct([("m", inner)])), ("b", pa.list_(inner)), ("c", pa.int64())]))
    lists: list[list[int]] = [[1], [2]]
    row: dict[str, Any] = {"a": {"m": {"x": lists[0]}}, "b": ([("x", lists[1])],), "c": 3}
    kept = copy(row)
    lists[0].append(0)
    lists[1].append(0)
    row["a"]["m"]["y"] = []
    assert kept == {"a": {"m": {"x": [1]}}, "b": ([("x", [2])],), "c": 3}
