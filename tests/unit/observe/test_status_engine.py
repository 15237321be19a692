"""A query that is held up: status, page and panel name who holds it up and what to do, while it is so (G2, R1)."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.observe.events import CommitSlow, EpochPublished, Event
from penstock.observe.folder import Folder
from penstock.observe.notebook.panel import panel
from penstock.observe.page.document import document
from penstock.store import open_store
from penstock.testing.inline import InlineFeed, InlineRun
from penstock.testing.tables import memory_table
from tests.chaos.disk import Disk
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, keyed_slow

WAIT_S = 60.0


def said(folder: Path) -> dict[str, Any]:
    """What the command tells, if page and panel tell the same; a query may go on between two looks."""
    result = CliRunner().invoke(main, ["status", str(folder), "--json"])
    told: dict[str, Any] = json.loads(result.output)
    view = Folder(open_store(str(folder))).look()
    if view.verdict.kind.value == told["status"]:
        page = document(view)["verdict"]
        assert (page["code"], page["next_step"]) == (told["code"], told["next_step"])
        assert told["status"] in panel(view)
    return told


def await_status(folder: Path, kind: str) -> dict[str, Any]:
    until = time.monotonic() + WAIT_S
    while (told := said(folder))["status"] != kind:
        assert time.monotonic() < until, told
        time.sleep(0.05)
    return told


def at_checkpoint(number: int, act: Callable[[], None]) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.checkpoint == number:
            act()

    return listen


def test_a_commit_that_hangs_is_named(tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slow, looked = FakeClock(), threading.Event(), threading.Event()
    memory_table(table).on_commit = lambda _: looked.wait(WAIT_S) and None
    # The source has one more batch until the test has looked: a query that ends has another verdict.
    monkeypatch.setattr(InlineFeed, "before_batch", lambda _, number: number < 3 or looked.wait(WAIT_S))

    def listen(event: Event) -> None:
        if isinstance(event, CommitSlow):
            slow.set()

    run = InlineRun(batches_of(100, 4), clock)
    options: dict[str, Any] = {"epoch": "100 ms", "commit_timeout": "200 ms", "on_event": listen}
    query = run.start(keyed_slow(clock, table), checkpoint=tmp_path, **options)
    try:
        assert slow.wait(WAIT_S)
        told = said(tmp_path)
        assert (told["status"], told["exit_code"], told["alive"]) == ("commit slow", 4, True)
        assert "sink sink has not returned" in told["why"]
        assert "storage and catalog" in told["next_step"]
    finally:
        looked.set()
    query.await_termination(WAIT_S)
    assert said(tmp_path)["status"] == "finished"
    assert_exact(table, 400)


@pytest.fixture
def disk(tmp_path: Path) -> Any:
    disk = Disk(tmp_path / "disk")
    if not disk.is_mounted:
        pytest.skip("no disk can be mounted here")
    yield disk
    disk.remove(keep=False)


def test_a_full_disk_is_named_while_the_query_tries_again(disk: Disk, tmp_path: Path, table: str) -> None:
    clock, filled, freed = FakeClock(), threading.Event(), threading.Event()
    place = tmp_path / "disk" / "checkpoint"
    stack: list[Any] = []

    def fill() -> None:
        full = disk.full()
        full.__enter__()
        stack.append(full)
        filled.set()

    run = InlineRun(batches_of(500, 4), clock)
    options: dict[str, Any] = {"checkpoint": place, "epoch": "100 ms", "on_event": at_checkpoint(4, fill)}
    # However long it takes to look: the query must not give up before the disk has room again.
    query = run.start(keyed_slow(clock, table), epoch_retries=1_000_000, **options)
    assert filled.wait(WAIT_S)
    try:
        told = await_status(place, "storage failing")
        assert (told["code"], told["exit_code"]) == ("PEN-032", 4)
        assert "the disk of the folder is full" in told["why"]
        assert "free space" in told["next_step"]
    finally:
        stack[0].__exit__(None, None, None)
        freed.set()
    query.await_termination(WAIT_S)
    assert said(place)["status"] == "finished"
    assert_exact(table, 2000)


def test_the_folder_of_a_driver_that_died_on_a_full_disk_says_so(disk: Disk, tmp_path: Path, table: str) -> None:
    """It could not even write down its end."""
    clock, place = FakeClock(), tmp_path / "disk" / "checkpoint"
    run = InlineRun(batches_of(100, 2), clock)
    run.start(keyed_slow(clock, table), checkpoint=tmp_path / "once", epoch="100 ms").await_termination(WAIT_S)
    shutil.copytree(tmp_path / "once", place)
    events = place / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(
        b"".join(line for line in lines if b"QueryStopped" not in line).replace(b'"pid":', b'"pid":9999')
    )
    with disk.full():
        told = said(place)
    assert (told["status"], told["code"]) == ("failed", "PEN-032")
    assert "could not even write down why it ended" in told["why"]
    assert "free space" in told["next_step"]
