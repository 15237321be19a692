"""Windows in the whole engine, without Spark: barriers anywhere, crashes, restarts at other parallelism (D2, A10)."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.stream import Stream
from penstock.errors import CheckpointMismatch, PipelineError
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import crash_in_job, run_until

SCHEMA = pa.schema([("user", pa.int64()), ("ts", pa.timestamp("us", "UTC")), ("amount", pa.int64())])
START = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)


class TickingClock:
    """Each look at it takes a millisecond, so the barrier fires in the middle of everything."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Half a second from row to row, out of order by up to four seconds, with pauses."""
    chance = random.Random(seed)
    made, second = [], 0.0
    for number in range(count):
        second += chance.choice([0, 0.5, 0.5, 12 if number % 97 == 0 else 0.5])
        ts = START + dt.timedelta(seconds=second - chance.uniform(0, 4))
        made.append({"user": chance.randint(0, 9), "ts": ts, "amount": number})
    return made


def batches(data: list[dict[str, Any]], size: int) -> list[dict[str, pa.Table]]:
    """The data, a late row and one without a time, then a row so new that all windows close."""
    late = [{"user": 1, "ts": START - dt.timedelta(days=1), "amount": -1}, {"user": 1, "ts": None, "amount": -2}]
    end = [{"user": 3, "ts": START + dt.timedelta(days=1), "amount": 0}]
    parts = [*(data[n : n + size] for n in range(0, len(data), size)), late, end]
    return [{"source": pa.Table.from_pylist(part, schema=SCHEMA)} for part in parts]


def stream() -> Stream:
    return stream_of(SCHEMA, event_time="ts", watermark="5 s")


def floor(ts: dt.datetime, seconds: int) -> dt.datetime:
    return START + (ts - START) // dt.timedelta(seconds=seconds) * dt.timedelta(seconds=seconds)


def tumbling_oracle(data: list[dict[str, Any]], seconds: int) -> Counter[Any]:
    counts: Counter[Any] = Counter((row["user"], floor(row["ts"], seconds)) for row in data)
    return Counter({(*key, n): 1 for key, n in counts.items()})


def found(table: str) -> Counter[Any]:
    return Counter((r["user"], r["window_start"], r["n"]) for r in memory_table(table).rows().to_pylist())


@pytest.mark.parametrize("seed", [1, 2])
def test_restarts_crashes_and_barriers_change_no_window(tmp_path: Path, table: str, seed: int) -> None:
    """D2, A6, A10, B2: late rows are those that came late, and the rest is counted once."""
    data = rows(400, seed)
    run = InlineRun(batches(data, 60), TickingClock())
    run.prepare = crash_in_job({2, 5, 9})
    windows = stream().key_by("user").window(pen.tumbling_window("10 s")).aggregate(n=pen.count(), name="windows")
    outputs = windows.write(Memory(table)), windows.side("late").write(Memory(f"{table}-late"))
    for parallelism, stop_at in ((3, 4), (1, 7)):
        run_until(
            run, outputs, lambda event, stop_at=stop_at: event.checkpoint >= stop_at, checkpoint=tmp_path,
            epoch="20 ms", parallelism=parallelism,
        )  # fmt: skip
    query = run.start(*outputs, checkpoint=tmp_path, epoch="20 ms", parallelism=2)
    query.await_termination(60)
    assert found(table) == tumbling_oracle(data, 10)
    assert query.manifest().counters == {"windows.late": 2}
    assert memory_table(f"{table}-late").rows()["amount"].to_pylist() == [-1, -2]


def test_a_window_over_results_of_windows_holds_those_that_end_with_it(tmp_path: Path, table: str) -> None:
    """D2, A10: no result is late, and none falls into the window behind its own."""
    data = rows(200, 3)
    output = (
        stream()
        .key_by("user")
        .window(pen.tumbling_window("5 s"))
        .aggregate(n=pen.count(), name="small")
        .key_by("user")
        .window(pen.tumbling_window("20 s"))
        .aggregate(n=pen.sum("n"), name="large")
    )
    run = InlineRun(batches(data, 40), TickingClock())
    late = output.side("late").write(Memory(f"{table}-late"))
    run.start(output.write(Memory(table)), late, checkpoint=tmp_path, epoch="20 ms").await_termination(60)
    assert found(table) == tumbling_oracle(data, 20)
    assert memory_table(f"{table}-late").rows().num_rows == 0


def test_an_output_column_may_be_called_name(tmp_path: Path, table: str) -> None:
    output = stream().key_by("user").aggregate({"name": pen.count()}, name="totals").write(Memory(table))
    run = InlineRun(batches(rows(20, 1), 20), TickingClock())
    run.start(output, checkpoint=tmp_path, epoch=None).await_termination(30)
    assert memory_table(table).rows().column_names == ["user", "name"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: stream().key_by("user").window("1 min"), ["window('1 min')", "pen.tumbling_window"]),
        (lambda: stream_of(SCHEMA).key_by("user").window(pen.tumbling_window("1 s")),
         ["without event time", "event_time"]),
        (lambda: stream_of(SCHEMA).key_by("user").window(pen.tumbling_window("1 s"), on="ts"), ["without event time"]),
        (lambda: stream().key_by("user").window(pen.tumbling_window("1 s"), on="amount").aggregate(n=pen.count()),
         ["'amount' of type int64", "timestamps"]),
        (lambda: stream().key_by("user").window(pen.tumbling_window("1 s"), emit="never").aggregate(n=pen.count()),  # type: ignore[arg-type]
         ["emit='never'", "on_update"]),
        (lambda: stream().key_by("user").window(pen.session_window("1 s"), emit="on_update").aggregate(n=pen.count()),
         ["session", "watermark"]),
        (lambda: stream().key_by("user").window(pen.session_window("1 s"), allowed_lateness="1 s").aggregate(
            n=pen.count()), ["session", "watermark"]),
        (lambda: stream().key_by("user").window(pen.tumbling_window("1 s")).aggregate(window_end=pen.count()),
         ["'window_end' is an output column twice"]),
        (lambda: stream().key_by("user").window(pen.tumbling_window("1 s")).aggregate(), ["aggregate(n=pen.count()"]),
        (lambda: pen.sliding_window("1 s", every="2 s"), ["every 2 s"]),
        (lambda: pen.tumbling_window("0 s"), ["size is '0 s'"]),
    ],
)  # fmt: skip
def test_what_cannot_work_is_refused_when_the_pipeline_is_built(make: Any, words: list[str]) -> None:
    """E5"""
    with pytest.raises(PipelineError) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (pen.tumbling_window("10 s"), pen.tumbling_window("20 s")),
        (pen.session_window("10 s"), pen.session_window("20 s")),
    ],
)
def test_a_window_of_another_length_does_not_fit_the_checkpoint(
    tmp_path: Path, table: str, before: Any, after: Any
) -> None:
    """E6"""
    data = batches(rows(20, 1), 20)
    for window, fits in ((before, True), (after, False)):
        windows = stream().key_by("user").window(window).aggregate(n=pen.count(), name="windows")
        run = InlineRun(data, TickingClock())
        if fits:
            run.start(windows.write(Memory(table)), checkpoint=tmp_path, epoch=None).await_termination(30)
        else:
            with pytest.raises(CheckpointMismatch, match="windows"):
                run.start(windows.write(Memory(table)), checkpoint=tmp_path, epoch=None)
