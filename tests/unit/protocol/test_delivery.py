"""What was delivered is counted outside of the code that reads it, and held against what that code accepted."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConservationError
from penstock.inflight.delivery import CountedStream
from penstock.inflight.live import LiveInputs, LiveRows
from penstock.inflight.segment import HASH_COLUMN, SegmentWriter, edge_schema
from penstock.protocol.delivery import miscounted, misdelivered
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import EdgeState
from penstock.protocol.plan import InputFacts, StagePlan, plan_subtasks
from penstock.protocol.report import InputReport, SubtaskReport
from penstock.protocol.violation import Violation
from penstock.store import MemoryStore
from penstock.testing import Harness, stream_of
from penstock.testing.inline import InlineCluster, InlineRun
from penstock.testing.mixing import live_batches
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock

SCHEMA = pa.schema([("user", pa.int64()), ("number", pa.int64())])


def plan_of(*live: str, recovered: str = "old") -> StagePlan:
    inputs = {edge: InputFacts(EdgeState(), live=True) for edge in live}
    return StagePlan(
        stage="s",
        checkpoint=2,
        generation=1,
        parallelism=2,
        max_parallelism=8,
        budget_s=None,
        row_cost_s=None,
        consumer_parallelism={},
        subtasks=plan_subtasks(
            inputs={**inputs, recovered: InputFacts(EdgeState())}, state={}, parallelism=2, max_parallelism=8
        ),
    )


def report(subtask: int, accepted: dict[str, int], delivered: dict[str, int]) -> SubtaskReport:
    inputs = tuple(InputReport(edge=edge, live_accepted=rows) for edge, rows in accepted.items())
    return SubtaskReport(stage="s", subtask=subtask, checkpoint=2, attempt="a", inputs=inputs, delivered=delivered)


@pytest.mark.parametrize(
    ("accepted", "delivered", "found"),
    [
        ({"a": 5, "b": 0, "old": 0}, {"a": 5, "b": 0}, []),
        ({"a": 4, "b": 0}, {"a": 5, "b": 0}, ["5 live rows delivered, 4 accepted"]),
        ({"a": 6, "b": 0}, {"a": 5, "b": 0}, ["5 live rows delivered, 6 accepted"]),
        (
            {"a": 0, "b": 5},
            {"a": 5, "b": 0},
            ["5 live rows delivered, 0 accepted", "0 live rows delivered, 5 accepted"],
        ),
        ({"b": 2}, {"a": 1, "b": 2}, ["1 live rows delivered, 0 accepted"]),
        ({"a": 5, "b": 1}, {"a": 5}, ["the live rows that were delivered were not counted; 1 accepted"]),
        ({"a": 5, "b": 0}, {"a": 5}, ["the live rows that were delivered were not counted; 0 accepted"]),
        ({"a": 0, "b": 0, "old": 3}, {"a": 0, "b": 0}, ["0 live rows delivered, 3 accepted"]),
        ({"a": 0, "b": 0}, {"a": 0, "b": 0, "c": 9}, ["9 live rows delivered, 0 accepted"]),
    ],
)
def test_rows_delivered_are_rows_accepted_by_edge_and_subtask(
    accepted: dict[str, int], delivered: dict[str, int], found: list[str]
) -> None:
    others = report(0, {"a": 1, "b": 1}, {"a": 1, "b": 1})
    violations = list(misdelivered(plan_of("a", "b"), [others, report(1, accepted, delivered)]))
    assert [violation.what for violation in violations] == found
    assert all(violation.where.endswith(", subtask 1") for violation in violations)


def test_the_cluster_counts_all_subtasks_together() -> None:
    reports = [report(0, {}, {"a": 3, "b": 2}), report(1, {}, {"a": 1, "b": 0})]
    assert list(miscounted(plan_of("a", "b"), reports, 6)) == []
    assert list(miscounted(plan_of("a", "b"), reports, None)) == []
    for handed_over in (5, 7):
        what = f"{handed_over} live rows handed over by the cluster, 6 delivered"
        assert list(miscounted(plan_of("a", "b"), reports, handed_over)) == [Violation("stage s", what)]


def rows_of_edge(rows: int, first: int = 0) -> pa.RecordBatch:
    numbers = pa.array(range(first, first + rows), pa.int64())
    return pa.RecordBatch.from_arrays([numbers, numbers, numbers], [*SCHEMA.names, HASH_COLUMN])


@pytest.mark.parametrize("seed", range(40))
def test_a_mixed_stream_has_the_rows_of_each_edge_in_order(seed: int) -> None:
    chance = random.Random(seed)
    parts = [rows_of_edge(chance.choice((0, 1, 30, 300)), 1000 * port) for port in range(chance.randint(1, 4))]
    edges = [f"e{port}" for port in range(len(parts))]
    stream = CountedStream(iter(live_batches(parts, chance)), edges)
    inputs = LiveInputs.mixed(stream, edges, 0) if len(parts) > 1 else LiveInputs.single(stream, "e0")
    writers = [Kept() for _ in parts]
    for edge, writer in zip(edges, writers, strict=True):
        inputs.attach(edge, LiveRows(edge_schema(SCHEMA), lambda _, writer=writer: writer))
    inputs.drain()
    for part, writer in zip(parts, writers, strict=True):
        assert writer.rows == part.to_pylist()
    stamped = stream.stamped(report(0, {}, {}))
    assert stamped.delivered == {edge: part.num_rows for edge, part in zip(edges, parts, strict=True)}


class Kept:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.to_pylist()

    def close(self) -> list:
        return []


def test_streams_are_mixed_in_many_ways() -> None:
    """Runs of one edge, alternation, row by row; batches of one row, and one batch for all."""
    parts = [rows_of_edge(50), rows_of_edge(50)]
    changes, counts = set(), set()
    for seed in range(100):
        batches = live_batches(parts, random.Random(seed))
        ports = [port for batch in batches for port in batch.column(0).to_pylist()]
        changes.add(sum(one != other for one, other in pairwise(ports)))
        counts.add(len(batches))
    assert {1, 99} <= changes, "all rows of one edge first, and strictly in turn"
    assert {1, 100} <= counts
    assert min(len(changes), len(counts)) > 10


def test_a_stream_that_was_not_read_to_its_end_is_a_failure() -> None:
    stream = CountedStream(iter([rows_of_edge(3)] * 2), ["a"])
    next(stream)
    failed = stream.stamped(report(1, {"a": 3}, {})).failure
    assert failed is not None
    assert failed.code == ConservationError.code
    assert "subtask 1: live rows were left unread behind {'a': 3}" in failed.seen
    next(stream)
    assert stream.stamped(report(1, {"a": 6}, {})).failure is not None, "nobody knows yet that this was the last one"
    assert next(stream, None) is None
    assert stream.stamped(report(1, {"a": 6}, {})).delivered == {"a": 6}


def test_a_number_that_is_no_edge_stops_the_count() -> None:
    batch = pa.record_batch({"port": pa.array([0, 2], pa.int32())})
    with pytest.raises(ValueError, match="shapes"):
        next(CountedStream(iter([batch]), ["a", "b"]))


def test_a_closed_segment_takes_no_rows() -> None:
    writer = SegmentWriter(
        MemoryStore(),
        lambda sequence: f"s{sequence}",
        edge_schema(SCHEMA),
        groups=KeyGroupRange(0, 8),
        epoch=1,
        producer=0,
        watermark=None,
        max_parallelism=8,
    )
    writer.write(rows_of_edge(3))
    assert [segment.rows for segment in writer.close()] == [3]
    with pytest.raises(ConservationError, match="2 rows for a segment of epoch 1 came after it was closed"):
        writer.write(rows_of_edge(2))


# -- in whole queries --------------------------------------------------------------------------------------------------


def union_run(clock: FakeClock, rows: int = 300, batches: int = 3) -> InlineRun:
    def table(first: int) -> pa.Table:
        numbers = range(first, first + rows)
        return pa.table([[n % 5 for n in numbers], list(numbers)], schema=SCHEMA)

    return InlineRun(
        [{"a": table(2 * k * rows), "b": table((2 * k + 1) * rows)} for k in range(batches)],
        clock,
    )


def union_into(table: str) -> Any:
    return stream_of(SCHEMA, "a").union(stream_of(SCHEMA, "b")).write(Memory(table))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("budget", [1, 2000, "16 MiB"])
def test_a_union_loses_no_row_in_any_order(
    tmp_path: Path, clock: FakeClock, table: str, seed: int, budget: object
) -> None:
    def prepare(cluster: InlineCluster) -> None:
        cluster.seed = seed

    run = union_run(clock)
    run.prepare = prepare
    run.start(union_into(table), checkpoint=tmp_path, parallelism=2, prefetch_bytes=budget).await_termination(60)
    assert sorted(row["number"] for row in memory_table(table).rows().to_pylist()) == list(range(1800))


def drops_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that overlooks rows: it neither hands them on nor counts them."""
    read, calls = LiveInputs._read, iter(range(1 << 30))

    def skipping(self: LiveInputs) -> bool:
        if next(calls) == 1:
            next(self._batches, None)
        return read(self)

    monkeypatch.setattr(LiveInputs, "_read", skipping)


def test_a_reader_that_overlooks_rows_is_noticed(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drops_a_batch(monkeypatch)
    query = union_run(clock).start(union_into(table), checkpoint=tmp_path, parallelism=1)
    with pytest.raises(ConservationError, match=r"subtask 0: \d+ live rows delivered, \d+ accepted"):
        query.await_termination(60)
    assert query.manifest().checkpoint == 1
    assert memory_table(table).snapshots == []


def test_a_reader_that_stops_early_is_noticed(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LiveInputs, "drain", lambda self: setattr(self, "ended", True))
    monkeypatch.setattr(LiveInputs, "read_for", lambda *_: False)
    query = union_run(clock).start(union_into(table), checkpoint=tmp_path, parallelism=1)
    with pytest.raises(ConservationError, match="live rows were left unread"):
        query.await_termination(60)


def test_a_count_that_misses_rows_is_noticed_by_the_cluster(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that never reach the counted stream: only who handed them over knows of them."""
    original = CountedStream.__init__
    monkeypatch.setattr(
        CountedStream, "__init__", lambda self, batches, edges: original(self, iter(list(batches)[1:]), edges)
    )
    query = union_run(clock).start(union_into(table), checkpoint=tmp_path, parallelism=1)
    with pytest.raises(
        ConservationError, match=r"stage union: 600 live rows handed over by the cluster, \d+ delivered"
    ):
        query.await_termination(60)


@pytest.mark.parametrize("seed", range(5))
def test_a_harness_mixes_sources_and_has_a_small_budget_on_demand(seed: int) -> None:
    left, right = stream_of(SCHEMA, "a"), stream_of(SCHEMA, "b")
    harness = Harness(left.union(right), steps=1, prefetch_bytes=10, seed=seed)
    rows = [{"user": n % 3, "number": n} for n in range(200)]
    harness.feed(a=rows[:120], b=rows[120:])
    harness.settle()
    found = harness.output()
    assert sorted(row["number"] for row in found) == list(range(200))
