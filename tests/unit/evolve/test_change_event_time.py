"""Event time where sources meet that did not before: the time of their readers never goes back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import FakeClock

CLICKS = pa.schema({"user": pa.int64(), "at": pa.timestamp("us", "UTC")})
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def clicks(*minutes: int) -> pa.Table:
    """Rows of one user at some minutes after noon."""
    values = {"user": [1 for _ in minutes], "at": [NOON + timedelta(minutes=at) for at in minutes]}
    return pa.table(values, schema=CLICKS)


def read(name: str) -> pen.Stream:
    return stream_of(CLICKS, name, event_time="at", watermark="0 s")


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def per_minute(stream: pen.Stream, name: str = "per_minute") -> pen.Stream:
    return stream.key_by("user").window(pen.tumbling_window("1 min")).aggregate(n=pen.count(), name=name)


class Programs:
    """One program after another on one folder; each gets micro-batches of its own."""

    def __init__(self, folder: Path, table: str) -> None:
        self.folder, self.table = folder, table
        self.batches: list[dict[str, pa.Table]] = []

    def run(self, windows: pen.Stream, *batches: dict[str, pa.Table], **more: pen.Stream) -> None:
        accepted = len(self.batches)
        self.batches += batches
        inline = InlineRun(self.batches, FakeClock())
        inline.accepted[:] = range(accepted)
        streams = {"out": windows, "late": windows.side("late"), **more}
        outputs = [stream.write(Memory(self.table + name), name=name) for name, stream in streams.items()]
        query = inline.start(*outputs, checkpoint=self.folder, epoch=None, max_parallelism=16, parallelism=2)
        query.await_termination(60)

    def windows(self, name: str = "out") -> list[tuple[int, int]]:
        """Minutes after noon at which windows begin, and their counts, in the order in which they came."""
        return [(minute(row["window_start"]), row["n"]) for row in self._rows(name)]

    def late(self) -> list[int]:
        return sorted(minute(row["at"]) for row in self._rows("late"))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return memory_table(self.table + name).rows().to_pylist()


def minute(time: datetime) -> int:
    return round((time - NOON).total_seconds() / 60)


@pytest.fixture
def programs(tmp_path: Path, table: str) -> Programs:
    return Programs(tmp_path, table)


@pytest.mark.parametrize(
    "more",
    [
        lambda: read("a").union(read("b"), name="both"),
        lambda: read("a").union(read("b").map_batches(same, name="parse"), name="both"),
        lambda: read("a").union(read("b"), name="both").map_batches(same, name="shown"),
    ],
    ids=["a union", "a union behind a step", "a step behind a union"],
)
def test_rows_of_closed_windows_are_late_although_nothing_is_known_of_a_new_source(
    programs: Programs, more: Callable[[], pen.Stream]
) -> None:
    """Otherwise they would be lost: a window that has closed takes rows and gives nothing."""
    programs.run(per_minute(read("a")), {"a": clicks(0)}, {"a": clicks(5)})
    assert programs.windows() == [(0, 1)]
    programs.run(per_minute(more()), {"a": clicks(0), "b": clicks()}, {"a": clicks(6), "b": clicks(0, 5, 7)})
    assert (programs.windows(), programs.late()) == ([(0, 1), (5, 2)], [0, 0])


def test_rows_of_closed_windows_are_late_although_a_source_that_joins_in_is_behind(programs: Programs) -> None:
    """Both sources were there, each with a window of its own."""

    def others() -> pen.Stream:
        return per_minute(source, "others")

    source = read("b")
    programs.run(
        per_minute(read("a")), {"a": clicks(0), "b": clicks(0)}, {"a": clicks(5), "b": clicks(1)}, also=others()
    )
    assert programs.windows() == [(0, 1)]
    source = read("b")
    together = per_minute(read("a").union(source, name="both"))
    programs.run(together, {"a": clicks(4), "b": clicks(2)}, {"a": clicks(7), "b": clicks(7)}, also=others())
    assert (programs.windows(), programs.late()) == ([(0, 1), (5, 1)], [2, 4])
    assert programs.windows("also") == [(0, 1), (1, 1), (2, 1)]
