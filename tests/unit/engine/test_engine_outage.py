"""Storage that fails for a while under a running driver: it is tried again, told meanwhile, and nothing is doubled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import Fenced, StorageFailed, storage_failed
from penstock.observe.events import EpochFailed, EpochPublished, Event, StorageRetried
from penstock.protocol.layout import MANIFESTS
from penstock.protocol.outage import Outage, failed, is_over
from penstock.store import MemoryStore
from penstock.testing.inline import InlineRun
from penstock.testing.tables import memory_table
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, keyed_slow


class Refusing(MemoryStore):
    """Refuses to create manifests from the third on, some times, before or after it has done so."""

    def __init__(self, times: int, *, after: bool = False, errno: int = 5) -> None:
        super().__init__()
        self.left, self.after, self.errno, self.tries = times, after, errno, 0
        self.reads_left = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def create(self, path: str, data: bytes) -> None:
        refuses = path.startswith(MANIFESTS) and path >= f"{MANIFESTS}/0000000003" and self.left > 0
        if path.startswith(MANIFESTS):
            self.tries += 1
        if not refuses or self.after:
            super().create(path, data)
        if refuses:
            self.left -= 1
            self.meanwhile()
            raise storage_failed(path, OSError(self.errno, "no answer"))

    def read(self, path: str) -> bytes:
        if path.startswith(MANIFESTS) and self.reads_left > 0:
            self.reads_left -= 1
            raise storage_failed(path, OSError(5, "no answer"))
        return super().read(path)


def run_on(store: Refusing, clock: FakeClock, table: str, **options: object) -> list[Event]:
    events: list[Event] = []
    run = InlineRun(batches_of(60, 5), clock, open_store=lambda _: store)
    query = run.start(keyed_slow(clock, table, 0), checkpoint="memory://x", on_event=events.append, **options)
    assert query.await_termination(60)
    return events


def published(events: list[Event]) -> list[int]:
    return [event.checkpoint for event in events if isinstance(event, EpochPublished)]


@pytest.mark.parametrize("after", [False, True], ids=["nothing happened", "it happened"])
def test_a_publish_that_fails_is_tried_again_and_told(clock: FakeClock, table: str, after: bool) -> None:
    events = run_on(Refusing(3 if not after else 1, after=after), clock, table)
    assert_exact(table, 300)
    assert published(events) == sorted(set(published(events))), "each checkpoint once"
    told = [event for event in events if isinstance(event, StorageRetried)]
    assert [event.attempt for event in told] == ([1] if after else [1, 2, 3])
    assert all(event.what == "publish checkpoint 3" for event in told)
    assert not [event for event in events if isinstance(event, EpochFailed)], "the work was done and is not repeated"


def test_a_publish_of_unknown_outcome_is_settled_by_reading_it_back(clock: FakeClock, table: str) -> None:
    store = Refusing(1, after=True)
    store.meanwhile = lambda: setattr(store, "reads_left", 2)
    events = run_on(store, clock, table)
    assert_exact(table, 300)
    assert published(events) == sorted(set(published(events)))
    assert len([event for event in events if isinstance(event, StorageRetried)]) == 3
    assert len(memory_table(table).snapshots) <= len(published(events))


def test_a_driver_that_was_replaced_during_an_outage_publishes_nothing_more(clock: FakeClock, table: str) -> None:
    store = Refusing(1)
    store.meanwhile = lambda: MemoryStore.create(store, "generations/0000000002.json", b"{}")
    run = InlineRun(batches_of(60, 5), clock, open_store=lambda _: store)
    query = run.start(keyed_slow(clock, table, 0), checkpoint="memory://x")
    with pytest.raises(Fenced, match="generation 2"):
        query.await_termination(60)
    assert not store.exists(f"{MANIFESTS}/0000000003.json")


def test_an_outage_that_lasts_ends_the_query_with_its_error(clock: FakeClock, table: str) -> None:
    store = Refusing(1_000_000)
    with pytest.raises(StorageFailed, match="no answer"):
        run_on(store, clock, table, storage_timeout="300 ms")
    store.left = 0
    run_on(store, clock, table)
    assert {*range(300)} == {*memory_table(table).rows()["number"].to_pylist()}


def test_what_will_not_pass_is_not_tried_again(clock: FakeClock, table: str) -> None:
    store = Refusing(1_000_000, errno=13)
    with pytest.raises(StorageFailed, match="permissions"):
        run_on(store, clock, table)
    assert store.left == 1_000_000 - 1


def test_the_query_says_what_it_waits_for_during_an_outage(clock: FakeClock, table: str) -> None:
    store, seen = Refusing(4), []
    run = InlineRun(batches_of(60, 5), clock, open_store=lambda _: store)
    query = run.start(
        keyed_slow(clock, table, 0),
        checkpoint="memory://x",
        on_event=lambda event: seen.append(query.waiting_for) if isinstance(event, StorageRetried) else None,
    )
    query.await_termination(60)
    assert len(seen) == 4
    assert all("publish checkpoint 3" in why for why in seen)


def test_a_subtask_that_meets_a_passing_failure_is_tried_again_with_its_epoch(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    class Once(MemoryStore):
        left = 1

        def open_writer(self, path: str):
            if self.left and path.startswith("state"):
                self.left -= 1
                raise storage_failed(path, OSError(5, "no answer"))
            return super().open_writer(path)

    events: list[Event] = []
    store = Once()
    run = InlineRun(batches_of(60, 5), clock, open_store=lambda _: store)
    query = run.start(keyed_slow(clock, table, 0), checkpoint="memory://x", on_event=events.append)
    query.await_termination(60)
    assert_exact(table, 300)
    assert [event.code for event in events if isinstance(event, EpochFailed)] == [StorageFailed.code]


def test_pauses_double_up_to_five_seconds_and_have_an_end() -> None:
    outage: Outage | None = None
    pauses = []
    for _ in range(9):
        outage = failed(outage, 10.0)
        pauses.append(round(outage.again_s - 10.0, 3))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
    assert outage is not None
    assert not is_over(outage, 129.0, 120.0)
    assert is_over(outage, 130.0, 120.0)
