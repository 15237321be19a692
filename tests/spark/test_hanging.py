"""User code that hangs on Spark is found, told with its stack, and given up; cancelled jobs are told as such."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import StageFailed, SubtaskHung
from penstock.observe.events import EpochFailed, Event
from tests.support.spark_streams import (
    TIMEOUT_S,
    Slow,
    assert_numbered_exactly_once,
    finish,
    numbered,
    paimon,
    rows_in,
    stream,
    take_jobs_away,
    write_files,
)


class Hanging(Slow):
    """Waits for ever at one record."""

    def process(self, key, rows, state, out):
        for row in rows:
            if row["number"] == 77:
                time.sleep(3600)
        super().process(key, rows, state, out)


def job(spark: SparkSession, tmp_path: Path, code: type[pen.KeyedProcess]) -> pen.Output:
    rows = pen.read(stream(spark, tmp_path / "in"), name="numbers")
    return rows.key_by("user").process(code, name="work").write(paimon(tmp_path))


def test_a_function_that_hangs_is_named_with_operator_record_and_stack_and_the_restart_is_exact(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_files(tmp_path / "in", numbered(50, 3))
    events: list[Event] = []
    query = pen.start(
        job(spark, tmp_path, Hanging),
        checkpoint=tmp_path / "checkpoint",
        trigger="available_now",
        epoch_timeout="10 s",
        epoch_retries=1,
        on_event=events.append,
    )
    with pytest.raises(SubtaskHung) as caught:
        query.await_termination(TIMEOUT_S)
    said = str(caught.value)
    assert caught.value.fields["operator"] == "work"
    for part in ("Hanging.process", "test_hanging.py", "time.sleep(3600)", "'number': 77", "tried 2 times"):
        assert part in said, said
    assert [event.code for event in events if isinstance(event, EpochFailed)] == [SubtaskHung.code] * 2
    assert not query.is_active
    finish(job(spark, tmp_path, Slow), checkpoint=tmp_path / "checkpoint")
    assert_numbered_exactly_once(rows_in(tmp_path), 150)
    assert not list((tmp_path / "checkpoint" / "hung").iterdir())


def test_a_slow_function_that_gets_on_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """The whole epoch takes longer than the limit, no step of it does; without a barrier, so that nothing ends it."""
    write_files(tmp_path / "in", numbered(15_000, 1, users=2))
    events = finish(
        job(spark, tmp_path, Slow), checkpoint=tmp_path / "checkpoint", epoch=None, epoch_timeout="10 s", parallelism=1
    )
    assert not [event for event in events if isinstance(event, EpochFailed)]
    assert_numbered_exactly_once(rows_in(tmp_path), 15_000)


def test_jobs_that_somebody_cancels_are_not_told_as_lost_workers(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(3000, 2))
    query = job(spark, tmp_path, Slow).start(tmp_path / "checkpoint", epoch="1 s", epoch_retries=0)
    take_jobs_away(spark, query)
    error = query.exception()
    assert isinstance(error, StageFailed)
    assert "cancelled Spark's jobs" in str(error)


def test_a_job_that_is_cancelled_while_the_query_stops_is_no_failure(spark: SparkSession, tmp_path: Path) -> None:
    """As at Ctrl-C: Spark's own handler cancels all jobs, then the query is asked to stop."""
    write_files(tmp_path / "in", numbered(50, 3))
    query = job(spark, tmp_path, Hanging).start(tmp_path / "checkpoint", epoch="1 s")
    running = threading.Event()
    deadline = time.monotonic() + TIMEOUT_S
    while not running.is_set():
        assert time.monotonic() < deadline
        current = query._supervisor.runner.jobs.running
        if current is not None and time.monotonic() - current.started_s > 2:
            running.set()
    query._supervisor.request_stop(drain=False)
    spark.sparkContext.cancelAllJobs()
    assert query.stop(timeout=TIMEOUT_S) is None
    assert query.exception() is None
    finish(job(spark, tmp_path, Slow), checkpoint=tmp_path / "checkpoint")
    assert_numbered_exactly_once(rows_in(tmp_path), 150)
