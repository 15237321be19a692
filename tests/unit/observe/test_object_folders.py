"""A folder on an object store is seen like one on a disk: status, page, tables, data source (G1, G2, G6)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark import cloudpickle

import penstock as pen
from benchmarks.bucket import BucketServer
from penstock.cli import main
from penstock.observe.events import EpochPublished, Event
from penstock.observe.folder import Folder
from penstock.observe.page.document import document
from penstock.observe.page.sample import sample
from penstock.protocol.layout import READERS
from penstock.spark.data_source import CheckpointSource
from penstock.store import object as objects
from penstock.store import open_store
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, keyed_slow, run_until
from tests.support.object_stores import Places, places, server

__all__ = ["places", "server"]

HERE = "s3://bucket/here"
EDGE = "source-to-slow"


@pytest.fixture(autouse=True)
def _quick_client(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    client = places.client()
    monkeypatch.setattr(objects, "_client", lambda _: client)
    monkeypatch.setenv("PENSTOCK_CACHE", str(places.folder / "cache"))


@pytest.fixture
def waiting(clock: FakeClock, table: str) -> int:
    """A query that stopped with rows in flight; how many."""
    run = InlineRun(batches_of(500, 4), clock)
    query = run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint > 4, checkpoint=HERE,
        epoch="100 ms", parallelism=3,
    )  # fmt: skip
    query.stop()
    store = open_store(HERE)
    assert isinstance(store, objects.ObjectStore)
    store.flush_logs()  # the last lines of the history would be there within a second
    return query.manifest().rows_in_flight


def read_as_spark_does(**options: str) -> list[dict[str, Any]]:
    source = CheckpointSource({"path": HERE, **options})
    schema = source.schema()
    reader = cloudpickle.loads(cloudpickle.dumps(source)).reader(schema)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.mark.usefixtures("server")
def test_status_page_tables_and_data_source_read_a_bucket(waiting: int, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["status", HERE, "--json"])
    told = json.loads(result.output)
    assert (result.exit_code, told["status"], told["rows_in_flight"]) == (3, "stopped", waiting)
    shown = document(Folder(open_store(HERE)).look())
    assert (shown["rows_in_flight"], shown["folder"]) == (waiting, HERE)
    assert len(sample(open_store(HERE), EDGE, None, 20)["rows"]) == 20
    assert CliRunner().invoke(main, ["report", HERE, "-o", str(tmp_path / "run.html")]).exit_code == 0
    assert EDGE in (tmp_path / "run.html").read_text()
    look = pen.open(HERE)
    assert look.in_flight(EDGE).count() == waiting == len(read_as_spark_does(edge=EDGE))
    state = look.state("slow").to_pylist()
    assert sum(row["seen"] for row in state) == look.manifest.edges[EDGE].consumed
    assert sorted(map(repr, read_as_spark_does(operator="slow"))) == sorted(map(repr, state))
    assert look.epochs().count() > 0
    assert {row["kind"] for row in look.files().to_pylist()} == {"segment", "state"}
    assert read_as_spark_does(table="checkpoints")[-1]["rows_in_flight"] == waiting


@pytest.mark.usefixtures("waiting")
def test_a_reader_of_a_bucket_leaves_no_lease_behind(server: BucketServer) -> None:
    store = open_store(HERE)
    assert pen.open(HERE).in_flight(EDGE).count() > 0
    assert store.list(READERS) == []
    batches = iter(pen.open(HERE).in_flight(EDGE))
    next(batches)
    assert len(store.list(READERS)) == 1
    batches.close()  # type: ignore[attr-defined]
    assert store.list(READERS) == []


@pytest.mark.usefixtures("server")
def test_a_slow_reader_of_a_bucket_reads_to_the_end_while_the_query_goes_on(clock: FakeClock, table: str) -> None:
    """Between its first and its last batch the query retires the checkpoint that it reads, many times over."""
    read: list[Any] = []
    begun = threading.Event()
    look, expected = pen.open(HERE), []

    def listen(event: Event) -> None:
        if not isinstance(event, EpochPublished) or event.kind == "takeover":
            return
        if not begun.is_set() and len(look.manifest.edges[EDGE].segments) > 1:
            expected.append(look.manifest.edges[EDGE].rows_in_flight)
            read.append(iter(look.in_flight(EDGE)))
            read.append(next(read[0]).num_rows)
            begun.set()

    run = InlineRun(batches_of(500, 4), clock)
    options: dict[str, Any] = {"checkpoint": HERE, "epoch": "100 ms", "parallelism": 3, "retain": 1}
    run.start(keyed_slow(clock, table), on_event=listen, **options).await_termination(60)
    assert begun.is_set()
    batches, first = read
    assert first + sum(batch.num_rows for batch in batches) == expected[0]
