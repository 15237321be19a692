"""A small part of the seeded fault runs (see `commit_faults`): a fixed set, and fresh seeds that are printed."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from tests.sinks.commit_faults import run_memory, run_paimon


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "pypaimon")


def test_drivers_that_crash_hang_and_race_commit_each_row_once() -> None:
    """C3, C4, C5, C8, C9: on tables in memory."""
    fresh = random.randrange(10**9)
    print(f"fresh seeds: {fresh} to {fresh + 19}")
    for seed in (*range(40), *range(fresh, fresh + 20)):
        run_memory(seed)


@pytest.mark.parametrize("seed", [3, 11, random.randrange(10**9)])
def test_drivers_that_crash_hang_and_race_commit_each_row_once_to_paimon(seed: int, tmp_path: Path) -> None:
    """C3, C4, C5, C8, C9: on real tables, with faults right before and after a snapshot becomes visible."""
    run_paimon(seed, tmp_path)


def test_a_seed_always_gives_the_same_world() -> None:
    assert run_memory(17).events == run_memory(17).events
