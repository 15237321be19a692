"""Simulated faults are many, and each would be a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("penstock")
    level = log.level
    log.setLevel(logging.ERROR)
    yield
    log.setLevel(level)
