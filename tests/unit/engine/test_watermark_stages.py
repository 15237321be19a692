"""Watermarks reach windows through stages that have nothing else to do (A10, A11)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000


class Same(pen.KeyedProcess):
    """Hands rows on, as a stage of its own."""

    output = SCHEMA
    seen = pen.value_state(pa.int64())

    def process(self, key, rows, state, out):
        state.seen = (state.seen or 0) + len(rows)
        out.emit_many(rows)


def batch(seconds: list[int]) -> pa.Table:
    times = pa.array([second * SECOND for second in seconds]).cast(SCHEMA.field("ts").type)
    return pa.table([[second % 3 for second in seconds], times], schema=SCHEMA)


@pytest.mark.parametrize("stages", [0, 1, 3])
def test_the_last_windows_close_though_no_more_rows_come(
    tmp_path: Path, clock: FakeClock, table: str, stages: int
) -> None:
    """A row far in the future closes all windows before it, however many stages are between, before the query ends."""
    stream = stream_of(SCHEMA, event_time="ts", watermark="1 s")
    for _ in range(stages):
        stream = stream.key_by("user").process(Same)
    counts = stream.key_by("user").window(pen.tumbling_window("10 s")).aggregate(n=pen.count(), name="counts")
    run = InlineRun([{"source": batch(list(range(60)))}, {"source": batch([1_000])}], clock)
    run.start(counts.write(Memory(table)), checkpoint=tmp_path, parallelism=2).await_termination(60)
    rows = memory_table(table).rows().to_pylist()
    assert sum(row["n"] for row in rows) == 60
    assert len({(row["user"], row["window_start"]) for row in rows}) == len(rows) == 18
