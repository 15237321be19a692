"""Somebody stops Spark's streaming queries under a running query: it stops, says so, and loses nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.observe.events import Event, QueryStopped
from penstock.spark import feed
from tests.support.spark_streams import (
    Milestone,
    Slow,
    assert_numbered_exactly_once,
    deep,
    finish,
    numbered,
    paimon,
    rows_in,
    stream,
    wait_until,
    write_files,
)

STOP_S = 60
"""For an epoch, a commit and Spark's own end on a busy machine."""


def job(spark: SparkSession, tmp_path: Path) -> pen.Output:
    rows = pen.read(stream(spark, tmp_path / "in"), name="numbers")
    return rows.key_by("user").process(Slow, name="slow").write(paimon(tmp_path))


def stop_all(spark: SparkSession) -> None:
    for streaming in spark.streams.active:
        streaming.stop()


def assert_stopped(query: pen.Query, events: list[Event], caplog: pytest.LogCaptureFixture) -> None:
    assert query.await_termination(STOP_S)
    assert query.exception() is None
    assert [event.reason for event in events if isinstance(event, QueryStopped)] == ["stopped"]
    assert "Spark's streaming query was stopped, not by query.stop()" in caplog.text


@pytest.mark.drawn
@pytest.mark.parametrize("trigger", [None, "available_now"])
def test_a_query_with_a_backlog_stops_when_spark_s_streaming_query_is_stopped(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, trigger: str | None
) -> None:
    """Its handler has a micro-batch, for which there is no room yet, or Spark is about to plan one."""
    stop_with_a_backlog(spark, tmp_path, caplog, trigger)


def test_a_stop_between_two_micro_batches_is_no_end_of_the_input(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark is then done with all that it began, as it is at the end of the input."""
    monkeypatch.setattr(feed, "all_committed", lambda _: True)
    stop_with_a_backlog(spark, tmp_path, caplog, "available_now")


def stop_with_a_backlog(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, trigger: str | None
) -> None:
    write_files(tmp_path / "in", numbered(2_000, 4))
    events: list[Event] = []
    milestone = Milestone(deep)
    query = job(spark, tmp_path).start(
        tmp_path / "checkpoint",
        trigger=trigger,
        epoch="200 ms",
        max_in_flight="1 KB",
        on_event=(milestone, events.append),
    )
    milestone.wait(query)
    stop_all(spark)
    assert_stopped(query, events, caplog)
    finish(job(spark, tmp_path), checkpoint=tmp_path / "checkpoint")
    assert_numbered_exactly_once(rows_in(tmp_path), 8_000)


def test_a_query_that_waits_for_input_stops_when_spark_s_streaming_query_is_stopped(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path / "in", numbered(50, 2))
    events: list[Event] = []
    query = job(spark, tmp_path).start(tmp_path / "checkpoint", epoch="1 s", on_event=events.append)
    wait_until(lambda: query.manifest().source.batch_id == 1 and query.waiting_for == "no input")
    stop_all(spark)
    assert_stopped(query, events, caplog)
    write_files(tmp_path / "in", numbered(50, 3)[2:], first=2)
    finish(job(spark, tmp_path), checkpoint=tmp_path / "checkpoint")
    assert_numbered_exactly_once(rows_in(tmp_path), 150)


def test_a_query_whose_streaming_query_was_stopped_can_be_stopped(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(50, 2))
    query = job(spark, tmp_path).start(tmp_path / "checkpoint", epoch="1 s")
    wait_until(lambda: query.waiting_for == "no input")
    stop_all(spark)
    assert query.stop(timeout=STOP_S) is None
