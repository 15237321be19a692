"""A checkpoint on an object store: killed, restored elsewhere at another parallelism, exactly once in a real table."""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.bucket import BucketServer
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import SparkSetupError
from penstock.observe.events import Event
from penstock.spark.quirks.logfiles import SETTING
from penstock.store import object as objects
from penstock.store import open_store
from tests.support.spark_jobs import BUCKET, finish_totals, mount, running
from tests.support.spark_streams import (
    TIMEOUT_S,
    Slow,
    assert_numbered_exactly_once,
    deep,
    epochs,
    finish,
    numbered,
    paimon,
    rows_in,
    stop_at,
    stream,
    write_files,
)

FILES, ROWS, USERS = 12, 400, 100


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    """Driver and jobs in processes of their own find it by their environment."""
    running_server = BucketServer(tmp_path / "served")
    monkeypatch.setattr(objects, "_stores", {})
    monkeypatch.setattr(objects, "_clients", {})
    for name, value in {**running_server.environment, "PENSTOCK_CACHE": str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    yield running_server
    running_server.close()


@pytest.fixture
def mounted(spark: SparkSession, tmp_path: Path, server: BucketServer) -> Iterator[SparkSession]:
    """Python workers get the same environment, and the session reaches the bucket's objects as files."""
    session, workers = spark.newSession(), spark.sparkContext.environment
    before = dict(workers)
    names = [*server.environment, "PENSTOCK_CACHE"]
    workers.update({name: os.environ[name] for name in names})
    mount(session, tmp_path)
    yield session
    workers.clear()
    workers.update(before)
    java = spark.sparkContext._jvm
    assert java is not None
    java.org.apache.hadoop.fs.FileSystem.closeAll()  # the next test's bucket has the same name and another folder


def expected_totals() -> Counter[tuple[int, int, int]]:
    """After each file, the count and sum of each user so far."""
    rows: Counter[tuple[int, int, int]] = Counter()
    for user in range(USERS):
        mine = range(user, FILES * ROWS, USERS)
        per_file = ROWS // USERS
        for n in range(per_file, len(mine) + 1, per_file):
            rows[user, n, sum(mine[:n])] += 1
    return rows


def totals_in(tmp_path: Path) -> Counter[tuple[int, int, int]]:
    return Counter((row["user"], row["n"], row["total"]) for row in rows_in(tmp_path))


@pytest.mark.drawn
def test_a_killed_query_goes_on_on_another_machine_at_another_parallelism(
    mounted: SparkSession, tmp_path: Path, server: BucketServer
) -> None:
    """A6, B1, B2, C1: and state is read from the disk where it is, and fetched once where it is not."""
    write_files(tmp_path / "in", numbered(ROWS, FILES, USERS))
    with running("bucket", tmp_path) as first:
        printed, _ = first.communicate(timeout=TIMEOUT_S)
        assert first.returncode == -signal.SIGKILL, printed
    assert server.asked("GET", "/state/") == [], "what was written here is read here"

    shutil.rmtree(tmp_path / "cache")
    newest = Checkpoints(open_store(f"s3://{BUCKET}/totals")).newest()
    assert newest is not None
    state = {f"totals/{file.path}" for file in newest.entries() if file.path.startswith("state/")}
    assert state
    server.requests.clear()
    events: list[Event] = []
    finish_totals(mounted, tmp_path, on_event=events.append, parallelism=3)
    assert Counter(server.asked("GET", "/state/")) == Counter(state)
    assert epochs(events)[-1].parallelism == {"totals": 3}
    assert totals_in(tmp_path) == expected_totals()
    history = open_store(f"s3://{BUCKET}/totals").read("events.jsonl")
    assert history.count(b"QueryStarted") == 2


def test_in_flight_data_is_read_from_the_bucket_after_a_restart(
    mounted: SparkSession, tmp_path: Path, server: BucketServer
) -> None:
    """A8, B1, B2: segments stay where they are; nothing of them is kept on this disk."""

    def output() -> pen.Output:
        source = pen.read(stream(mounted, tmp_path / "in"))
        return source.key_by("user").process(Slow, name="slow").write(paimon(tmp_path))

    write_files(tmp_path / "in", numbered(1600, 1))
    place = f"s3a://{BUCKET}/totals"
    query = stop_at(output(), deep, checkpoint=place, parallelism=2)
    assert query.manifest().rows_in_flight > 0
    finish(output(), checkpoint=place, parallelism=3)
    assert_numbered_exactly_once(rows_in(tmp_path), 1600)
    assert server.asked("GET", "/segments/") != []
    assert query.checkpoints()[-1] > 2


def test_without_its_connector_spark_is_told_which_one_before_anything_is_begun(
    spark: SparkSession, tmp_path: Path, server: BucketServer
) -> None:
    write_files(tmp_path / "in", numbered(10, 1))
    source = pen.read(stream(spark, tmp_path / "in"))
    with pytest.raises(SparkSetupError, match=r"hadoop-aws:\d"):
        source.map_batches(lambda batch: batch, name="same").write(paimon(tmp_path)).start(f"s3://{BUCKET}/nothing")
    assert server.requests == []
    assert spark.conf.get(SETTING, None) is None
