"""The whole engine without Spark, with its checkpoint on an object store that fails now and then."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bucket import BucketServer, Request
from penstock.engine.checkpoints import Checkpoints
from penstock.errors import Fenced, StorageFailed
from penstock.observe.events import EpochPublished, Event, decode_events
from penstock.store import object as objects
from penstock.store import open_store
from penstock.testing.inline import InlineRun
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, keyed_slow, run_until
from tests.support.object_stores import Places, places, server

__all__ = ["places", "server"]

HERE = "s3://bucket/here"


@pytest.fixture(autouse=True)
def _quick_client(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any folder of the test's bucket can be opened by its URL."""
    client = places.client()
    monkeypatch.setattr(objects, "_client", lambda _: client)
    monkeypatch.setenv("PENSTOCK_CACHE", str(places.folder / "cache"))


def every(n: int, *faults: str) -> Callable[[Request], str | None]:
    """Each n-th request goes wrong, in one of several ways in turn."""
    numbers, kinds = itertools.count(1), itertools.cycle(faults)
    return lambda _: None if next(numbers) % n else next(kinds)


@pytest.mark.parametrize("n", [3, 4, 5, 7, 11])
def test_requests_that_fail_or_lose_their_answers_change_nothing(
    n: int, clock: FakeClock, table: str, server: BucketServer
) -> None:
    """A6, C1, C9: with rows in flight, stopped and started again at another parallelism."""
    server.fault = every(n, "lose", "fail")
    run = InlineRun(batches_of(500, 4), clock)
    query = run_until(
        run, keyed_slow(clock, table), lambda e: e.rows_in_flight > 0 and e.checkpoint > 4, checkpoint=HERE,
        epoch="100 ms", parallelism=3,
    )  # fmt: skip
    query.stop()
    run.start(keyed_slow(clock, table), checkpoint=HERE, epoch="100 ms", parallelism=5).await_termination(60)
    assert_exact(table, 2000)


def at_checkpoint(number: int, act: Callable[[], object]) -> Callable[[Event], None]:
    """A listener that does something in the middle of a run."""

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished) and event.checkpoint == number:
            act()

    return listen


def test_an_object_store_that_is_gone_for_long_ends_the_query_and_loses_nothing(
    clock: FakeClock, table: str, server: BucketServer
) -> None:
    def vanish() -> None:
        server.fault = lambda _: "fail"

    run = InlineRun(batches_of(500, 4), clock)
    options = {"checkpoint": HERE, "epoch": "100 ms", "parallelism": 2}
    with pytest.raises(StorageFailed):
        run.start(
            keyed_slow(clock, table), on_event=at_checkpoint(4, vanish), epoch_retries=0, **options
        ).await_termination(60)
    server.fault = lambda _: None
    run.start(keyed_slow(clock, table), **options).await_termination(60)
    assert_exact(table, 2000)


def test_of_two_drivers_the_older_one_stops(clock: FakeClock, table: str) -> None:
    """C9."""
    run = InlineRun(batches_of(500, 4), clock)
    options = {"checkpoint": HERE, "epoch": "100 ms", "parallelism": 2}

    def take_over() -> None:
        run.start(keyed_slow(clock, table), **options).await_termination(60)

    older = run.start(keyed_slow(clock, table), on_event=at_checkpoint(4, take_over), **options)
    with pytest.raises(Fenced):
        older.await_termination(60)
    assert_exact(table, 2000)


@pytest.mark.parametrize("there", ["bucket", "folder"])
def test_a_savepoint_goes_to_the_same_bucket_or_to_a_folder_and_back(
    there: str, clock: FakeClock, table: str, tmp_path: Path
) -> None:
    """B14."""
    saved = "s3://bucket/saved" if there == "bucket" else str(tmp_path / "saved")
    run = InlineRun(batches_of(1000, 2), clock)
    query = run_until(
        run, keyed_slow(clock, table), lambda e: e.checkpoint == 4, checkpoint=HERE, epoch="100 ms", parallelism=2
    )
    made = query.savepoint(saved)
    assert made.rows_in_flight > 0
    store = open_store(HERE)
    store.delete([entry.path for entry in store.list("")])
    run.start(
        keyed_slow(clock, table), checkpoint="s3://bucket/new", restore=saved, epoch="100 ms", parallelism=7
    ).await_termination(60)
    assert_exact(table, 2000)


def test_files_that_nobody_needs_are_deleted_from_bucket_and_cache(
    clock: FakeClock, table: str, places: Places
) -> None:
    """B13."""
    run = InlineRun(batches_of(200, 12), clock)
    run.start(keyed_slow(clock, table), checkpoint=HERE, epoch=None, parallelism=2, retain=1).await_termination(60)
    store = open_store(HERE)
    newest = Checkpoints(store).newest()
    assert newest is not None
    kept = {entry.path for folder in ("state", "segments") for entry in store.list(folder)}
    assert kept == newest.files()
    copies = [path for path in (places.folder / "cache").glob("??/*") if path.is_file()]
    assert len(copies) == len(kept)


def test_the_history_tells_of_every_epoch(clock: FakeClock, table: str) -> None:
    run = InlineRun(batches_of(200, 12), clock)
    run.start(keyed_slow(clock, table), checkpoint=HERE, epoch=None, parallelism=2).await_termination(60)
    store = open_store(HERE)
    assert isinstance(store, objects.ObjectStore)
    store.flush_logs()
    events = decode_events(store._get("events.jsonl"))
    assert len([event for event in events if isinstance(event, EpochPublished)]) == 13
