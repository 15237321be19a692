"""What Structured Streaming tells about itself: a question without an answer is not the same as no new rows."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from penstock.protocol.silence import SourceState
from penstock.spark.feed import SparkFeed, _Reading
from penstock.spark.quirks.sourcestatus import INITIALIZING, state_of


def status(message: str, *, trigger: bool) -> Any:
    """As the JVM has it."""
    return mock.Mock(**{"message.return_value": message, "isTriggerActive.return_value": trigger})


def seen(status: Any, *, active: bool = True) -> SourceState | None:
    query = mock.Mock(isActive=active, **{"_jsq.status.return_value": status})
    context = mock.Mock()
    context._jvm.java.lang.System.identityHashCode = id
    return state_of(query, context)


def test_a_trigger_that_asks_for_offsets_is_a_question_in_spark_s_words() -> None:
    state = seen(status("Getting offsets from FileStreamSource[file:/in]", trigger=True))
    assert state is not None
    assert state.question == "Spark says 'Getting offsets from FileStreamSource[file:/in]'"


def test_sources_that_are_opened_are_a_question_though_no_trigger_is_active() -> None:
    state = seen(status(INITIALIZING, trigger=False))
    assert state is not None
    assert state.question is not None


@pytest.mark.parametrize("message", ["Waiting for data to arrive", "Waiting for next trigger"])
def test_a_query_that_waits_for_data_asks_nothing(message: str) -> None:
    assert seen(status(message, trigger=False)) == SourceState(None)


def test_a_query_that_has_ended_tells_nothing() -> None:
    assert seen(status("Stopped", trigger=False), active=False) is None


def test_a_status_of_its_own_is_another_question_in_the_same_words() -> None:
    one, other = (status("Getting offsets from files", trigger=True) for _ in range(2))
    assert seen(one) == seen(one)
    assert seen(one) != seen(other)


def test_secrets_in_spark_s_words_are_hidden() -> None:
    state = seen(status("Getting offsets from s3a://me:pass@bucket/in", trigger=True))
    assert state is not None
    assert "pass" not in (state.question or "")


def test_while_the_handler_has_a_micro_batch_nothing_is_asked() -> None:
    feed = SparkFeed.__new__(SparkFeed)
    feed._context = mock.MagicMock()
    query = mock.Mock(isActive=True, **{"_jsq.status.return_value": status("Processing new data", trigger=True)})
    feed._reading = reading = _Reading(query, mock.Mock(), mock.Mock(), mock.Mock())
    asked = feed.state()
    assert asked is not None
    assert asked.question is not None
    reading.in_hand.set()
    assert feed.state() == SourceState(None)
