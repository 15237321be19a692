"""A fresh table for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import SCHEMA


@pytest.fixture
def sink(tmp_path: Path) -> Paimon:
    made = Paimon(str(tmp_path / "lake"), "shop.words")
    made.check(SCHEMA)
    return made
