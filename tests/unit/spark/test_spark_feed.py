"""The feed's own part of stopping a streaming query, without Spark."""

from __future__ import annotations

from typing import Any
from unittest import mock

from penstock.spark import feed


def test_a_handler_that_waits_hears_of_the_stop_before_the_query_does() -> None:
    query: Any = mock.Mock(status={"isTriggerActive": False})
    reading = feed._Reading(query, mock.Mock(), mock.Mock(), mock.Mock())
    query.stop.side_effect = lambda: told.append(reading.stopping.is_set())
    told: list[bool] = []
    feed._stop(reading)
    assert told == [True]
