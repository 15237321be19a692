"""The pipelines of the rescale matrix: how each is built, and what its tables must hold."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

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
    micros_of,
)
from tests.support.spark_streams import paimon, rows_in, stream

if TYPE_CHECKING:
    from tests.spark.matrix import Case

ROWS = 900
SLOW_ROWS = 120
SLOW_ROW_COST_S = 0.005
WORK_S = 8.0
"""What all records take together while a case needs them in flight: more than its phases last."""
WINDOWS = "shop.windows"
MIXED = "shop.mixed"
JOINED_US = 2_000_000
Cost: TypeAlias = float | Path
"""Seconds per record, or a file that says how many."""
COUNTED = "source string, number bigint, key bigint, ts timestamp, seq bigint"


class Count(pen.KeyedProcess):
    """Numbers the records of each key, in the order in which it sees them."""

    output = COUNTED
    seen = pen.value_state("bigint")

    def process(self, key, rows, state, out):
        for row in rows:
            state.seen = (state.seen or 0) + 1
            out.emit(source=row["source"], number=row["number"], key=row["key"], ts=row["ts"], seq=state.seen)


class CountAll(pen.ConnectProcess):
    """Numbers the records of each key over three inputs."""

    inputs = ("a", "b", "c")
    output = COUNTED
    seen = pen.value_state("bigint")

    def process(self, port, key, rows, state, out):
        Count.process(self, key, rows, state, out)


class CountTwice(pen.ConnectProcess):
    """The same stream over two edges, counted per edge."""

    inputs = ("left", "right")
    output = f"{COUNTED}, port int"
    left = pen.value_state("bigint")
    right = pen.value_state("bigint")

    def process(self, port, key, rows, state, out):
        for row in rows:
            seen = (getattr(state, port) or 0) + 1
            setattr(state, port, seen)
            out.emit(**{**row, "seq": seen}, port=self.inputs.index(port))


class Ruled(pen.ConnectProcess):
    """Numbers the records of each key; tells how many broadcast rows were seen before, and the most often seen one."""

    inputs = ("records", "rules")
    output = f"{COUNTED}, rules bigint, most bigint"
    seen = pen.value_state("bigint")
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


def takes(cost: Cost) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A map that costs time per record."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        cost_s = float(cost.read_text()) if isinstance(cost, Path) else cost
        time.sleep(cost_s * batch.num_rows)  # the work itself, not a way to wait for something
        return batch

    return work


def cost_file(folder: Path) -> Path:
    return folder / "cost"


def set_cost(folder: Path, cost_s: float) -> None:
    """Records that are dear stay in flight; once a case has seen what it needs, they cost nothing."""
    hidden = folder / ".cost"
    hidden.write_text(str(cost_s))
    hidden.rename(cost_file(folder))


def read(spark: SparkSession, folder: Path, source: str, files_per_batch: int = 1) -> pen.Stream:
    frame = stream(spark, folder / "in" / source, RECORD, files_per_batch)
    return pen.read(frame, name=source, event_time="ts", watermark=DISORDER_US / 1e6)


def check_table(faults: Faults, folder: Path, data: Input, sources: str = "abc", copies: int = 1) -> None:
    """The table of records, of those sources that reach it."""
    expected = [row for row in data.rows() if row["source"] in sources]
    check_records(faults, rows_in(folder), expected, data, folder / "checkpoint", copies)


@dataclass(frozen=True)
class Shape:
    """One shape of pipeline."""

    build: Callable[[SparkSession, Path, Cost], Sequence[pen.Output]]
    sources: tuple[str, ...] = ("a",)
    checks: Callable[[Faults, Path, Input], None] = check_table
    pads: tuple[int, ...] = (0, 10)
    rows: int = ROWS
    options: Mapping[str, Any] = field(default_factory=dict)
    stages: Callable[[int, Case], int | dict[str, int]] = lambda parallelism, _: parallelism
    held_checkpoints: int = 1
    """So many checkpoints of the last phase must have rows in flight."""

    def input(self, seed: int, rows: int | None = None, *, slow: bool) -> Input:
        rows = rows or (SLOW_ROWS if slow else self.rows)
        return make_input(self.sources, rows // len(self.sources), seed, self.pads)

    def outputs(self, spark: SparkSession, folder: Path) -> Sequence[pen.Output]:
        return self.build(spark, folder, cost_file(folder))

    def parallelism(self, count: int, case: Case) -> int | dict[str, int]:
        return self.stages(count, case)

    def check(self, folder: Path, data: Input) -> Faults:
        faults = Faults()
        self.checks(faults, folder, data)
        return faults


def with_windows(counted: pen.Stream, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    """Records into one table behind a slow map, windows of them into another."""
    slow = counted.map_batches(takes(cost), name="slow")
    windows = slow.key_by("key").window(pen.tumbling_window(WINDOW_US / 1e6)).aggregate(n=pen.count(), name="windows")
    return [slow.write(paimon(folder), name="records"), windows.write(paimon(folder, WINDOWS), name="window_rows")]


def _windows_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data)
    check_windows(faults, rows_in(folder, WINDOWS), data.rows())


def _pipeline(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").map_batches(lambda batch: batch).key_by("key").process(Count, name="count")
    return with_windows(counted, folder, cost)


def _slow_first(spark: SparkSession, folder: Path, cost: float) -> Sequence[pen.Output]:
    """Two files are two partitions of a micro-batch, so two lanes of a slow stage without a key; a key is in both."""
    slow = read(spark, folder, "a", files_per_batch=2).map_batches(takes(cost), name="slow")
    return [slow.key_by("key").process(Count, name="count").write(paimon(folder))]


def _large(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").map_batches(lambda batch: batch).key_by("key").process(Count, name="count")
    return [counted.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _union(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source) for source in "abc")
    return with_windows(a.union(b, c).key_by("key").process(Count, name="count"), folder, cost)


def _multi_input(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source).key_by("key") for source in "abc")
    return with_windows(a.connect(b, c, process=CountAll, name="count"), folder, cost)


def _two_edges(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    counted = read(spark, folder, "a").key_by("key").process(Count, name="count")
    twice = counted.key_by("key").connect(counted.key_by("key"), process=CountTwice, name="twice")
    return [twice.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _keyed_broadcast(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    rules = read(spark, folder, "r").broadcast()
    ruled = read(spark, folder, "a").key_by("key").connect(rules, process=Ruled, name="ruled")
    return with_windows(ruled, folder, cost)


def _broadcast(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
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


def _half_empty(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source) for source in "abc")
    nothing = [stream.filter(lambda batch: pa.array([False] * batch.num_rows)) for stream in (b, c)]
    counted = a.union(*nothing).key_by("key").process(Count, name="count")
    return [counted.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _half_empty_checks(faults: Faults, folder: Path, data: Input) -> None:
    check_table(faults, folder, data, "a")


def _keyed_stages(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    first = read(spark, folder, "a").key_by("key").process(Count, name="first")
    second = first.key_by("source", "key").process(Count, name="second")
    return [second.map_batches(takes(cost), name="slow").write(paimon(folder))]


def _keyed_stages_parallelism(parallelism: int, case: Case) -> dict[str, int]:
    """Two stages that trade places: 12 and 7, then 7 and 12."""
    other = {case.old: case.new, case.new: case.old}.get(parallelism, 3)
    return {"first": parallelism, "second": other}


def _several_outputs(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
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


def _join(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    """Each record of one source with those of the other that have its key and are at most two seconds away."""
    a, b = (read(spark, folder, source).key_by("key") for source in "ab")
    pairs = a.join(b, within=JOINED_US / 1e6)
    return [pairs.map_batches(takes(cost)).write(paimon(folder))]


def _join_checks(faults: Faults, folder: Path, data: Input) -> None:
    by_key: dict[int, dict[str, list[dict[str, Any]]]] = {}
    for row in data.rows():
        by_key.setdefault(row["key"], {"a": [], "b": []})[row["source"]].append(row)
    want = Counter(
        (left["number"], right["number"])
        for rows in by_key.values()
        for left in rows["a"]
        for right in rows["b"]
        if abs(micros_of(left["ts"]) - micros_of(right["ts"])) <= JOINED_US
    )
    faults.compare("pairs", want, Counter((row["number"], row["number_right"]) for row in rows_in(folder)))


class CountHeldBack(CountAll):
    """As `CountAll`; the first input waits for the others."""


def _hold_back(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    a, b, c = (read(spark, folder, source).key_by("key") for source in "abc")
    return with_windows(a.connect(b, c, process=CountHeldBack, hold_back=["a"]), folder, cost)


def _self_union(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    """One stream with itself, and with another, beside each other, under the names that they get by default."""
    a, b = (read(spark, folder, source).map_batches(lambda batch: batch) for source in "ab")
    doubled = a.union(a).map_batches(takes(cost))
    mixed = a.union(b).map_batches(takes(cost))
    return [doubled.write(paimon(folder)), mixed.write(paimon(folder, MIXED))]


def _copies(faults: Faults, rows: Sequence[dict[str, Any]], data: Input, copies: Mapping[str, int]) -> None:
    want = Counter({(row["source"], row["number"]): copies[row["source"]] for row in data.rows()})
    faults.compare("copies", want, Counter((row["source"], row["number"]) for row in rows))


def _self_union_checks(faults: Faults, folder: Path, data: Input) -> None:
    _copies(faults, rows_in(folder), data, {"a": 2, "b": 0})
    _copies(faults, rows_in(folder, MIXED), data, {"a": 1, "b": 1})


def _diamond(spark: SparkSession, folder: Path, cost: Cost) -> Sequence[pen.Output]:
    """Two ways for one source, one of them dear, that meet with another source in one stage."""
    a, b = (read(spark, folder, source) for source in "ab")
    met = a.union(a.map_batches(takes(cost)), b)
    return [met.key_by("key").process(Passed).write(paimon(folder))]


class Passed(pen.KeyedProcess):
    """Hands records on."""

    output = "source string, number bigint"

    def process(self, key, rows, state, out):
        for row in rows:
            out.emit(source=row["source"], number=row["number"])


def _diamond_checks(faults: Faults, folder: Path, data: Input) -> None:
    _copies(faults, rows_in(folder), data, {"a": 2, "b": 1})


BUFFER = 64 << 10
LARGE = (100, 8 * BUFFER, 24 * BUFFER)
"""Records of many times a read, some larger than the whole prefetch budget."""

SHAPES: dict[str, Shape] = {
    "pipeline": Shape(_pipeline, checks=_windows_checks),
    "slow_first": Shape(_slow_first),
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
        held_checkpoints=5,
    ),
    "large_union": Shape(
        _union,
        ("a", "b", "c"),
        _windows_checks,
        pads=LARGE,
        rows=150,
        options={"prefetch_bytes": BUFFER, "segment_bytes": 8 * BUFFER, "max_in_flight": "10 GB"},
        held_checkpoints=5,
    ),
    "join": Shape(_join, ("a", "b"), _join_checks, options={"prefetch_bytes": BUFFER}),
    "hold_back": Shape(_hold_back, ("a", "b", "c"), _windows_checks, options={"prefetch_bytes": BUFFER}),
    "self_union": Shape(_self_union, ("a", "b"), _self_union_checks, options={"prefetch_bytes": BUFFER}),
    "diamond": Shape(_diamond, ("a", "b"), _diamond_checks, options={"prefetch_bytes": BUFFER}),
}
