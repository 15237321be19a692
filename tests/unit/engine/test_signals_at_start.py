"""Ctrl-C and SIGTERM while `start` is at work: the parts that it has started end before it raises."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.engine.heldsignals import signals_held
from penstock.engine.sigterm import Terminated
from penstock.observe.events import Event, QueryStopped
from penstock.testing.inline import InlineFeed, InlineRun
from tests.support.engine_jobs import FakeClock, batches_of, keyed_slow


@pytest.fixture(autouse=True)
def as_a_program_begins() -> Iterator[None]:
    """Whoever runs the tests may ignore Ctrl-C."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, answer in before.items():
        signal.signal(number, answer)


@pytest.mark.parametrize(
    ("number", "raised", "by"),
    [(signal.SIGINT, KeyboardInterrupt, "Ctrl-C"), (signal.SIGTERM, Terminated, "SIGTERM")],
)
def test_a_signal_while_the_source_is_started_ends_the_query_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, raised: type[BaseException], by: str
) -> None:
    steps: list[str] = []
    events: list[Event] = []
    real_start, real_stop = InlineFeed.start, InlineFeed.stop

    def start(feed: InlineFeed, *arguments: Any) -> None:
        signal.raise_signal(number)
        real_start(feed, *arguments)
        steps.append("started")

    def stop(feed: InlineFeed) -> None:
        steps.append("stopped")
        real_stop(feed)

    monkeypatch.setattr(InlineFeed, "start", start)
    monkeypatch.setattr(InlineFeed, "stop", stop)
    clock = FakeClock()
    run = InlineRun(batches_of(10, 300), clock)
    with pytest.raises(raised):
        run.start(keyed_slow(clock, str(tmp_path)), checkpoint=tmp_path / "checkpoint", on_event=events.append)
    assert steps == ["started", "stopped"]
    assert [(event.reason, event.by) for event in events if isinstance(event, QueryStopped)] == [("stopped", by)]


def held(times: int, then: Callable[[], object]) -> None:
    """Presses Ctrl-C inside the block."""
    with signals_held():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        then()


def fail() -> None:
    raise ValueError("the source cannot be started")


def test_a_signal_is_answered_at_the_end_of_the_block() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held(1, lambda: done.append("the rest"))
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_is_answered_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        held(2, lambda: done.append("the rest"))
    assert done == []
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_signal_is_answered_also_where_the_block_fails() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        held(1, fail)
    assert isinstance(raised.value.__context__, ValueError)


def test_what_the_program_ignores_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with signals_held():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_holds_nothing() -> None:
    seen: list[object] = []

    def start() -> None:
        with signals_held():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
