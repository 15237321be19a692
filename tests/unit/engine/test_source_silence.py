"""A source that does not answer is told as that, and not as one without new rows; the query lives on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from penstock.engine.background import wait_for
from penstock.engine.sourcewatch import SourceWatch
from penstock.observe.events import Event, SourceSlow
from penstock.protocol.silence import Silence, SourceState, listened, too_long
from penstock.testing import inline
from penstock.testing.inline import InlineFeed, InlineRun
from tests.support.engine_jobs import FakeClock, assert_exact, batches_of, epochs, keyed_slow, wait_until

OFFSETS = SourceState("Spark says 'Getting offsets from files'", 1)


# -- the decision ------------------------------------------------------------------------------------------------


def test_a_question_without_an_answer_is_counted_from_when_it_was_first_seen() -> None:
    first = listened(None, OFFSETS, 10.0)
    assert listened(first, OFFSETS, 25.0) == Silence(OFFSETS, 10.0)


def test_the_same_words_once_more_are_another_question() -> None:
    first = listened(None, OFFSETS, 10.0)
    again = SourceState(OFFSETS.question, 2)
    assert listened(first, again, 25.0) == Silence(again, 25.0)


def test_a_source_that_has_nothing_to_answer_is_not_silent() -> None:
    assert listened(Silence(OFFSETS, 10.0), SourceState(None), 25.0) is None


def test_nothing_is_known_where_nobody_could_look() -> None:
    silence = Silence(OFFSETS, 10.0)
    assert listened(silence, None, 25.0) is silence


def test_the_limit_counts_from_the_question() -> None:
    assert not too_long(Silence(OFFSETS, 10.0), 19.9, 10.0)
    assert too_long(Silence(OFFSETS, 10.0), 20.0, 10.0)


# -- what is told ------------------------------------------------------------------------------------------------


class Asked:
    """A feed of which only the state is asked."""

    def __init__(self) -> None:
        self.says: SourceState | None = SourceState(None)
        self.asked = 0

    def state(self) -> SourceState | None:
        self.asked += 1
        return self.says


@pytest.fixture
def feed() -> Asked:
    return Asked()


@pytest.fixture
def told() -> list[SourceSlow]:
    return []


def watch_of(feed: Asked, clock: FakeClock, told: list[SourceSlow], *sources: str, ending: bool = False) -> SourceWatch:
    return SourceWatch(cast("Any", feed), sources, limit_s=60.0, clock=clock, ending=lambda: ending, record=told.append)


def looks(watch: SourceWatch, clock: FakeClock, seconds: int) -> None:
    for _ in range(seconds // 5):
        watch.look()
        clock.now += 5.0


def test_a_silent_source_is_told_once_and_once_more_when_it_answers(
    feed: Asked, clock: FakeClock, told: list[SourceSlow]
) -> None:
    watch = watch_of(feed, clock, told, "clicks")
    feed.says = OFFSETS
    looks(watch, clock, 60)
    assert told == []
    looks(watch, clock, 60)
    assert [(event.source, event.what, event.answered) for event in told] == [("clicks", OFFSETS.question, False)]
    assert watch.silent() == f"source clicks has not answered for 120 s: {OFFSETS.question}"
    feed.says = SourceState(None)
    looks(watch, clock, 60)
    assert [(event.waited_s, event.answered) for event in told] == [(60.0, False), (120.0, True)]
    assert watch.silent() is None


def test_a_source_that_answers_each_time_is_never_told(feed: Asked, clock: FakeClock, told: list[SourceSlow]) -> None:
    watch = watch_of(feed, clock, told, "clicks")
    for question in range(20):
        feed.says = SourceState("the same words", question)
        looks(watch, clock, 55)
    assert told == []


def test_of_several_sources_all_are_named(feed: Asked, clock: FakeClock, told: list[SourceSlow]) -> None:
    watch = watch_of(feed, clock, told, "clicks", "views")
    feed.says = OFFSETS
    looks(watch, clock, 70)
    assert (watch.silent() or "").startswith("one of the sources clicks, views has not answered for 70 s")
    assert told[0].source == "clicks, views"


def test_the_end_of_the_query_is_no_answer(feed: Asked, clock: FakeClock, told: list[SourceSlow]) -> None:
    ended: list[bool] = []
    watch = SourceWatch(
        cast("Any", feed), ["clicks"], limit_s=60.0, clock=clock, ending=lambda: bool(ended), record=told.append
    )
    feed.says = OFFSETS
    looks(watch, clock, 70)
    ended.append(True)
    feed.says = SourceState(None)
    looks(watch, clock, 10)
    assert len(told) == 1


def test_without_a_limit_nobody_asks(feed: Asked, clock: FakeClock, told: list[SourceSlow]) -> None:
    watch = SourceWatch(
        cast("Any", feed), ["clicks"], limit_s=None, clock=clock, ending=lambda: False, record=told.append
    )
    looks(watch, clock, 600)
    assert feed.asked == 0


# -- in a query --------------------------------------------------------------------------------------------------


class HangingFeed(InlineFeed):
    """Asked for its second micro-batch, it answers when it is told to; the third one takes its time in silence."""

    go_on: threading.Event
    finish: threading.Event
    asked = False

    def state(self) -> SourceState | None:
        return OFFSETS if self.asked and not self.go_on.is_set() else SourceState(None)

    def before_batch(self, number: int) -> None:
        self.asked = number == 1
        until = {1: self.go_on, 2: self.finish}.get(number)
        while until is not None and not self._stopped.is_set() and not until.wait(0.02):
            pass


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    HangingFeed.go_on, HangingFeed.finish = threading.Event(), threading.Event()
    monkeypatch.setattr(inline, "InlineFeed", HangingFeed)
    yield HangingFeed.go_on
    HangingFeed.go_on.set()
    HangingFeed.finish.set()


def test_a_query_with_a_silent_source_says_so_drains_and_goes_on_when_it_answers(
    tmp_path: Path, clock: FakeClock, table: str, go_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []
    silent, answered = threading.Event(), threading.Event()

    def listen(event: Event) -> None:
        events.append(event)
        if isinstance(event, SourceSlow):
            (answered if event.answered else silent).set()

    run = InlineRun(batches_of(600, 3), clock)
    query = run.start(
        keyed_slow(clock, table), checkpoint=tmp_path, epoch="100 ms", source_timeout="200 ms", on_event=listen
    )
    assert wait_for(silent, 30)
    wait_until(lambda: "source source has not answered for " in (query.waiting_for or ""), query)
    assert "Getting offsets from files" in (query.waiting_for or "")
    assert "source source has not answered for 0 s" in caplog.text
    drained = [epoch for epoch in epochs(events) if epoch.kind == "drain"]
    assert drained
    assert drained[-1].rows_in_flight == 0
    go_on.set()
    assert wait_for(answered, 30)
    HangingFeed.finish.set()
    assert query.await_termination(60)
    assert_exact(table, 1800)


def test_a_query_with_a_silent_source_stops_in_time(
    tmp_path: Path, clock: FakeClock, table: str, go_on: threading.Event
) -> None:
    told: list[SourceSlow] = []
    silent = threading.Event()

    def listen(event: Event) -> None:
        if isinstance(event, SourceSlow):
            told.append(event)
            silent.set()

    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, source_timeout="200 ms", on_event=listen)
    assert wait_for(silent, 30)
    assert query.stop(drain=True, timeout=30) is None
    assert [event.answered for event in told] == [False]
    go_on.set()
    InlineRun(run.batches, clock, run.accepted).start(
        keyed_slow(clock, table, 0), checkpoint=tmp_path
    ).await_termination(60)
    assert_exact(table, 120)


def test_a_query_whose_source_has_nothing_new_waits_for_input(
    tmp_path: Path, clock: FakeClock, table: str, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[None] = []
    monkeypatch.setattr(HangingFeed, "state", lambda _: looked.append(None) or SourceState(None))
    run = InlineRun(batches_of(60, 2), clock)
    query = run.start(keyed_slow(clock, table, 0), checkpoint=tmp_path, source_timeout="20 ms")
    wait_until(lambda: len(looked) >= 20 and query.waiting_for is not None, query)
    assert query.waiting_for == "no input"
    go_on.set()
    assert query.await_termination(60)


def test_a_query_that_waits_for_an_answer_says_so_before_the_limit(
    feed: Asked, clock: FakeClock, told: list[SourceSlow]
) -> None:
    """No input is something else than a broker that does not answer."""
    watch = watch_of(feed, clock, told, "clicks")
    feed.says = OFFSETS
    watch.look()
    assert watch.silent() is None
    looks(watch, clock, 10)
    assert (watch.silent() or "").startswith("source clicks has not answered for")
    assert told == []


def test_the_planning_of_a_micro_batch_is_not_taken_for_a_silent_source(
    feed: Asked, clock: FakeClock, told: list[SourceSlow]
) -> None:
    watch = watch_of(feed, clock, told, "clicks")
    feed.says = SourceState("Spark says 'Processing new data'", 1, to_source=False)
    looks(watch, clock, 30)
    assert watch.silent() is None
    looks(watch, clock, 60)
    assert told
    assert watch.silent() is not None
