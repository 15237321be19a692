"""Spans of event time that change: of deduplication, joins and windows. Without Spark, with state that is there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import CheckpointMismatch
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock

CLICKS = pa.schema({"user": pa.int64(), "at": pa.timestamp("us", "UTC"), "n": pa.int64()})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def clicks(*rows: tuple[int, int]) -> pa.Table:
    """Rows of one user: seconds after noon, and a number."""
    times = [NOON + timedelta(seconds=at) for at, _ in rows]
    values = {"user": [1 for _ in rows], "at": times, "n": [n for _, n in rows]}
    return pa.table(values, schema=CLICKS)


class Spans:
    """Two programs one after the other on one folder: each gets micro-batches of its own."""

    def __init__(self, folder: Path, table: str) -> None:
        self.folder, self.table = folder, table
        self.batches: list[dict[str, pa.Table]] = []
        self.query: Any = None

    def read(self, name: str = "clicks") -> pen.KeyedStream:
        return stream_of(CLICKS, name, event_time="at", watermark="1 h").key_by("user")

    def run(self, stream: pen.Stream, *batches: dict[str, pa.Table], **options: Any) -> None:
        accepted = len(self.batches)
        self.batches += batches
        inline = InlineRun(self.batches, FakeClock())
        inline.accepted[:] = range(accepted)
        output = stream.write(Memory(self.table), name="out")
        self.query = inline.start(output, checkpoint=self.folder, epoch=None, max_parallelism=16, **options)
        self.query.await_termination(60)

    def rows(self) -> list[dict[str, Any]]:
        return memory_table(self.table).rows().to_pylist()


@pytest.fixture
def spans(tmp_path: Path, table: str) -> Spans:
    return Spans(tmp_path, table)


def test_a_longer_deduplication_counts_for_rows_from_now_on(spans: Spans) -> None:
    """Row "the span of a deduplication changes": a key that is there stays a duplicate as long as it was told then."""
    spans.run(spans.read().deduplicate(within="10 s", name="once"), {"clicks": clicks((0, 1), (5, 2))})
    after = spans.read().deduplicate(within="60 s", name="once")
    spans.run(after, {"clicks": clicks((8, 3), (20, 4), (70, 5), (81, 6))})
    assert [row["n"] for row in spans.rows()] == [1, 4, 6]


def joined(spans: Spans, within: str) -> pen.Stream:
    return spans.read("left").join(spans.read("right"), within=within, name="pairs")


def test_a_join_with_nearly_the_same_span_goes_on(spans: Spans) -> None:
    """Row "the span of a join changes a little": rows that wait are found by the new span."""
    spans.run(joined(spans, "100 s"), {"left": clicks((0, 1)), "right": clicks()})
    spans.run(joined(spans, "120 s"), {"left": clicks(), "right": clicks((110, 7))})
    assert [(row["n"], row["n_right"]) for row in spans.rows()] == [(1, 7)]


def test_a_join_with_a_far_longer_span_is_refused(spans: Spans) -> None:
    """Row "the span of a join changes much": its rows are stored by slots of another length."""
    spans.run(joined(spans, "1 s"), {"left": clicks((0, 1)), "right": clicks()})
    with pytest.raises(CheckpointMismatch, match=r"reset=\['pairs'\]"):
        spans.run(joined(spans, "1 day"))
    before = spans.query.manifest().checkpoint
    spans.run(joined(spans, "1 day"), {"left": clicks(), "right": clicks((1, 7))}, reset=["pairs"], restore=before)
    assert spans.rows() == [], "what waited is gone"


def counted(spans: Spans, length: str) -> pen.Stream:
    return spans.read().window(pen.tumbling_window(length)).aggregate(n=pen.count(), name="per_window")


def test_another_window_begins_empty_where_the_plan_says(spans: Spans) -> None:
    """Row "the length of a window changes"."""
    spans.run(counted(spans, "10 min"), {"clicks": clicks((0, 1), (5000, 2))})
    with pytest.raises(CheckpointMismatch, match=r"reset=\['per_window'\]"):
        spans.run(counted(spans, "5 min"))
    before = spans.query.manifest().checkpoint
    output = counted(spans, "5 min").write(Memory(spans.table), name="out")
    plan = output.start(spans.folder, dry_run=True, max_parallelism=16, reset=["per_window"], restore=before)
    state = [line for line in plan.lines if line.kind == "state"]
    assert any("begin after 2026-01-01 13:23:20 UTC are complete" in line.detail for line in state), str(plan)
    late = {"clicks": clicks((5100, 3), (20_000, 4))}
    spans.run(counted(spans, "5 min"), late, reset=["per_window"], restore=before)
    starts = {row["window_start"]: row["n"] for row in spans.rows()}
    assert starts[NOON + timedelta(seconds=5100)] == 1
