"""Fixtures of the tests without Spark."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from tests.support.engine_jobs import FakeClock
from tests.support.leftovers import FAILED, stop_leftovers

tables = (f"table-{n}" for n in itertools.count())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table() -> str:
    return next(tables)


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only what this test began counts: what another test left is that test's failure, not everybody's."""
    before = set(threading.enumerate())
    yield
    left = [f"query {name}" for name in stop_leftovers()]
    # The event loop lives as long as its process.
    names = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    left += [name for name in names if name.startswith("penstock") and name != "penstock-async"]
    assert left == [] or request.node.stash.get(FAILED, False)
