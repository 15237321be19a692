"""When a streaming query is stopped, without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from penstock.spark.quirks import quietstop


class StreamingQuery:
    """Plans as long as it is told to, and notes whether its handler was waiting when it was stopped."""

    def __init__(self, planning: Iterator[bool]) -> None:
        self._planning = planning
        self.parked = threading.Event()
        self.stopped_while_parked: bool | None = None

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": next(self._planning)}

    def stop(self) -> None:
        self.stopped_while_parked = self.parked.is_set()


def stop(query: StreamingQuery) -> None:
    quietstop.stop_quietly(cast("Any", query), query.parked)


def test_a_query_without_input_is_stopped_at_once() -> None:
    query = StreamingQuery(iter([False]))
    stop(query)
    assert query.stopped_while_parked is False


def test_a_query_that_plans_a_micro_batch_is_stopped_once_its_handler_has_it() -> None:
    def planning() -> Iterator[bool]:
        yield True
        yield True
        query.parked.set()
        yield True

    query = StreamingQuery(planning())
    stop(query)
    assert query.stopped_while_parked is True


def test_a_query_that_plans_for_too_long_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quietstop, "PLANNING_S_MAX", 0.05)
    query = StreamingQuery(iter(lambda: True, False))
    stop(query)
    assert query.stopped_while_parked is False
