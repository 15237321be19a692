"""The pipelines of the rescale matrix: how each is built, and what its tables must hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession

import penstock as pen
from tests.spark.matrix_data import (
    DISORDER_US,
    RECORD,
    WINDOW_US,
    Faults,
    Input,
    check_records,
    check_windows,
    make_input,
)
from tests.spark.streams import paimon, rows_in, stream

if TYPE_CHECKING:
    from tests.spark.matrix import Case

ROWS = 900
SLOW_ROWS = 120
ROW_COST_S = 0.0003
SLOW_ROW_COST_S = 0.005
WINDOWS = "shop.windows"
COUNTED = "source string, number bigint, key bigint, ts timestamp, seq bigint"


class Count(pen.KeyedProcess):
    """Numbers the records of each key, in the order in which it sees them."""

    output = COUNTED
    seen = pen.value("bigint")

    def process(self, key, rows, state, out):
        for row in rows:
            state.seen = (state.seen or 0) + 1
            out.emit(source=row["source"], number=row["number"], key=row["key"], ts=row["ts"], seq=state.seen)


class CountAll(pen.ConnectProcess):
    """Numbers the records of each key over three inputs."""

    inputs = ("a", "b", "c")
    output = COUNTED
    seen = pen.value("bigint")

    def process(self, port, key, rows, state, out):
        Count.process(self, key, rows, state, out)


class CountTwice(pen.ConnectProcess):
    """The same stream over two edges, counted per edge."""

    inputs = ("left", "right")
    output = f"{COUNTED}, port int"
    left = pen.value("bigint")
    right = pen.value("bigint")

    def process(self, port, key, rows, state, out):
        for row in rows:
            seen = (getattr(state, port) or 0) + 1
            setattr(state, port, seen)
            out.emit(**{**row, "seq": seen}, port=self.inputs.index(port))


class Ruled(pen.ConnectProcess):
    """Numbers the records of each key; tells how many broadcast rows were seen before, and the most often seen one."""

    inputs = ("records", "rules")
    output = f"{COUNTED}, rules bigint, most bigint"
    seen = pen.value("bigint")
    rule = pen.broadcast_map("bigint", "bigint")

    def process(self, port, key, rows, state, out):
        rules, most = len(state.rule), max(state.rule.values(), default=0)
        for row in rows:
            state.seen = (state.seen or 0) + 1
            fields = {name: row[name] for name in ("source", "number", "key", "ts")}
            out.emit(**fields, seq=state.seen, rules=rules, most=most)

    def process_broadcast(self, port, rows, broadcast):
        for row in rows:
            broadcast.rule[row["number"]] = broadcast.rule.get(row["number"], 0) + 1


class RuledUnkeyed(Ruled):
    """The same without keys: there is nothing to count by."""

    seen = None

    def process(self, port, key, rows, state, out):
        rules, most = len(state.rule), max(state.rule.values(), default=0)
        for row in rows:
            fields = {name: row[name] for name in ("source", "number", "key", "ts")}
            out.emit(**fields, seq=0, rules=rules, most=most)


def takes(cost_s: float) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A map that costs time per record."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(cost_s * batch.num_rows)  # the work itself, not a way to wait for something
        return batch

    return work


def cost_s(slow: bool) -> float:
    return SLOW_ROW_COST_S if slow else ROW_COST_S


def read(spark: SparkSession, folder: Path, source: str) -> pen.Stream:
    frame = stream(spark, folder / "in" / source, RECORD)
    return pen.read(frame, name=source, event_time="ts", watermark=DISORDER_US / 1e6)


def check_table(faults: Faults, folder: Path, data: Input, sources: str = "abc", copies: int = 1) -> None:
    """The table of records, of those sources that reach it."""
    expected = [row for row in data.rows() if row["source"] in sources]
    check_records(faults, rows_in(folder), expected, data, folder / "checkpoint", copies)


@dataclass(frozen=True)
class Shape:
    """One shape of pipeline."""

    build: Callable[[SparkSession, Path, float], Sequence[pen.Output]]
    sources: tuple[str, ...] = ("a",)
    checks: Callable[[Faults, Path, Input], None] = check_table
    pads: tuple[int, ...] = (0, 10)
    rows: int = ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    stages: Callable[[int, Case], int | dict[str, int]] = lambda parallelism, _: parallelism

    def input(self, seed: int, rows: int | None = None, *, slow: bool) -> Input:
        rows = rows or (SLOW_ROWS if slow else self.rows)
        return make_input(self.sources, rows // len(self.sources), seed, self.pads)

    def outputs(self, spark: SparkSession, folder: Path, *, slow: bool) -> Sequence[pen.Output]:
        return self.build(spark, folder, cost_s(slow))

    def parallelism(self, count: int, case: Case) -> int | dict[str, int]:
        return self.stages(count, case)

    def check(self, folder: Path, data: Input) -> Faults:
        faults = Faults()
        self.checks(faults, folder, data)
        return faults


def with_windows(counted: pen.Stream, folder: Path, cost: float) -> Sequence[pen.Output]:
    """Records into one table behind a slow map, windows of them into another."""
    slow = counted.map_batches(takes(cost), name="slow")
    windows = slow.key_by("key").window(pen.tumbling(WINDOW_US / 1e6)).aggregate(n=pen.count(), name="windows")
    return [slow.write(paimon(folder), name="records"), windows.write(paimon(folder, WINDOWS), name="window_rows")]


def _windows_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data)
    check_windows(faults, rows_in(folder, WINDOWS), data.rows())


def _pipeline(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").map_batches(lambda batch: batch).key_by("key").process(Count, name="count")
    return with_windows(counted, folder, cost)


def _large(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").map_batches(lambda batch: batch).key_by("key").process(Count, name="count")
    return [counted.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _union(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source) for source in "abc")
    return with_windows(a.union(b, c).key_by("key").process(Count, name="count"), folder, cost)


def _multi_input(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source).key_by("key") for source in "abc")
    return with_windows(a.connect(b, c, process=CountAll, name="count"), folder, cost)


def _two_edges(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").key_by("key").process(Count, name="count")
    twice = counted.key_by("key").connect(counted.key_by("key"), process=CountTwice, name="twice")
    return [twice.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _keyed_broadcast(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    rules = read(spark, folder, "r").broadcast()
    ruled = read(spark, folder, "a").key_by("key").connect(rules, process=Ruled, name="ruled")
    return with_windows(ruled, folder, cost)


def _broadcast(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    rules = read(spark, folder, "r").broadcast()
    ruled = read(spark, folder, "a").connect(rules, process=RuledUnkeyed, name="ruled")
    return [ruled.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _rules_checks(faults: Faults, folder: Path, data: Input) -> None:
    """B9: a record sees each broadcast row of its micro-batch and of those before exactly once."""
    check_table(faults, folder, data, "a")
    batch_of = data.batches(folder / "checkpoint")
    rules = Counter(batch for (source, _), batch in batch_of.items() if source == "r")
    for row in rows_in(folder):
        before = sum(count for batch, count in rules.items() if batch <= batch_of["a", row["number"]])
        faults.wrong += row["rules"] < before or row["most"] != 1


def _keyed_broadcast_checks(faults: Faults, folder: Path, data: Input) -> None:
    _rules_checks(faults, folder, data)
    check_windows(faults, rows_in(folder, WINDOWS), [row for row in data.rows() if row["source"] == "a"])


def _half_empty(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source) for source in "abc")
    nothing = [stream.filter(lambda batch: pa.array([False] * batch.num_rows)) for stream in (b, c)]
    counted = a.union(*nothing).key_by("key").process(Count, name="count")
    return [counted.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _half_empty_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data, "a")


def _keyed_stages(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    first = read(spark, folder, "a").key_by("key").process(Count, name="first")
    second = first.key_by("source", "key").process(Count, name="second")
    return [second.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _keyed_stages_parallelism(parallelism: int, case: Case) -> dict[str, int]:
    """Two stages that trade places: 12 and 7, then 7 and 12."""
    other = {case.old: case.new, case.new: case.old}.get(parallelism, 3)
    return {"first": parallelism, "second": other}


def _several_outputs(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").key_by("key").process(Count, name="count")
    even = counted.filter(lambda batch: pa.array([n % 2 == 0 for n in batch["number"].to_pylist()]), name="even")
    return [
        counted.map_batches(takes(cost), name="slow").write(paimon(folder), name="all"),
        even.write(paimon(folder, "shop.even"), name="even_rows"),
    ]


def _several_outputs_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data)
    even = [row for row in data.rows() if row["number"] % 2 == 0]
    found = rows_in(folder, "shop.even")
    faults.lost += max(0, len(even) - len(found))
    faults.duplicated += len(found) - len({(row["source"], row["number"]) for row in found})


BUFFER = 64 << 10
LARGE = (100, 8 * BUFFER, 24 * BUFFER)
"""Records of many times a read, some larger than the whole prefetch budget."""

SHAPES: dict[str, Shape] = {
    "pipeline": Shape(_pipeline, checks=_windows_checks),
    "multi_input": Shape(_multi_input, ("a", "b", "c"), _windows_checks),
    "union": Shape(_union, ("a", "b", "c"), _windows_checks),
    "keyed_broadcast": Shape(_keyed_broadcast, ("a", "r"), _keyed_broadcast_checks),
    "broadcast": Shape(_broadcast, ("a", "r"), _rules_checks),
    "two_edges": Shape(_two_edges, checks=lambda faults, folder, data: check_table(faults, folder, data, copies=2)),
    "keyed_stages": Shape(_keyed_stages, stages=_keyed_stages_parallelism),
    "half_empty_union": Shape(_half_empty, ("a", "b", "c"), _half_empty_checks),
    "several_outputs": Shape(_several_outputs, checks=_several_outputs_checks),
    "large_records": Shape(
        _large,
        pads=LARGE,
        rows=150,
        options={"prefetch_bytes": 8 * BUFFER, "segment_bytes": 8 * BUFFER, "max_in_flight": "10 GB"},
    ),
}
