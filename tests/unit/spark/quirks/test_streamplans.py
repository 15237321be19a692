"""A plan that cannot be changed is told once, with what is not as expected. The rest needs Spark."""

from __future__ import annotations

import logging
import threading
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from penstock.spark.quirks import streamplans
from penstock.spark.quirks.streamplans import change_partitions

NO_FIELD = """An error occurred while calling o12.getDeclaredField.
: java.lang.NoSuchFieldException: logicalPlan
\tat java.base/java.lang.Class.getDeclaredField(Class.java:2610)"""


@pytest.fixture(autouse=True)
def _nothing_told_yet(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(streamplans, "warned", threading.Event())
    caplog.set_level(logging.WARNING, "penstock.spark")


def changed(error: Exception, *, stopped: bool = False) -> bool:
    query: Any = mock.Mock()
    query._jsq.streamingQuery().getClass().getDeclaredField.side_effect = error
    session: Any = mock.Mock()
    session.sparkContext._jsc.sc().isStopped.return_value = stopped
    return change_partitions(query, session, old=2, new=8)


def test_what_spark_has_changed_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    assert not changed(Py4JError(NO_FIELD))
    (told,) = caplog.records
    assert told.levelno == logging.WARNING
    assert told.getMessage().startswith("a rescale starts the streaming query anew from now on")
    assert told.getMessage().endswith("as expected: java.lang.NoSuchFieldException: logicalPlan")
    assert not changed(Py4JError(NO_FIELD))
    assert not changed(Py4JError("Method logicalPlan([]) does not exist"))
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (Py4JNetworkError("Answer from Java side is empty"), False),
        (ConnectionResetError(), False),
        (Py4JError("x"), True),
    ],
    ids=["no JVM", "no connection", "a stopped session"],
)
def test_nothing_is_told_where_spark_is_gone(
    caplog: pytest.LogCaptureFixture, error: Exception, *, stopped: bool
) -> None:
    assert not changed(error, stopped=stopped)
    assert caplog.records == []
    assert not changed(Py4JError(NO_FIELD))
    assert len(caplog.records) == 1
