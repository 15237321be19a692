"""A function as a sink: every checkpoint in order, at least once, again after failures."""

from __future__ import annotations

import json
import pickle
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine.cluster import JobFailed
from penstock.errors import CommitFailed, ConfigError
from penstock.sinks.base import Sink
from penstock.testing import check_sink
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from penstock.testing.sinks.check import WORLDS
from penstock.testing.sinks.promises import PROMISES
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, run_until


def writing_to(folder: Path) -> Any:
    """An idempotent function: what it does for a checkpoint twice is there once."""

    def put(checkpoint: int, rows: pa.Table) -> None:
        ids = sorted(rows["id"].to_pylist())
        (folder / f"{checkpoint}-{ids[0]}.out").write_text(json.dumps(ids))

    return put


def test_a_function_that_may_be_called_twice_keeps_every_promise() -> None:
    def read(sink: Sink) -> pa.Table:
        assert isinstance(sink, pen.ForeachEpoch)
        outputs = Path(sink.folder).parent.glob("*.out")
        return pa.table({"id": [number for path in outputs for number in json.loads(path.read_text())]})

    report = check_sink(lambda folder: pen.ForeachEpoch(writing_to(folder), f"{folder}/waiting"), read, worlds=20)
    assert set(report.kept) == {*PROMISES, WORLDS}


def test_rows_arrive_in_order_once_although_jobs_fail_and_the_query_restarts(tmp_path: Path) -> None:
    calls: list[tuple[int, list[int]]] = []

    def keep(checkpoint: int, rows: pa.Table) -> None:
        calls.append((checkpoint, rows["number"].to_pylist()))

    def failing_once(cluster: InlineCluster) -> None:
        def before_job(job: object) -> None:
            cluster.before_job = lambda _: None
            raise JobFailed("a worker was lost")

        cluster.before_job = before_job

    run = InlineRun(batches_of(50, 4), FakeClock(), prepare=failing_once)
    output = stream_of(SCHEMA).write(pen.ForeachEpoch(keep, str(tmp_path / "waiting")))
    run_until(run, output, lambda event: event.batch_id == 1, checkpoint=tmp_path / "checkpoint")
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert [checkpoint for checkpoint, _ in calls] == sorted({checkpoint for checkpoint, _ in calls})
    assert Counter(number for _, numbers in calls for number in numbers) == Counter(range(200))
    assert not list((tmp_path / "waiting" / "rows").iterdir()), "rows do not stay once they are done"


def test_a_function_that_fails_is_called_again_with_the_same_rows_before_any_later_ones(tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []

    def fail_twice(checkpoint: int, rows: pa.Table) -> None:
        calls.append((checkpoint, rows.num_rows))
        if len(calls) < 3:
            raise ConnectionError("nobody there")

    run = InlineRun(batches_of(50, 3), FakeClock())
    output = stream_of(SCHEMA).write(pen.ForeachEpoch(fail_twice, str(tmp_path / "waiting")))
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    first = calls[0]
    assert calls[:3] == [first] * 3
    assert sum(rows for _, rows in calls[2:]) == 150


def test_a_function_that_always_fails_stops_the_query_which_goes_on_later(tmp_path: Path) -> None:
    works = False
    seen: list[int] = []

    def fail(checkpoint: int, rows: pa.Table) -> None:
        if not works:
            raise ConnectionError("nobody there")
        seen.extend(rows["number"].to_pylist())

    run = InlineRun(batches_of(50, 2), FakeClock())
    output = stream_of(SCHEMA).write(pen.ForeachEpoch(fail, str(tmp_path / "waiting")))
    with pytest.raises(CommitFailed, match="your function raised for checkpoint"):
        run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    works = True
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert sorted(seen) == list(range(100))


def test_a_function_that_holds_a_connection_stays_in_the_driver() -> None:
    database = sqlite3.connect(":memory:")
    sink = pen.ForeachEpoch(lambda checkpoint, rows: database.execute("SELECT 1"), "/tmp/waiting")
    sent = pickle.loads(pickle.dumps(sink))
    assert (sent.fn, sent.folder) == (None, sink.folder)


def test_only_a_function_can_be_called() -> None:
    with pytest.raises(ConfigError, match="ForeachEpoch"):
        pen.ForeachEpoch("print", "/tmp/waiting")  # type: ignore[arg-type]
