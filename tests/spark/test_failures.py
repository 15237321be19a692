"""Processes that die under a running query: Python workers, executors, subtasks that hang."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import StageFailed
from penstock.observe.events import EpochFailed, EpochPublished, Event
from tests.support import spark_jobs as jobs
from tests.support.spark_streams import (
    Slow,
    assert_numbered_exactly_once,
    busy,
    epochs,
    finish,
    numbered,
    paimon,
    rows_in,
    stream,
    write_files,
)


class KillsWorker(jobs.Recorded):
    """Its Python process is gone when it meets certain rows for the first time."""

    def __init__(self, folder: str, *numbers: int) -> None:
        super().__init__(folder)
        self.numbers = numbers

    def meet(self, number):
        if number in self.numbers and self.first_time(f"killed at {number}"):
            os.kill(os.getpid(), signal.SIGKILL)


class AlwaysDies(Slow):
    """Nobody gets past its first row."""

    def process(self, key, rows, state, out):
        os.kill(os.getpid(), signal.SIGKILL)


def numbering(spark: SparkSession, tmp_path: Path, process: pen.KeyedProcess | type[pen.KeyedProcess]) -> pen.Output:
    keyed = pen.read(stream(spark, tmp_path / "in")).key_by("user")
    return keyed.process(process, name="number").write(paimon(tmp_path))


def test_a_killed_python_worker_costs_one_more_attempt_of_its_subtask_and_of_no_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    """C11: 350 is among the last rows, so the other subtasks are well under way or done."""
    write_files(tmp_path / "in", numbered(400, 1))
    runs = tmp_path / "runs"
    runs.mkdir()
    output = numbering(spark, tmp_path, KillsWorker(str(runs), 350))
    events = finish(output, checkpoint=tmp_path / "checkpoint", parallelism=4, epoch=None)
    assert_numbered_exactly_once(rows_in(tmp_path), 400)
    attempts = jobs.attempts_in(runs)
    assert len(attempts) > 2, "users are spread over subtasks"
    assert sorted(attempts.values()) == [1] * (len(attempts) - 1) + [2]
    assert [event.kind for event in epochs(events)] == ["ingest"], "the epoch itself was not repeated"
    assert not [event for event in events if isinstance(event, EpochFailed)]


def test_workers_killed_while_recovered_rows_are_processed_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A6, C5: what dead attempts wrote counts for nothing."""
    write_files(tmp_path / "in", numbered(900, 1))
    runs = tmp_path / "runs"
    runs.mkdir()
    kills = (60, 501, 803)

    class SlowKills(KillsWorker):
        def meet(self, number):
            busy(0.001)
            super().meet(number)

    events = finish(
        numbering(spark, tmp_path, SlowKills(str(runs), *kills)),
        checkpoint=tmp_path / "checkpoint",
        parallelism=3,
        epoch="300 ms",
        epoch_retries=9,
    )
    assert any(event.kind == "drain" for event in epochs(events))
    assert len(list(runs.glob("killed*"))) == len(kills)
    assert_numbered_exactly_once(rows_in(tmp_path), 900)


def test_a_subtask_that_dies_again_and_again_stops_the_query_and_a_restart_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B12."""
    write_files(tmp_path / "in", numbered(100, 2))
    options = {"checkpoint": tmp_path / "checkpoint", "parallelism": 1, "epoch_retries": 0}
    with pytest.raises(StageFailed, match=r"stage number.*Python worker exited unexpectedly") as caught:
        finish(numbering(spark, tmp_path, AlwaysDies), **options)
    assert "\tat " not in str(caught.value)
    finish(numbering(spark, tmp_path, Slow), **options)
    assert_numbered_exactly_once(rows_in(tmp_path), 200)


@pytest.fixture(scope="module")
def cluster_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A master and two executors in processes of their own cost more than the tests, hence once for both."""
    folder = tmp_path_factory.mktemp("cluster")
    write_files(folder / "in", numbered(400, 2))
    jobs.run("cluster", folder)
    return folder


def test_an_entry_of_the_source_s_log_that_another_query_wrote_first_does_not_stop_this_one(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C9: as the JVM of a driver that was replaced may do, while its Python is paused."""
    write_files(tmp_path / "in", numbered(100, 3))
    offsets = tmp_path / "checkpoint" / "source" / "offsets"

    def other_query(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.kind == "ingest" and not (offsets / "1").exists():
            shutil.copy(offsets / "0", offsets / "1")  # its micro-batch 1 ends where 0 does: no rows

    output = numbering(spark, tmp_path, Slow)
    events = finish(output, checkpoint=tmp_path / "checkpoint", on_event=other_query)
    assert "another streaming query wrote to source/ at the same moment" in caplog.text
    assert sum(event.rows_in for event in epochs(events)) == 300
    rows = rows_in(tmp_path)
    # What was left came in one micro-batch, and order is kept within a file.
    assert Counter(row["number"] for row in rows) == Counter(range(300))
    assert len({(row["user"], row["nth"]) for row in rows}) == 300


def test_a_lost_executor_loses_no_row(cluster_folder: Path) -> None:
    """C11, E2: its finished shuffle output is gone with it, so Spark starts stages anew."""
    assert (cluster_folder / "killed" / "killed").exists()
    assert_numbered_exactly_once(rows_in(cluster_folder, "shop.killed"), 800)


def test_a_speculative_attempt_that_wins_counts_and_the_other_one_does_not(cluster_folder: Path) -> None:
    """C5: the attempt that hangs would hold the epoch for ten minutes."""
    attempts = jobs.attempts_in(cluster_folder / "hung")
    assert (cluster_folder / "hung" / "hung").exists()
    assert max(attempts.values()) == 3, "two micro-batches, and one attempt more of one subtask"
    assert_numbered_exactly_once(rows_in(cluster_folder, "shop.hung"), 800)
