"""Queries that stop, go on, rescale and move, on real Spark with a real table."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import PenstockError, SourceMismatch, TablePositionMismatch
from penstock.observe.events import Event
from penstock.protocol.ids import CheckpointId
from penstock.sinks.paimon.open import open_table
from penstock.spark import liveplan
from penstock.spark.stage_job.stream import PlannedAhead
from penstock.store import open_store
from tests.support.spark_streams import (
    TIMEOUT_S,
    Milestone,
    Slow,
    assert_numbered_exactly_once,
    deep,
    epochs,
    finish,
    numbered,
    paimon,
    rows_in,
    start_until,
    stop_at,
    stream,
    wait_until,
    write_files,
)


def slow_output(spark: SparkSession, tmp_path: Path) -> pen.Output:
    source = pen.read(stream(spark, tmp_path / "in"))
    return source.key_by("user").process(Slow, name="slow").write(paimon(tmp_path))


def quick_output(spark: SparkSession, tmp_path: Path) -> pen.Output:
    source = pen.read(stream(spark, tmp_path / "in"))
    return source.map_batches(lambda batch: batch, name="same").write(paimon(tmp_path))


def numbers_in(tmp_path: Path) -> list[int]:
    return sorted(row["number"] for row in rows_in(tmp_path))


def test_in_flight_data_survives_stop_and_restart_at_another_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    """A8, A11, B1, B2, B3, B6."""
    write_files(tmp_path / "in", numbered(1200, 2))
    place = tmp_path / "checkpoint"
    for parallelism, enough in ((3, deep), (1, lambda event: event.rows_in_flight > 0)):
        query = stop_at(slow_output(spark, tmp_path), enough, checkpoint=place, parallelism=parallelism)
        assert query.manifest().rows_in_flight > 0, "stop() does not drain"
        assert query.manifest().parallelism == {"slow": parallelism}
    events = finish(slow_output(spark, tmp_path), checkpoint=place, parallelism=4)
    assert epochs(events)[0].rows_processed > 0
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)


def test_a_query_is_rescaled_while_it_runs(spark: SparkSession, tmp_path: Path) -> None:
    """B2."""
    write_files(tmp_path / "in", numbered(2400, 1))
    rescaled = Milestone(lambda event: event.parallelism == {"slow": 4})
    started = Milestone(deep)
    query = slow_output(spark, tmp_path).start(
        tmp_path / "checkpoint",
        parallelism=1,
        epoch="300 ms",
        trigger="available_now",
        on_event=(started, rescaled),
    )
    started.wait(query)
    query.rescale(4)
    rescaled.wait(query)
    query.rescale({"slow": 2})
    assert query.await_termination(120)
    assert query.manifest().parallelism == {"slow": 2}
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)


def test_a_stream_that_cannot_be_started_anew_for_a_rescale_ends_the_query_and_loses_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2, B12."""
    write_files(tmp_path / "in", numbered(100, 6))
    applied = PlannedAhead.applied_to

    def fails_at_three(plan: PlannedAhead, rows: DataFrame) -> DataFrame:
        if plan.parallelism == 3:
            raise RuntimeError("the catalog is gone")
        return applied(plan, rows)

    monkeypatch.setattr(PlannedAhead, "applied_to", fails_at_three)
    monkeypatch.setattr(liveplan, "change_partitions", lambda *_, **__: False)
    begun = Milestone(lambda event: True)
    options: dict[str, Any] = {"parallelism": 2, "epoch": "2 s", "trigger": "available_now"}
    query = slow_output(spark, tmp_path).start(tmp_path / "checkpoint", on_event=begun, **options)
    begun.wait(query)
    query.rescale(3)
    with pytest.raises(PenstockError, match="the catalog is gone"):
        query.await_termination(120)
    finish(slow_output(spark, tmp_path), checkpoint=tmp_path / "checkpoint")
    assert_numbered_exactly_once(rows_in(tmp_path), 600)


def run_ids(spark: SparkSession) -> set[str]:
    return {query.runId for query in spark.streams.active}


def planned_subtasks(spark: SparkSession) -> int:
    """For which number Spark's only streaming query plans its next micro-batch."""
    (query,) = spark.streams.active
    plan: Any = query._jsq.streamingQuery().logicalPlan()
    while plan.nodeName() != "RepartitionByExpression":
        plan = plan.children().apply(0)
    return int(plan.numPartitions())


def test_a_rescale_does_not_stop_the_streaming_query(spark: SparkSession, tmp_path: Path) -> None:
    """B2, A12: the first micro-batch after a change that comes while nothing arrives has the new number."""
    seen: dict[int, int] = {}
    arrived = threading.Event()

    def note(event: Event) -> None:
        for epoch in epochs([event]):
            assert epoch.batch_id is not None
            seen[epoch.batch_id] = epoch.parallelism["slow"]
            arrived.set()

    write_files(tmp_path / "in", numbered(100, 1))
    query = slow_output(spark, tmp_path).start(tmp_path / "checkpoint", parallelism=1, epoch=None, on_event=note)
    assert arrived.wait(TIMEOUT_S)
    before = run_ids(spark)
    wanted = [1, 20, 3, 1, 2]
    for number, parallelism in enumerate(wanted[1:], 1):
        query.rescale(parallelism)
        wait_until(lambda expected=parallelism: planned_subtasks(spark) == expected)  # type: ignore[misc]
        arrived.clear()
        write_files(tmp_path / "in", numbered(100, len(wanted))[number : number + 1], first=number)
        assert arrived.wait(TIMEOUT_S)
    assert run_ids(spark) == before
    query.stop()
    assert list(seen.values()) == wanted
    assert_numbered_exactly_once(rows_in(tmp_path), 100 * len(wanted))


WAYS = {
    "planned with the stream": (1, True),
    "planned with a stream that is started anew": (1, False),
    "planned for each micro-batch": (2, True),
}


@pytest.mark.parametrize(("sources", "in_place"), WAYS.values(), ids=WAYS)
def test_micro_batches_are_taken_at_the_parallelism_that_is_wanted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: int, in_place: bool
) -> None:
    """B2, A12: nothing is in flight, so that only new rows tell; each change comes between two micro-batches. A second
    source with a stage of its own means that no stage is planned with the stream.

    A plan that is changed in place may come too late for the very next micro-batch, which Spark plans meanwhile."""
    if not in_place:
        monkeypatch.setattr(liveplan, "change_partitions", lambda *_, **__: False)
    write_files(tmp_path / "in", numbered(100, 12))
    outputs = [pen.read(stream(spark, tmp_path / "in"), name="first").key_by("user").process(Slow, name="slow")]
    if sources == 2:
        second = pen.read(stream(spark, tmp_path / "in"), name="second")
        outputs.append(second.map_batches(lambda batch: batch, name="same"))
    taken: dict[int, int] = {}
    wanted_after = {2: 1, 4: 3, 5: 2, 8: 5}
    started: list[pen.Query] = []
    begun = threading.Event()

    def rescale(event: Event) -> None:
        for epoch in epochs([event]):
            begun.wait()
            assert epoch.batch_id is not None
            taken[epoch.batch_id] = epoch.parallelism["slow"]
            if epoch.batch_id in wanted_after:
                started[0].rescale({"slow": wanted_after[epoch.batch_id]})

    query = pen.start(
        *(output.write(paimon(tmp_path, f"shop.t{number}")) for number, output in enumerate(outputs)),
        checkpoint=tmp_path / "checkpoint",
        parallelism=2,
        epoch=None,
        trigger="available_now",
        on_event=rescale,
    )
    started.append(query)
    begun.set()
    assert query.await_termination(120)
    wanted = dict(enumerate([2, 2, 2, 1, 1, 3, 2, 2, 2, 5, 5, 5]))
    late = {batch for batch, number in taken.items() if number != wanted[batch]}
    assert taken.keys() == wanted.keys()
    assert all(batch - 1 in wanted_after and taken[batch] == wanted[batch - 1] for batch in late), taken
    if sources == 2 or not in_place:
        assert not late
    assert_numbered_exactly_once(rows_in(tmp_path, "shop.t0"), 1200)
    if sources == 2:
        assert sorted(row["number"] for row in rows_in(tmp_path, "shop.t1")) == list(range(1200))


def test_stop_with_drain_leaves_nothing_in_flight_and_the_rest_for_the_restart(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A11. The bound on rows in flight leaves seconds between the epoch waited for and the last file's turn."""
    write_files(tmp_path / "in", numbered(800, 4))
    place = tmp_path / "checkpoint"
    query = start_until(
        slow_output(spark, tmp_path),
        lambda event: event.rows_in_flight > 400,
        checkpoint=place,
        parallelism=2,
        max_in_flight=2000,
    )
    query.stop(drain=True)
    assert query.manifest().rows_in_flight == 0
    taken = query.manifest().edges["source-to-slow"].accepted
    assert 0 < taken < 3200
    assert_numbered_exactly_once(rows_in(tmp_path), taken)
    finish(slow_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert_numbered_exactly_once(rows_in(tmp_path), 3200)


def test_a_query_that_waits_for_input_stops_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """A9, A11: without available_now; nothing is offered when it is asked to stop."""
    write_files(tmp_path / "in", numbered(100, 1))
    place = tmp_path / "checkpoint"
    for files in (1, 2):
        query = start_until(
            quick_output(spark, tmp_path), lambda event: event.rows_in_flight == 0, checkpoint=place, trigger="100 ms"
        )
        query.stop()
        assert numbers_in(tmp_path) == list(range(100 * files))
        write_files(tmp_path / "in", numbered(100, 2)[1:], first=files)


# -- the source --------------------------------------------------------------------------------------------------------


def finished(spark: SparkSession, tmp_path: Path) -> Path:
    """A checkpoint after three micro-batches of 50 rows."""
    write_files(tmp_path / "in", numbered(50, 3))
    finish(quick_output(spark, tmp_path), checkpoint=tmp_path / "checkpoint", parallelism=2)
    return tmp_path / "checkpoint"


def forget(place: Path, log: str, batch_id: int) -> None:
    for path in (place / "source" / log).glob(f"*{batch_id}*"):
        path.unlink()


def add_file(tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(50, 4)[3:], first=3)


def test_a_micro_batch_that_spark_replays_is_taken_once(spark: SparkSession, tmp_path: Path) -> None:
    """A12: the driver died after our checkpoint and before Spark's commit log."""
    place = finished(spark, tmp_path)
    forget(place, "commits", 2)
    add_file(tmp_path)
    events = finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert [event.batch_id for event in epochs(events)] == [3]
    assert numbers_in(tmp_path) == list(range(200))


def test_a_source_that_lags_behind_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A12."""
    place = finished(spark, tmp_path)
    for batch_id in (1, 2):
        forget(place, "commits", batch_id)
        forget(place, "offsets", batch_id)
    with pytest.raises(SourceMismatch, match=r"micro-batch 1, checkpoint .* ends with micro-batch 2: it is older"):
        finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert numbers_in(tmp_path) == list(range(150))


def test_a_source_that_is_ahead_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A12: another query took a micro-batch with the same source folder; its rows would be missing."""
    place = finished(spark, tmp_path)
    add_file(tmp_path)
    for log in (place / "source" / "offsets", place / "source" / "commits"):
        for entry, later in (("2", "3"), (".2.crc", ".3.crc")):
            shutil.copy(log / entry, log / later)
    write_files(tmp_path / "in", numbered(50, 5)[4:], first=4)
    with pytest.raises(SourceMismatch, match=r"offers micro-batch 4, .* micro-batch 2: batches in between are missing"):
        finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert numbers_in(tmp_path) == list(range(150))


@pytest.mark.parametrize("instead", ["nothing", "another query's"])
def test_a_foreign_source_folder_is_refused(spark: SparkSession, tmp_path: Path, instead: str) -> None:
    """A12: it would begin again at the first file."""
    place = finished(spark, tmp_path)
    shutil.rmtree(place / "source")
    if instead != "nothing":
        other = pen.read(stream(spark, tmp_path / "in")).write(paimon(tmp_path, "shop.other"))
        finish(other, checkpoint=tmp_path / "other", parallelism=1)
        (tmp_path / "other" / "source").rename(place / "source")
        add_file(tmp_path)
    with pytest.raises(SourceMismatch, match="it belongs to the streaming query"):
        finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert numbers_in(tmp_path) == list(range(150))


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_an_older_checkpoint_goes_on_once_the_table_was_rolled_back_to_it(spark: SparkSession, tmp_path: Path) -> None:
    """B1, C4: without the roll-back its rows would be written twice, so it is refused."""
    place = finished(spark, tmp_path)
    older = 3
    with pytest.raises(TablePositionMismatch, match=f"knows only of {older}"):
        finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2, restore=older)
    pending = Checkpoints(open_store(str(place))).read(CheckpointId(older)).source.batch_id
    assert pending == 1
    open_table(str(tmp_path / "lake"), "shop.rows").rollback_to(2)
    assert numbers_in(tmp_path) == list(range(100))
    (place / "source" / "offsets" / "1").rename(tmp_path / "kept")
    with pytest.raises(SourceMismatch, match="micro-batch 1, which is not in source/offsets"):
        finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2, restore=older)
    (tmp_path / "kept").rename(place / "source" / "offsets" / "1")
    events = finish(quick_output(spark, tmp_path), checkpoint=place, parallelism=2, restore=older)
    assert [event.batch_id for event in epochs(events)] == [2]
    assert numbers_in(tmp_path) == list(range(150))


def test_a_checkpoint_folder_can_be_moved_with_rows_in_flight(spark: SparkSession, tmp_path: Path) -> None:
    """B1: paths inside are relative."""
    write_files(tmp_path / "in", numbered(1200, 2))
    query = stop_at(slow_output(spark, tmp_path), deep, checkpoint=tmp_path / "here", parallelism=2)
    assert query.manifest().rows_in_flight > 0
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    shutil.rmtree(tmp_path / "here")
    finish(slow_output(spark, tmp_path), checkpoint=tmp_path / "there", parallelism=3)
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)
    assert not (tmp_path / "here").exists()


def test_a_damaged_segment_stops_the_query_with_its_name(spark: SparkSession, tmp_path: Path) -> None:
    """B12: bytes are checked in the subtask; put right again, the query goes on."""
    write_files(tmp_path / "in", numbered(1500, 1))
    place = tmp_path / "checkpoint"
    stop_at(slow_output(spark, tmp_path), deep, checkpoint=place, parallelism=2)
    files = {path: path.read_bytes() for path in (place / "segments").rglob("*.arrow")}
    for path, data in files.items():
        path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :])
    with pytest.raises(pen.PenstockError, match=r"(?s)PEN-012.*segments/"):
        finish(slow_output(spark, tmp_path), checkpoint=place, parallelism=2)
    for path, data in files.items():
        path.write_bytes(data)
    finish(slow_output(spark, tmp_path), checkpoint=place, parallelism=2)
    assert_numbered_exactly_once(rows_in(tmp_path), 1500)


def test_an_arrow_reader_of_anybody_reads_a_segment(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", numbered(1500, 1))
    stop_at(slow_output(spark, tmp_path), deep, checkpoint=tmp_path / "checkpoint", parallelism=1)
    (path, *_) = (tmp_path / "checkpoint" / "segments").rglob("*.arrow")
    with pa.OSFile(str(path)) as file:
        rows = pa.ipc.open_stream(file).read_all()
    assert rows.column_names[:2] == ["user", "number"]
    assert rows["number"].to_pylist() == sorted(rows["number"].to_pylist())


def test_a_savepoint_copied_elsewhere_goes_on_at_another_parallelism_without_the_original(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B1, B14: taken while epochs go on, then again when the query stops; files, offsets and rows in flight move."""
    write_files(tmp_path / "in", numbered(1200, 2))
    query = start_until(slow_output(spark, tmp_path), deep, checkpoint=tmp_path / "here", parallelism=2)
    while_running = query.savepoint(tmp_path / "first")
    assert while_running.rows_in_flight > 0
    saved = query.stop(savepoint=tmp_path / "saved")
    assert saved is not None
    assert saved.checkpoint == query.manifest().checkpoint >= while_running.checkpoint
    subprocess.run(["cp", "-r", tmp_path / "saved", tmp_path / "copy"], check=True)
    for place in ("here", "first", "saved"):
        shutil.rmtree(tmp_path / place)
    events = finish(
        slow_output(spark, tmp_path), checkpoint=tmp_path / "there", restore=tmp_path / "copy", parallelism=3
    )
    assert epochs(events)[0].checkpoint == saved.checkpoint + 2, "the first epoch publishes"
    assert_numbered_exactly_once(rows_in(tmp_path), 2400)


def test_an_older_checkpoint_of_another_folder_takes_the_source_back_with_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """B1: Spark reads the micro-batches after it again."""
    place = finished(spark, tmp_path)
    open_table(str(tmp_path / "lake"), "shop.rows").rollback_to(2)
    events = finish(quick_output(spark, tmp_path), checkpoint=tmp_path / "new", parallelism=1, restore=f"{place}@3")
    assert [event.batch_id for event in epochs(events)] == [2]
    assert numbers_in(tmp_path) == list(range(150))
