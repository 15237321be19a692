"""Fixtures of the tests without Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from tests.unit.engine_jobs import FakeClock

tables = (f"table-{n}" for n in itertools.count())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table() -> str:
    return next(tables)


@pytest.fixture(autouse=True)
def _no_thread_left_behind() -> Iterator[None]:
    yield
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("penstock") and thread.is_alive()]
    left = [name for name in left if name != "penstock-async"]  # the event loop lives as long as its process
    assert left == []
