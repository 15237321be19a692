"""When a streaming query is stopped, without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from unittest import mock

import pytest

from penstock.spark import feed


class StreamingQuery:
    """Plans as long as it is told to, and notes whether its handler was waiting when it was stopped."""

    def __init__(self, planning: Iterator[bool]) -> None:
        self._planning = planning
        self.reading = feed._Reading(cast("Any", self), mock.Mock())
        self.stopped_while_parked: bool | None = None

    @property
    def status(self) -> dict[str, bool]:
        return {"isTriggerActive": next(self._planning)}

    def stop(self) -> None:
        self.stopped_while_parked = self.reading.parked.is_set()


def test_a_query_without_input_is_stopped_at_once() -> None:
    query = StreamingQuery(iter([False]))
    feed._stop(query.reading)
    assert query.stopped_while_parked is False
    assert query.reading.stopping.is_set()


def test_a_query_that_plans_a_micro_batch_is_stopped_once_its_handler_has_it() -> None:
    def planning() -> Iterator[bool]:
        yield True
        yield True
        query.reading.parked.set()
        yield True

    query = StreamingQuery(planning())
    feed._stop(query.reading)
    assert query.stopped_while_parked is True


def test_a_query_that_plans_for_too_long_is_stopped_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "PLANNING_S_MAX", 0.05)
    query = StreamingQuery(iter(lambda: True, False))
    feed._stop(query.reading)
    assert query.stopped_while_parked is False
