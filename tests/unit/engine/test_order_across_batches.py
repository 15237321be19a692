"""A row never overtakes a row of its key from an earlier micro-batch, whatever row-by-row operators stand between (A8).

Micro-batch 1 brings many rows of a key in one partition, later ones bring a row or two of it in other partitions.
Partitions are lanes of the stages without a key, so the later rows are through those stages first.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.stream import Stream
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema({"key": pa.int64(), "other": pa.int64(), "batch": pa.int64(), "part": pa.int64(), "row": pa.int64()})
KEYS = 3


class Seen(pen.KeyedProcess):
    """Numbers the rows of a key as they come."""

    output = SCHEMA.append(pa.field("n", pa.int64()))
    n = pen.value_state("bigint")

    def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del key
        for row in rows:
            state.n = (state.n or 0) + 1
            out.emit(**row, n=state.n)


class SwitchKey(pen.KeyedProcess):
    """Hands rows on; what comes next goes by another column."""

    output = SCHEMA

    def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del key, state
        out.emit_many(rows)


class SwitchKeys(pen.BatchProcess):
    output = SCHEMA

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> pa.RecordBatch:
        del keys, state
        return batch


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


async def called(row: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0)
    return row


def source() -> Stream:
    return stream_of(SCHEMA)


def split(stream: Stream) -> Stream:
    """Half of the rows take the way through another stage."""
    slow = stream.filter(lambda batch: pa.compute.equal(batch["part"], 0)).union(none(stream))
    return stream.filter(lambda batch: pa.compute.not_equal(batch["part"], 0)).union(slow)


def none(stream: Stream) -> Stream:
    return stream.filter(lambda batch: pa.compute.less(batch["part"], -1))


WAYS: dict[str, Callable[[], Stream]] = {
    "map_batches": lambda: source().map_batches(same),
    "filter": lambda: source().filter(lambda batch: pa.compute.is_valid(batch["key"])),
    "flat_map": lambda: source().flat_map(lambda row: [row]),
    "map_async": lambda: source().map_async(called, concurrency=64),
    "two stages": lambda: source().map_batches(same).map_async(called, concurrency=64),
    "three stages": lambda: source().map_batches(same).union(none(source_again)).map_async(called, concurrency=64),
    "union": lambda: split(source()),
    "another key": lambda: source().key_by("other").process(SwitchKey),
    "another key by slices": lambda: source().key_by("other").process(SwitchKeys),
    "another key, then none": lambda: source().key_by("other").process(SwitchKey).map_async(called, concurrency=64),
    "without duplicates": lambda: source().key_by("other").deduplicate(columns=["batch", "part", "row"]),
    "side output": lambda: source().key_by("other").process(ToSide).side("aside"),
    "connect": lambda: source().key_by("other").connect(stream_of(SCHEMA, "rules").broadcast(), process=Connected),
}
source_again = stream_of(SCHEMA, "again")


class ToSide(pen.KeyedProcess):
    output = SCHEMA
    sides = {"aside": SCHEMA}  # noqa: RUF012 - as users write it

    def process(self, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del key, state
        out.side("aside").emit_many(rows)


class Connected(pen.ConnectProcess):
    inputs = ("rows", "rules")
    output = SCHEMA
    rules = pen.broadcast_map("bigint", "bigint")

    def process(self, port: str, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del port, key, state
        out.emit_many(rows)

    def process_broadcast(self, port: str, rows: list[dict[str, Any]], broadcast: Any) -> None:
        del port, rows, broadcast


def batch_of(number: int, sizes: dict[int, int], keys: int = KEYS) -> list[dict[str, Any]]:
    """Rows of a micro-batch by partition; each key has its rows in one partition of it."""
    return [
        {"key": (row + part) % keys, "other": part, "batch": number, "part": part, "row": row}
        for part, size in sizes.items()
        for row in range(size)
    ]


def feed(harness: Harness, rows: list[dict[str, Any]]) -> None:
    names = [source.name for source in harness._pipeline.sources]
    harness.feed(**{name: rows if name == "source" else [] for name in names})


def assert_in_order(rows: list[dict[str, Any]]) -> None:
    """Per key: micro-batch by micro-batch; within one, the rows of each partition as it delivered them."""
    by_key = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["n"]):
        by_key[row["key"]].append(row)
    for key, mine in by_key.items():
        assert [row["n"] for row in mine] == list(range(1, len(mine) + 1)), key
        batches = [row["batch"] for row in mine]
        assert batches == sorted(batches), f"key {key}: {batches}"
        for part in {row["part"] for row in mine}:
            came = [(row["batch"], row["row"]) for row in mine if row["part"] == part]
            assert came == sorted(came), f"key {key}, partition {part}: {came}"


@pytest.mark.parametrize("way", WAYS)
def test_a_quick_row_of_a_later_micro_batch_waits_for_slow_ones_of_its_key(way: str) -> None:
    harness = Harness(WAYS[way]().key_by("key").process(Seen), parallelism=4, steps=1, partition_by="part")
    feed(harness, batch_of(1, {0: 120}))
    assert harness.rows_in_flight
    feed(harness, batch_of(2, {1: 6}))
    feed(harness, batch_of(3, {2: 3, 1: 3}))
    harness.settle()
    assert len(harness.output()) == 132
    assert_in_order(harness.output())


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("way", WAYS)
def test_order_holds_with_random_sizes_rescales_and_crashes_in_the_middle(way: str, seed: int) -> None:
    rng = random.Random(seed)
    stream = WAYS[way]().key_by("key").process(Seen)
    harness = Harness(stream, parallelism=rng.randint(1, 5), steps=rng.randint(1, 3), partition_by="part")
    wanted = 0
    for number in range(1, 6):
        parts = rng.sample(range(6), rng.randint(1, 4))
        rows = batch_of(number, {part: rng.choice((1, 3, 20, 50)) for part in parts})
        wanted += len(rows)
        if rng.random() < 0.3:
            harness.crash()
        feed(harness, rows)
        if rng.random() < 0.4:
            harness.rescale(rng.randint(1, 6))
    harness.settle()
    assert len(harness.output()) == wanted
    assert_in_order(harness.output())


def test_two_keyed_operators_behind_one_another_keep_order_for_both_keys() -> None:
    stream = source().map_batches(same).key_by("key").process(SwitchKey).key_by("other").process(SwitchKey)
    harness = Harness(stream.key_by("key").process(Seen), parallelism=3, steps=1, partition_by="part")
    for number, sizes in enumerate(({0: 200}, {1: 5, 2: 5}, {3: 60}, {1: 1}), 1):
        feed(harness, batch_of(number, sizes))
    harness.settle()
    assert len(harness.output()) == 271
    assert_in_order(harness.output())


class Counted(pen.ConnectProcess):
    """Notes how many broadcast rows it has seen, and in which order."""

    inputs = ("rows", "rules")
    output = "key bigint, seen string"
    rules = pen.broadcast_map("bigint", "bigint")

    def process(self, port: str, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
        del port
        seen = ",".join(str(batch) for _, batch in sorted(state.rules.items()))
        for _ in rows:
            out.emit(key=key["key"], seen=seen)

    def process_broadcast(self, port: str, rows: list[dict[str, Any]], broadcast: Any) -> None:
        del port
        for row in rows:
            broadcast.rules[len(broadcast.rules)] = row["batch"]


def test_broadcast_rows_behind_a_stage_without_a_key_come_micro_batch_by_micro_batch() -> None:
    rules = stream_of(SCHEMA, "rules").map_batches(same).broadcast()
    stream = source().key_by("key").connect(rules, process=Counted)
    harness = Harness(stream, parallelism=4, steps=1, partition_by="part")
    harness.feed(source=[], rules=batch_of(1, {0: 300}))
    harness.feed(source=[], rules=batch_of(2, {1: 2}))
    harness.settle()
    harness.feed(source=batch_of(3, {0: 40}), rules=[])
    harness.settle()
    assert len(harness.output()) == 40
    for row in harness.output():
        seen = [int(batch) for batch in row["seen"].split(",")]
        assert seen == [1] * 300 + [2] * 2


def test_rows_that_carry_their_key_on_do_not_wait_for_other_keys() -> None:
    """A hot key delays nobody else where operators hand rows on as they are."""
    stream = source().key_by("key").deduplicate(columns=["batch", "row"]).key_by("key").process(Seen)
    harness = Harness(stream, parallelism=8, steps=1, partition_by="part")
    hot = [{"key": 0, "other": 0, "batch": 1, "part": 0, "row": row} for row in range(400)]
    cold = [{"key": key, "other": 0, "batch": 2, "part": 0, "row": 0} for key in range(1, 40)]
    feed(harness, hot)
    assert harness.rows_in_flight > 300
    before = len(harness.output())
    feed(harness, cold)
    came = {row["key"] for row in harness.output()[before:]}
    assert len(came) > 20, "keys in other subtasks than the hot one's are through"
    harness.settle()
    assert_in_order(harness.output())


def test_where_nobody_behind_needs_order_nothing_waits_and_nothing_is_told_apart() -> None:
    harness = Harness(source().map_batches(same).map_async(called, concurrency=64), parallelism=4, steps=1)
    for number in range(1, 4):
        feed(harness, batch_of(number, {0: 100}))
    segments = [part for edge in harness._runner.manifest.edges.values() for part in edge.segments]
    assert segments
    assert all(segment.arrived == segment.epoch for segment in segments)
    harness.settle()
    assert len(harness.output()) == 300


def test_calls_without_order_hold_nobody_back() -> None:
    stream = source().map_async(called, concurrency=8, ordered=False).key_by("key").process(Seen)
    harness = Harness(stream, parallelism=4, steps=1, partition_by="part")
    assert not any(edge.waits_for for edge in harness._pipeline.edges())
    feed(harness, batch_of(1, {0: 100}))
    feed(harness, batch_of(2, {1: 10}))
    harness.settle()
    assert len(harness.output()) == 110


ALIGNED: dict[str, tuple[Callable[[], Stream], int]] = {
    "one stage": (lambda: source().map_batches(same), 2),
    "two stages": (lambda: source().map_batches(same).map_async(called, concurrency=64), 4),
    "a slow and a direct way": (lambda: (rows := source()).union(rows.map_batches(same)), 4),
}


@pytest.mark.parametrize("way", ALIGNED)
def test_without_rows_in_flight_there_is_one_file_per_edge_and_producer_as_if_arrivals_did_not_exist(way: str) -> None:
    stream, files = ALIGNED[way][0](), ALIGNED[way][1]
    harness = Harness(stream.key_by("key").process(Seen), parallelism=2, partition_by="part")
    for number in range(1, 5):
        feed(harness, batch_of(number, {0: 10, 1: 10}))
        made = [file.path for file in harness._store.list("segments") if f"/{number + 1:010}-" in file.path]
        assert len(made) == files, made
    assert harness.rows_in_flight == 0


def test_a_stage_writes_a_segment_for_each_arrival_and_none_for_those_it_has_nothing_of() -> None:
    harness = Harness(
        source().map_batches(same).key_by("key").process(Seen), parallelism=4, partition_by="part", steps=1
    )
    for number, sizes in enumerate(({0: 100}, {0: 4, 1: 4}, {1: 4}), 1):
        feed(harness, batch_of(number, sizes))
    manifest = harness._runner.manifest
    (edge,) = (edge for edge in harness._pipeline.edges() if edge.waits_for)
    waiting = manifest.edges[edge.name].segments
    assert {segment.arrived for segment in waiting} <= set(range(2, manifest.checkpoint + 1))
    names = [(segment.epoch, segment.producer, segment.sequence) for segment in waiting]
    assert len(names) == len(set(names))
    by_producer = defaultdict(set)
    for segment in waiting:
        by_producer[segment.epoch, segment.producer].add(segment.arrived)
        assert segment.rows
    assert all(len(arrivals) <= 3 for arrivals in by_producer.values())
    harness.settle()
    assert_in_order(harness.output())


class Late(pen.KeyedProcess):
    output = SCHEMA

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        del key, state, timers
        out.emit_many(rows)

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None: ...


def test_what_an_operator_with_timers_emits_arrives_when_it_is_emitted() -> None:
    stream = source().key_by("other").process(Late).key_by("key").process(Seen)
    harness = Harness(stream, parallelism=4, steps=1, partition_by="part")
    assert not any(edge.waits_for for edge in harness._pipeline.edges())
    for number in range(1, 3):
        feed(harness, batch_of(number, {0: 60}))
    harness.settle()
    assert len(harness.output()) == 120


def test_inputs_that_are_held_back_on_purpose_are_not_waited_for() -> None:
    class Two(pen.ConnectProcess):
        inputs = ("first", "second")
        output = SCHEMA

        def process(self, port: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
            del port, key, state
            out.emit_many(rows)

    first, second = source().key_by("other"), stream_of(SCHEMA, "again").map_batches(same).key_by("other")
    stream = first.connect(second, process=Two, hold_back=["second"]).key_by("key").process(Seen)
    harness = Harness(stream)
    waits = {edge.consumer: edge.waits_for for edge in harness._pipeline.edges() if edge.waits_for}
    assert waits["process"] == ("source-to-connect",)
