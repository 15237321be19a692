"""Logs for people in an object store, which cannot append: few requests, nothing lost but the last moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from benchmarks.bucket import BucketServer
from penstock.observe.journal import append_line, read_journal
from penstock.protocol.layout import EVENTS
from penstock.store.object import ObjectStore
from tests.support.object_stores import Places, places, server

__all__ = ["places", "server"]


@pytest.fixture
def bucket(places: Places) -> ObjectStore:
    return places.bucket()


def test_lines_of_an_event_log_cost_one_request_for_many(bucket: ObjectStore, server: BucketServer) -> None:
    for number in range(100):
        append_line(bucket, b"%d\n" % number)
    bucket.flush_logs()
    assert dict(server.counts()) == {"PUT": 2}
    assert bucket._get(EVENTS).split() == [b"%d" % number for number in range(100)]


def test_the_first_line_is_there_when_append_returns(places: Places) -> None:
    """C5: a list of an attempt's files must be there when the attempt is killed a moment later."""
    places.bucket().append("attempts/sink/1.txt", b"bucket-0/data-1.parquet")
    assert places.bucket().read("attempts/sink/1.txt") == b"bucket-0/data-1.parquet\n"


def test_later_lines_are_written_by_themselves(bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.lines.FLUSH_S", 0.01)
    for line in (b"1", b"2"):
        bucket.append("log", line)
    timer = bucket._logs._timer
    assert timer is not None
    timer.join()
    assert bucket._get("log") == b"1\n2\n"


def test_lines_are_written_though_once_no_thread_could_be_started(
    bucket: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python refuses new threads when there are too many, and when the process is ending."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("penstock.store.lines.FLUSH_S", 0.01)
    bucket.append("log", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert bucket.append("log", b"2") == 4
    bucket.append("log", b"3")
    timer = bucket._logs._timer
    assert timer is not None
    timer.join()
    assert bucket._get("log") == b"1\n2\n3\n"


_LAST_WORDS = """
import atexit, threading
def last_words():
    def refused(self):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = refused
    for line in (b"3", b"4"):
        store.append("log", line)
atexit.register(last_words)
from penstock.store import open_store
store = open_store("s3://bucket/checkpoint")
for line in (b"1", b"2"):
    store.append("log", line)
"""


def test_lines_of_a_process_that_is_ending_are_written_without_noise(
    places: Places, server: BucketServer, tmp_path: Path
) -> None:
    """Also those of whoever says something after the logs were closed."""
    environment = {**os.environ, **server.environment, "PENSTOCK_CACHE": str(tmp_path / "cache")}
    ended = subprocess.run([sys.executable, "-c", _LAST_WORDS], env=environment, capture_output=True, check=True)
    assert (ended.stdout, ended.stderr) == (b"", b"")
    assert places.bucket().read("log") == b"1\n2\n3\n4\n"


def test_a_new_driver_goes_on_with_the_log_of_the_old_one(places: Places) -> None:
    old = places.bucket()
    for line in (b"1", b"2"):
        old.append(EVENTS, line)
    old.flush_logs()
    new = places.bucket()
    new.append(EVENTS, b"3")
    assert new.read(EVENTS) == places.bucket().read(EVENTS) == b"1\n2\n3\n"


def test_a_line_that_cannot_be_written_stops_nothing_and_comes_with_the_next(
    bucket: ObjectStore, server: BucketServer, caplog: pytest.LogCaptureFixture
) -> None:
    bucket.append("log", b"1")
    server.fault = lambda _: "fail"
    bucket.append("log", b"2")
    bucket.flush_logs()
    assert bucket.append("another", b"1") == 0
    server.fault = lambda _: None
    bucket.append("log", b"3")
    bucket.flush_logs()
    assert bucket._get("log") == b"1\n2\n3\n"
    assert "log" in caplog.text


def test_a_log_that_was_deleted_is_not_written_again(bucket: ObjectStore) -> None:
    for line in (b"1", b"2"):
        bucket.append("log", line)
    bucket.delete(["log"])
    bucket.flush_logs()
    assert bucket.list("") == []


def test_the_history_stays_bounded_in_small_pieces(bucket: ObjectStore) -> None:
    for number in range(45):
        append_line(bucket, b"%09d\n" % number, 100)
    assert [int(line) for line in read_journal(bucket).split()] == list(range(45))
    assert len(bucket.list("events")) == 4


def test_logs_of_many_attempts_are_not_kept_in_memory(bucket: ObjectStore) -> None:
    for number in range(200):
        bucket.append(f"attempts/{number}", b"x")
    assert len(bucket._logs._logs) <= 65
