"""What users get wrong: each mistake has its code and its next step, and costs nothing that was there before."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import penstock as pen
from penstock.engine import loop
from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.errors import (
    ConfigError,
    Fenced,
    OperatorFailed,
    PipelineError,
    StorageFailed,
    TableMismatch,
)
from penstock.observe.events import QueryStopped, decode_events
from penstock.store import open_store
from tests.support import spark_jobs as jobs
from tests.support.spark_streams import (
    TIMEOUT_S,
    Slow,
    assert_numbered_exactly_once,
    bag,
    finish,
    numbered,
    paimon,
    rows_in,
    start_until,
    stream,
    wait_until,
    write_files,
)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def output(spark: SparkSession, tmp_path: Path, function: Callable[..., Any] = same) -> pen.Output:
    if not (tmp_path / "in").exists():
        write_files(tmp_path / "in", numbered(100, 2))
    return pen.read(stream(spark, tmp_path / "in")).map_batches(function, name="map").write(paimon(tmp_path))


# -- the pipeline ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("usr", "columns are user, tags, counts, pair, name"),
        ("tags", "nested values cannot be keys"),
        ("counts", "maps have no order and no hash"),
        ("pair", "nested values cannot be keys"),
        ("name", "equal under UNICODE_CI can have different hashes"),
    ],
)
def test_a_column_that_cannot_be_a_key_is_refused_with_the_reason(
    spark: SparkSession, tmp_path: Path, key: str, why: str
) -> None:
    schema = (
        "user bigint, tags array<string>, counts map<string,int>, pair struct<a:int>, name string collate UNICODE_CI"
    )
    (tmp_path / "in").mkdir()
    source = pen.read(stream(spark, tmp_path / "in", schema))
    for rows in (source, source.map_batches(same), source.filter(pa.compute.field("user") > 0)):
        with pytest.raises(PipelineError, match=why) as caught:
            rows.key_by("user", key)
        assert caught.value.fields["column"] == key


def test_strings_with_a_collation_pass_as_values(spark: SparkSession, tmp_path: Path) -> None:
    write_files(tmp_path / "in", [pa.table({"user": [1, 2], "name": ["a", "A"]})])
    frame = stream(spark, tmp_path / "in", "user bigint, name string").selectExpr(
        "user", "name COLLATE UNICODE_CI AS name"
    )
    last = pen.read(frame).key_by("user").aggregate(latest=pen.last("name"))
    finish(last.write(paimon(tmp_path)), checkpoint=tmp_path / "checkpoint", parallelism=1)
    assert bag(rows_in(tmp_path)) == bag([{"user": 1, "latest": "a"}, {"user": 2, "latest": "A"}])


def test_a_frame_that_does_not_stream_is_refused(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match=r"(?s)numbers is not a streaming DataFrame.*spark\.readStream"):
        pen.read(spark.range(3), name="numbers")


def test_code_that_cannot_travel_is_refused_before_anything_is_touched(spark: SparkSession, tmp_path: Path) -> None:
    lock = threading.Lock()

    def locked(batch: pa.RecordBatch) -> pa.RecordBatch:
        with lock:
            return batch

    with pytest.raises(PipelineError, match=r"(?s)the operator map cannot be sent to the workers.*open\(\)"):
        output(spark, tmp_path, locked).start(tmp_path / "checkpoint")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"paralelism": 2}, "there is no option 'paralelism'\n.*did you mean parallelism"),
        ({"epoch": "1 fortnight"}, "epoch='1 fortnight'\n.*500 ms"),
        ({"epoch": "-1 s"}, "epoch='-1 s'"),
        ({"max_in_flight": "lots"}, "max_in_flight='lots'\n.*1 GB"),
        ({"parallelism": {"mpa": 2}}, "'mpa'; operators are map"),
        ({"trigger": "once"}, "trigger='once'"),
        ({"restore": -1}, "restore=-1"),
    ],
)
def test_a_bad_option_is_refused_before_anything_is_touched(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"(?s){message}"):
        output(spark, tmp_path).start(tmp_path / "checkpoint", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_the_checkpoint_of_another_pipeline_is_refused_before_a_table_is_made(
    spark: SparkSession, tmp_path: Path
) -> None:
    """E6."""
    finish(output(spark, tmp_path), checkpoint=tmp_path / "checkpoint", parallelism=2)
    counted = pen.read(stream(spark, tmp_path / "in")).key_by("user").aggregate(n=pen.count(), name="counts")
    with pytest.raises(TableMismatch, match="give the sink another name"):
        finish(counted.write(paimon(tmp_path, "shop.counts")), checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "lake" / "shop.db" / "counts").exists()
    assert len(rows_in(tmp_path)) == 200


# -- storage -----------------------------------------------------------------------------------------------------------


def test_a_table_with_other_columns_is_refused_with_both_sides(spark: SparkSession, tmp_path: Path) -> None:
    paimon(tmp_path).check(pa.schema([("user", pa.string()), ("number", pa.int64())]))
    with pytest.raises(TableMismatch, match=r"user +int64 +string"):
        finish(output(spark, tmp_path), checkpoint=tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of our own: permissions do not stop root, and a disk of megabytes is soon full."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root can mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize("what", ["lake", "checkpoint"])
def test_a_place_that_cannot_be_written_is_named_at_the_start(spark: SparkSession, tmp_path: Path, what: str) -> None:
    with mounted(tmp_path / what, "ro"), pytest.raises(StorageFailed, match=rf"(?s){tmp_path / what}.*read-only"):
        finish(output(spark, tmp_path), checkpoint=tmp_path / "checkpoint")


def test_a_path_through_a_file_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "lake").write_text("in the way")
    with pytest.raises(StorageFailed, match="lake"):
        finish(output(spark, tmp_path), checkpoint=tmp_path / "checkpoint")


def fat_output(spark: SparkSession, tmp_path: Path) -> pen.Output:
    # What cannot be compressed much: random text, derived from the row.
    noise = "concat_ws('', transform(sequence(1, 40), i -> sha2(concat(number, '-', i), 256))) AS noise"
    frame = stream(spark, tmp_path / "in").selectExpr("user", "number", noise)
    return pen.read(frame).key_by("user").process(Slow, name="slow").write(paimon(tmp_path))


def test_a_full_disk_stops_the_query_and_more_room_lets_it_go_on(spark: SparkSession, tmp_path: Path) -> None:
    """A megabyte of records behind the barrier, a quarter of that as room for segments."""
    write_files(tmp_path / "in", numbered(800, 1))
    segments = tmp_path / "checkpoint" / "segments"
    options = {"checkpoint": tmp_path / "checkpoint", "parallelism": 2, "epoch": "200 ms"}
    with mounted(segments, "size=256k"):
        with pytest.raises(StorageFailed, match=r"(?s)No space left.*the disk is full.*nothing published was lost"):
            finish(fat_output(spark, tmp_path), **options)
        assert rows_in(tmp_path) == [], "nothing of the failed epoch counts"
        assert list(segments.rglob("*.arrow")) == [], "what was half written is gone"
        subprocess.run(["mount", "-o", "remount,size=64m", str(segments)], check=True)
        finish(fat_output(spark, tmp_path), **{**options, "epoch": None})
        assert_numbered_exactly_once(rows_in(tmp_path), 800)


# -- user code ---------------------------------------------------------------------------------------------------------


def fragile(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 177 in batch["number"].to_pylist():
        raise ValueError("one hundred and seventy-seven")
    return batch


class Fragile(Slow):
    """Does not like one row."""

    def process(self, key, rows, state, out):
        if any(row["number"] == 177 for row in rows):
            raise ValueError("one hundred and seventy-seven")
        super().process(key, rows, state, out)


def test_user_code_that_raises_is_shown_with_the_record_and_without_a_jvm_stack_trace(
    spark: SparkSession, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """D8: what was published before stays, and the corrected code goes on from there."""
    # The JVM started before this test, so it writes to pytest's own capture, not to that of a fixture.
    captured = pytestconfig.pluginmanager.getplugin("capturemanager")
    captured.read_global_capture()
    with pytest.raises(OperatorFailed) as caught:
        finish(output(spark, tmp_path, fragile), checkpoint=tmp_path / "checkpoint", parallelism=2)
    text = str(caught.value)
    for part in ("PEN-030", "map: ValueError: one hundred", '"number": 177', "stage map, subtask", "test_bad_input.py"):
        assert part in text
    assert caught.value.fields["exception"] == "ValueError"
    everything = text + captured.read_global_capture().err
    assert "\tat " not in everything, "no line of a JVM stack trace"
    assert "Py4J" not in everything
    assert "Traceback" not in everything
    assert sorted(row["number"] for row in rows_in(tmp_path)) == list(range(100))
    finish(output(spark, tmp_path), checkpoint=tmp_path / "checkpoint", parallelism=3)
    assert sorted(row["number"] for row in rows_in(tmp_path)) == list(range(200))


def test_a_keyed_process_that_raises_leaves_state_and_table_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    """D8, A6."""
    write_files(tmp_path / "in", numbered(100, 2))

    def counted(process: type[pen.KeyedProcess]) -> pen.Output:
        keyed = pen.read(stream(spark, tmp_path / "in")).key_by("user")
        return keyed.process(process, name="p").write(paimon(tmp_path))

    with pytest.raises(OperatorFailed, match=r"(?s)p: ValueError.*subtask"):
        finish(counted(Fragile), checkpoint=tmp_path / "checkpoint", parallelism=2)
    finish(counted(Slow), checkpoint=tmp_path / "checkpoint", parallelism=2)
    assert_numbered_exactly_once(rows_in(tmp_path), 200)


# -- two drivers -------------------------------------------------------------------------------------------------------


class Waits(jobs.Recorded):
    """The first driver's code stands still in the middle of an epoch until it may go on."""

    def meet(self, number):
        if number == 300:
            import time

            while not Path(self.folder, "go on").exists():
                time.sleep(0.05)


@pytest.mark.drawn
def test_a_second_driver_takes_over_and_the_first_one_stops_as_fenced(spark: SparkSession, tmp_path: Path) -> None:
    """C9: the second one is another process; the first one's epoch, finished too late, counts for nothing."""
    write_files(tmp_path / "in", numbered(200, 3))
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    source = pen.read(stream(spark, tmp_path / "in")).key_by("user")
    old = start_until(
        source.process(Waits(str(tmp_path / "first")), name="number").write(paimon(tmp_path)),
        lambda event: event.batch_id == 0,
        checkpoint=tmp_path / "checkpoint",
        epoch=None,
        parallelism=2,
    )
    try:
        jobs.run("take_over", tmp_path)
    finally:
        (tmp_path / "first" / "go on").touch()
    with pytest.raises(Fenced, match="generation 2"):
        old.await_termination(TIMEOUT_S)
    assert_numbered_exactly_once(rows_in(tmp_path), 600)
    last = decode_events((tmp_path / "checkpoint" / "events.jsonl").read_bytes())[-1]
    assert isinstance(last, QueryStopped)
    assert last.reason == "fenced"


def test_a_driver_that_waits_for_input_notices_that_it_was_replaced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: else it would take the next micro-batch away from the newer driver, in the same folder source/."""
    monkeypatch.setattr(loop, "LEADER_CHECK_S", 0.2)
    query = start_until(
        output(spark, tmp_path),
        lambda event: event.batch_id == 1,
        checkpoint=tmp_path / "checkpoint",
        trigger="100 ms",
        epoch=None,
    )
    wait_until(lambda: len(rows_in(tmp_path)) == 200)  # from now on nothing is to be committed
    checkpoints = Checkpoints(open_store(str(tmp_path / "checkpoint")))
    checkpoints.claim_generation(Driver("elsewhere", 1, "2026-11-16T00:00:00", "0.1.0"))
    with pytest.raises(Fenced, match="generation 2 was claimed; this driver is generation 1"):
        query.await_termination(TIMEOUT_S)
