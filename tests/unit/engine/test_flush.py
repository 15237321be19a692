"""The end of a bounded run, on request: whatever waits for event time comes out, once."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.options import Config
from penstock.errors import ConfigError
from penstock.testing import Harness, stream_of
from penstock.testing.inline import InlineRun
from penstock.testing.tables import Memory, memory_table

START = datetime(2024, 1, 1, tzinfo=UTC)
SCHEMA = pa.schema({"user": pa.int64(), "ts": pa.timestamp("us", "UTC")})


def source(name: str = "s") -> pen.Stream:
    return stream_of(SCHEMA, name, event_time="ts", watermark="1 min")


def at(*seconds: float, user: int = 1) -> list[dict[str, Any]]:
    return [{"user": user, "ts": START + timedelta(seconds=second)} for second in seconds]


def counted(window: Any, **options: Any) -> pen.Stream:
    return source().key_by("user").window(window, **options).aggregate(n=pen.count(), name="w")


def test_open_windows_close_and_later_rows_of_new_windows_are_in_time() -> None:
    harness = Harness(counted(pen.tumbling_window("1 h")))
    assert harness.feed(at(10, 3000, 3601)) == []
    assert [row["n"] for row in harness.flush()] == [2, 1]
    assert harness.flush() == []
    harness.feed(at(7100, 7201))
    assert [row["n"] for row in harness.flush()] == [1]  # 7100 s is in a window that was closed
    assert harness._runner.manifest.counters["w.late"] == 1


def test_sliding_windows_all_close() -> None:
    harness = Harness(counted(pen.sliding_window("10 min", every="1 min")))
    harness.feed(at(0, 30, 90))
    assert sum(row["n"] for row in harness.flush()) == 30


def test_sessions_of_different_ends_all_close() -> None:
    """One key is busy: its timer is set to an end that has moved since."""
    harness = Harness(counted(pen.session_window("5 min")))
    for second in range(0, 3000, 100):
        harness.feed([*at(second), *at(second * 3, user=2 + second), *at(second + 4000, second + 9000, user=7)])
    emitted = harness.flush() and harness.output()
    assert sum(row["n"] for row in emitted) + harness._runner.manifest.counters.get("w.late", 0) == 4 * 30
    assert harness.state("w") == []


def test_windows_of_windows_close_one_after_the_other() -> None:
    inner = counted(pen.tumbling_window("1 min"))
    outer = inner.key_by("user").window(pen.tumbling_window("1 h")).aggregate(n=pen.sum("n"), name="outer")
    harness = Harness(outer)
    harness.feed(at(0, 30, 90, 4000))
    assert [row["n"] for row in harness.flush()] == [3, 1]


def test_rows_without_a_match_come_out_of_outer_joins() -> None:
    left, right = source("left"), source("right")
    joined = left.key_by("user").join(right.key_by("user"), within="10 s", how="full", name="j")
    harness = Harness(joined)
    harness.feed(left=[*at(0, 100), *at(5, user=2)], right=at(5, 300))
    assert len(harness.output()) == 1
    assert len(harness.flush()) == 3


class OnceAnHour(pen.KeyedProcess):
    output = "user bigint, fired bigint"
    n = pen.value_state("bigint")

    def process(self, key, rows, state, out, timers):
        timers.at(rows[-1]["ts"] + timedelta(hours=1))

    def on_timer(self, key, time, state, out, timers):
        state.n = (state.n or 0) + 1
        out.emit(user=key["user"], fired=state.n)
        timers.at(time + timedelta(hours=1))


def test_timers_fire_and_one_that_sets_itself_again_does_not_keep_the_query_for_ever() -> None:
    harness = Harness(source().key_by("user").process(OnceAnHour, name="p"))
    harness.feed(at(0))
    fired = [row["fired"] for row in harness.flush()]
    assert fired[0] == 1
    assert len(fired) <= 64


def test_windows_that_emit_updates_have_nothing_to_flush_and_keep_their_state() -> None:
    harness = Harness(counted(pen.tumbling_window("1 h"), emit="on_update"))
    assert [row["n"] for row in harness.feed(at(10, 20))] == [2]
    assert harness.flush() == []
    assert [row["n"] for row in harness.feed(at(30))] == [3]


def test_allowed_lateness_still_holds_after_a_flush() -> None:
    harness = Harness(counted(pen.tumbling_window("1 h"), allowed_lateness="10 min"))
    harness.feed(at(10))
    assert [row["n"] for row in harness.flush()] == [1]
    assert [row["n"] for row in harness.feed(at(20))] == [2]


@pytest.mark.parametrize("crashes", [1, 3])
def test_a_flush_that_crashes_emits_everything_once(crashes: int) -> None:
    harness = Harness(counted(pen.tumbling_window("1 min")), steps=1, parallelism=3)
    harness.feed([row for user in range(200) for row in at(user % 7, 60, user=user)])
    harness.settle()
    for parallelism in range(1, 1 + crashes):
        harness.crash()
        harness.rescale(parallelism)
        harness.run()
    harness.crash()
    harness.flush()
    assert set(Counter((row["user"], row["window_end"]) for row in harness.output()).values()) == {1}
    assert len(harness.output()) == 400


def run_to_the_end(folder: Path, batches: list[list[dict[str, Any]]], **options: Any) -> list[dict[str, Any]]:
    tables = [{"s": pa.Table.from_pylist(rows, schema=SCHEMA)} for rows in batches]
    query = InlineRun(tables, clock=lambda: 0.0).start(
        counted(pen.tumbling_window("1 h")).write(Memory(str(folder)), name="out"),
        checkpoint=str(folder), trigger="available_now", **options,
    )  # fmt: skip
    assert query.await_termination(30)
    return memory_table(str(folder)).rows().to_pylist()


def test_a_query_flushes_at_its_end_only_if_it_is_asked_to(tmp_path: Path) -> None:
    batches = [at(10, 20), at(3700)]
    assert [row["n"] for row in run_to_the_end(tmp_path / "a", batches)] == [2]
    assert [row["n"] for row in run_to_the_end(tmp_path / "b", batches, flush="end")] == [2, 1]
    # The first query, started again, with nothing new to read.
    assert [row["n"] for row in run_to_the_end(tmp_path / "a", [], flush="end")] == [2, 1]
    assert [row["n"] for row in run_to_the_end(tmp_path / "b", [], flush="end")] == [2, 1]


def test_a_query_without_an_end_cannot_flush_at_it() -> None:
    with pytest.raises(ConfigError, match="has no end"):
        Config.of("here", flush="end", trigger="1 s")
    with pytest.raises(ConfigError, match='"end", or None'):
        Config.of("here", flush="now", trigger="available_now")  # type: ignore[typeddict-item]
