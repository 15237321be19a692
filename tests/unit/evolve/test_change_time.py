"""Another event time: what is stored by the time it had before would get rows of other moments, or not be found."""

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

TIME = pa.timestamp("us", "UTC")
ROWS = pa.schema({"user": pa.int64(), "at": TIME, "paid": TIME})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def rows(*minutes: tuple[int, int]) -> pa.Table:
    """Rows of one user: both times in minutes after noon."""
    at, paid = ([NOON + timedelta(minutes=pair[place]) for pair in minutes] for place in (0, 1))
    return pa.table({"user": [1 for _ in minutes], "at": at, "paid": paid}, schema=ROWS)


def read(name: str, time: str) -> pen.KeyedStream:
    return stream_of(ROWS, name, event_time=time, watermark="0 s").key_by("user")


def windows(time: str) -> pen.Stream:
    return read("left", time).window(pen.tumbling_window("10 min")).aggregate(n=pen.count(), name="stored")


def best(time: str) -> pen.Stream:
    return read("left", time).window(pen.tumbling_window("10 min")).top_n(2, by="at", name="stored")


def pairs(time: str) -> pen.Stream:
    return read("left", time).join(read("right", time), within=("-5 min", "5 min"), name="stored")


@pytest.mark.parametrize("made", [windows, best, pairs])
def test_what_is_stored_by_another_time_is_refused_unless_it_begins_empty(
    tmp_path: Path, table: str, made: Any
) -> None:
    """A pair whose first row is stored by `at` would be lost: it is looked for by `paid`."""
    batches = [{"left": rows((0, 1000), (1, 1001)), "right": rows()}]

    def run(stream: pen.Stream, accepted: int, **options: Any) -> Any:
        inline = InlineRun(batches, FakeClock())
        inline.accepted[:] = range(accepted)
        output = stream.write(Memory(table), name="out")
        query = inline.start(output, checkpoint=tmp_path, epoch=None, max_parallelism=16, **options)
        query.await_termination(60)
        return query

    before = run(made("at"), 0)
    with pytest.raises(CheckpointMismatch, match=r"of at|by at") as caught:
        run(made("paid"), 1)
    assert "reset=['stored']" in caught.value.next_step
    run(made("at"), 1)
    assert memory_table(table).rows().num_rows == 0 or made is not pairs
    run(made("paid"), 1, reset=["stored"], restore=before.manifest().checkpoint)
