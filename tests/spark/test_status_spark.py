"""A query that ended in one of many ways on Spark: `penstock status` names the reason and the next step each time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import penstock as pen
from penstock.cli import main
from penstock.cli.demo import generate
from penstock.observe.folder import Folder
from penstock.observe.page.document import document
from penstock.store import open_store
from penstock.testing.tables import Memory, memory_table
from tests.chaos.disk import Disk
from tests.spark.test_kill import Life
from tests.support.spark_streams import TIMEOUT_S, numbered, paimon, stream, write_files


def status(folder: Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["status", str(folder), "--json"])
    return json.loads(result.output)


def said(folder: Path) -> tuple[str, str | None, str]:
    """What the command tells; the page tells the same."""
    told = status(folder)
    page = document(Folder(open_store(str(folder))).look())["verdict"]
    if page["kind"] == told["status"]:  # it may have gone on between two looks
        assert (page["code"], page["health"]) == (told["code"], told["health"])
        assert page["next_step"] == told["next_step"]
    return told["status"], told["code"], told["why"] + " / " + told["next_step"]


def start(spark: SparkSession, tmp_path: Path, function: Any, **options: Any) -> pen.Query:
    write_files(tmp_path / "in", numbered(50, 3))
    rows = pen.read(stream(spark, tmp_path / "in"), name="numbers")
    output = rows.map_batches(function, rows.schema, name="work").write(
        options.pop("sink", None) or Memory("status"), name="table"
    )
    return pen.start(output, checkpoint=tmp_path / "checkpoint", parallelism=2, **options)


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def broken(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise ValueError("the price is missing")


def out_of_memory(batch: pa.RecordBatch) -> pa.RecordBatch:
    os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does for want of memory
    return batch


def hanging(batch: pa.RecordBatch) -> pa.RecordBatch:
    time.sleep(3600)
    return batch


def test_an_exception_of_the_user_is_named_with_its_operator(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(pen.PenstockError):
        start(spark, tmp_path, broken, trigger="available_now").await_termination(TIMEOUT_S)
    kind, code, why = said(tmp_path / "checkpoint")
    assert (kind, code) == ("failed", "PEN-030")
    assert "the price is missing" in why
    assert "work" in why


def test_workers_that_the_kernel_kills_are_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(pen.PenstockError):
        start(spark, tmp_path, out_of_memory, trigger="available_now", epoch_retries=0).await_termination(TIMEOUT_S)
    kind, code, why = said(tmp_path / "checkpoint")
    assert (kind, code) == ("failed", "PEN-033")
    assert "Python workers were lost" in why


def test_a_function_that_hangs_is_named(spark: SparkSession, tmp_path: Path) -> None:
    options = {"trigger": "available_now", "epoch_timeout": "5 s", "epoch_retries": 0}
    with pytest.raises(pen.PenstockError):
        start(spark, tmp_path, hanging, **options).await_termination(TIMEOUT_S)
    kind, code, why = said(tmp_path / "checkpoint")
    assert (kind, code) == ("failed", "PEN-035")
    assert "hanging" in why


def test_a_query_that_waits_is_well_and_one_that_was_stopped_says_by_whom(spark: SparkSession, tmp_path: Path) -> None:
    query = start(spark, tmp_path, same)
    try:
        until = time.monotonic() + TIMEOUT_S
        while said(tmp_path / "checkpoint")[0] in {"starting", "empty"} and time.monotonic() < until:
            time.sleep(0.2)
        assert status(tmp_path / "checkpoint")["exit_code"] == 0
    finally:
        query.stop()
    kind, code, why = said(tmp_path / "checkpoint")
    assert (kind, code) == ("stopped", None)
    assert "query.stop()" in why


def await_status(folder: Path, kind: str) -> tuple[str | None, str]:
    """Waits until the status is of a kind; its code, why and next step."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        found, code, why = said(folder)
        if found == kind:
            return code, why
        assert time.monotonic() < until, (found, why)
        time.sleep(0.2)


@pytest.mark.slow
def test_a_commit_that_hangs_is_named_and_the_query_well_again_when_it_returns(
    spark: SparkSession, tmp_path: Path
) -> None:
    returns = threading.Event()
    memory_table("hung commit").on_commit = lambda _: returns.wait(TIMEOUT_S) and None
    query = start(spark, tmp_path, same, sink=Memory("hung commit"), commit_timeout="1 s")
    try:
        code, why = await_status(tmp_path / "checkpoint", "commit slow")
        assert code is None
        assert "sink table" in why
        assert "storage and catalog" in why
        returns.set()
        await_status(tmp_path / "checkpoint", "waiting")
    finally:
        returns.set()
        query.stop()


@pytest.mark.slow
def test_a_full_disk_is_named_although_nothing_can_be_written_there(spark: SparkSession, tmp_path: Path) -> None:
    disk = Disk(tmp_path / "checkpoint")
    if not disk.is_mounted:
        pytest.skip("no disk can be mounted here")
    query = start(spark, tmp_path, same, sink=Memory("full disk"))
    try:
        await_status(tmp_path / "checkpoint", "waiting")
        with disk.full():
            write_files(tmp_path / "in", numbered(50, 3), 3)
            code, why = await_status(tmp_path / "checkpoint", "storage failing")
            assert code == "PEN-032"
            assert "the disk of the folder is full" in why
            assert "free space" in why
        await_status(tmp_path / "checkpoint", "waiting")
    finally:
        query.stop()
        disk.remove(keep=False)
    assert len(memory_table("full disk").rows()) == 300


def test_a_table_that_was_lost_refuses_the_start_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    sink = paimon(tmp_path)
    start(spark, tmp_path, same, sink=sink, trigger="available_now").await_termination(TIMEOUT_S)
    assert said(tmp_path / "checkpoint")[0] == "finished"
    shutil.rmtree(tmp_path / "lake")
    with pytest.raises(pen.PenstockError) as caught:
        start(spark, tmp_path, same, sink=paimon(tmp_path), trigger="available_now")
    kind, code, why = said(tmp_path / "checkpoint")
    assert (kind, code) == ("refused", caught.value.code)
    assert caught.value.next_step in why


def test_a_second_driver_fences_the_first_which_says_so(spark: SparkSession, tmp_path: Path) -> None:
    first = start(spark, tmp_path, same)
    second = start(spark.newSession(), tmp_path, same)
    try:
        with pytest.raises(pen.PenstockError):
            first.await_termination(TIMEOUT_S)
        told = status(tmp_path / "checkpoint")
        assert told["exit_code"] == 0
        assert [run["ended"] for run in told["runs"]] == ["fenced", None]
    finally:
        second.stop()


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Life]:
    generate(tmp_path / "input", 36_000)
    life = Life(tmp_path, 2)
    yield life
    life.end()


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("kill", "kind"), [("driver", "killed"), ("jvm", "failed"), ("ctrl-c", "stopped"), ("sigterm", "stopped")]
)
def test_a_driver_that_is_killed_is_told_from_one_that_was_asked(
    demo: Life, tmp_path: Path, kill: str, kind: str
) -> None:
    demo.await_first_epoch()
    match kill:
        case "driver":
            os.kill(demo.job.pid, signal.SIGKILL)
        case "jvm":
            for pid in demo.processes("SparkSubmit"):
                os.kill(pid, signal.SIGKILL)
        case "ctrl-c":
            os.kill(demo.job.pid, signal.SIGINT)
        case "sigterm":
            os.kill(demo.job.pid, signal.SIGTERM)
    assert demo.wait(TIMEOUT_S) is not None
    found, code, why = said(tmp_path / "checkpoint")
    assert found == kind, why
    match kill:
        case "driver":
            assert f"process {demo.job.pid}" in why
            assert "start it again" in why
        case "jvm":
            assert code == "PEN-033"
        case "ctrl-c":
            assert "Ctrl-C" in why
        case "sigterm":
            assert "SIGTERM" in why
