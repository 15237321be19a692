"""Several sources that meet in one stage come in one stream of Spark: whatever waits or overflows, no row is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.errors import ConservationError
from penstock.inflight.live import LiveInputs
from penstock.spark.quirks.exchangecounts import ExchangeCounts
from penstock.spark.quirks.streamrdd import FETCHED_MAX
from penstock.spark.stage_job import counts
from tests.support.spark_streams import NUMBERED, epochs, finish, numbered, paimon, rows_in, stream, write_files

SIZED = "user bigint, number bigint, pad binary"


def two_sources(
    spark: SparkSession, tmp_path: Path, rows: int, schema: str = NUMBERED, files: int = 1
) -> list[pen.Stream]:
    """Numbers ascend in each source; those of the second one begin where the first one's end."""
    tables = numbered(rows, 2 * files)
    if schema == SIZED:
        tables = [table.append_column("pad", pa.array([b"x" * (20 << 20)] * rows)) for table in tables]
    for name, mine in (("left", tables[:files]), ("right", tables[files:])):
        write_files(tmp_path / name, mine)
    return [pen.read(stream(spark, tmp_path / name, schema), name=name) for name in ("left", "right")]


def numbers_in(tmp_path: Path) -> list[int]:
    return sorted(row["number"] for row in rows_in(tmp_path))


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("budget", ["64 KiB", "16 MiB"])
def test_a_union_of_two_sources_loses_no_row(
    spark: SparkSession, tmp_path: Path, budget: str, parallelism: int
) -> None:
    left, right = two_sources(spark, tmp_path, 60_000)
    output = left.union(right).write(paimon(tmp_path))
    events = finish(output, checkpoint=tmp_path / "ckpt", parallelism=parallelism, prefetch_bytes=budget)
    assert numbers_in(tmp_path) == list(range(120_000))
    assert all(event.rows_in_flight == 0 for event in epochs(events)), "rows that could be processed were put away"


def sizes(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch["number"], pc.cast(pc.binary_length(batch["pad"]), pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["number", "size"])


def test_records_larger_than_the_budget_pass_through_a_union(spark: SparkSession, tmp_path: Path) -> None:
    """From the second micro-batch on Spark sends each of them in a batch of its own."""
    left, right = two_sources(spark, tmp_path, 3, SIZED, files=2)
    output = left.union(right).map_batches(sizes, "number bigint, size bigint").write(paimon(tmp_path))
    finish(output, checkpoint=tmp_path / "ckpt", parallelism=1)
    rows = sorted(rows_in(tmp_path), key=lambda row: row["number"])
    assert rows == [{"number": number, "size": 20 << 20} for number in range(12)]


def test_a_union_that_the_barrier_cuts_loses_no_row(spark: SparkSession, tmp_path: Path) -> None:
    """Both sources have far more rows than fit into the budget, and time for a part of them only."""
    left, right = two_sources(spark, tmp_path, 1_000_000)
    counted = left.union(right).key_by("user").aggregate(n=pen.count(), total=pen.sum("number"))
    output = counted.write(paimon(tmp_path, primary_key=["user"], buckets=2))
    events = finish(output, checkpoint=tmp_path / "ckpt", parallelism=1, epoch="0.1 s", prefetch_bytes="1 MiB")
    assert max(event.rows_in_flight for event in epochs(events)) > 0, "nothing was cut, so nothing is shown"
    wanted = {user: range(user, 2_000_000, 7) for user in range(7)}
    # Numbers of the second table go on with those of the first, so a user's numbers are 7 apart over both.
    found = {row["user"]: (row["n"], row["total"]) for row in rows_in(tmp_path)}
    assert found == {user: (len(mine), sum(mine)) for user, mine in wanted.items()}


# -- the count that does not depend on our readers ---------------------------------------------------------------------


class Spy:
    """What Spark counted as written and as read for each job, and what was delivered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, int | None, int]] = []
        original = counts.handed_over

        def handed_over(
            written: int, delivered: int, run_again: Callable[[], bool], read: Callable[[], int | None]
        ) -> int | None:
            self.seen.append((written, read(), delivered))
            return original(written, delivered, run_again, read)

        monkeypatch.setattr(counts, "handed_over", handed_over)


def one_stage(left: pen.Stream, right: pen.Stream, tmp_path: Path) -> list[pen.Output]:
    return [left.union(right).write(paimon(tmp_path))]


def two_stages(left: pen.Stream, right: pen.Stream, tmp_path: Path) -> list[pen.Output]:
    """Not planned with the stream: each has a job of its own for every micro-batch."""
    return [left.write(paimon(tmp_path)), right.write(paimon(tmp_path, "shop.other"))]


@pytest.mark.parametrize(("outputs", "rows_of_a_job"), [(one_stage, 4000), (two_stages, 2000)])
@pytest.mark.parametrize("parallelism", [1, FETCHED_MAX + 1])
def test_spark_counts_the_rows_that_were_delivered(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    outputs: Callable[..., list[pen.Output]],
    rows_of_a_job: int,
    parallelism: int,
) -> None:
    spy = Spy(monkeypatch)
    left, right = two_sources(spark, tmp_path, 2000, files=3)
    finish(*outputs(left, right, tmp_path), checkpoint=tmp_path / "ckpt", parallelism=parallelism)
    jobs = 3 if outputs is one_stage else 6
    assert spy.seen == [(rows_of_a_job, rows_of_a_job, rows_of_a_job)] * jobs


def dying(folder: Path, times: int) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Ends its worker at the first call, so many times."""

    def work(batch: pa.RecordBatch) -> pa.RecordBatch:
        for number in range(times):
            with suppress(FileExistsError):
                (folder / f"died-{number}").touch(exist_ok=False)
                os._exit(1)
        return batch

    return work


@pytest.mark.parametrize("deaths", [1, 4])
def test_tasks_that_are_run_again_do_not_look_like_lost_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int
) -> None:
    """Four deaths of a task end the job, and the epoch is tried again."""
    spy = Spy(monkeypatch)
    left, right = two_sources(spark, tmp_path, 1000, files=2)
    output = left.union(right).map_batches(dying(tmp_path, deaths), NUMBERED).write(paimon(tmp_path))
    finish(output, checkpoint=tmp_path / "ckpt", parallelism=1)
    assert numbers_in(tmp_path) == list(range(4000))
    assert [(read, delivered) for _, read, delivered in spy.seen] == [(2000, 2000)] * 2


def saboteur(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Makes the reader of its own subtask overlook the next batch, which it then does not count either."""
    read = LiveInputs._read

    def skipping(self: LiveInputs) -> bool:
        LiveInputs._read = read  # type: ignore[method-assign]  # the worker goes on to other tests
        next(self._batches, None)
        return read(self)

    if read.__name__ != "skipping":
        LiveInputs._read = skipping  # type: ignore[method-assign]
    return batch


def test_a_reader_that_overlooks_rows_stops_the_query(spark: SparkSession, tmp_path: Path) -> None:
    left, right = two_sources(spark, tmp_path, 60_000)
    output = left.union(right).map_batches(saboteur, NUMBERED).write(paimon(tmp_path))
    with pytest.raises(ConservationError, match=r"subtask 0: 60000 live rows delivered, \d+ accepted"):
        finish(output, checkpoint=tmp_path / "ckpt", parallelism=1)


@pytest.mark.parametrize("missing", [1, -1])
def test_rows_that_only_spark_knows_of_stop_the_query(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int
) -> None:
    of = ExchangeCounts.of

    def other(self: ExchangeCounts, plan: Any, name: str) -> int | None:
        found = of(self, plan, name)
        return None if found is None else found + missing

    monkeypatch.setattr(ExchangeCounts, "of", other)
    left, right = two_sources(spark, tmp_path, 100)
    with pytest.raises(ConservationError, match=f"{200 + missing} live rows handed over by the cluster, 200 delivered"):
        finish(left.union(right).write(paimon(tmp_path)), checkpoint=tmp_path / "ckpt", parallelism=2)
