"""A few runs of chaos and a minute of soak; `make chaos` and `make soak` do a hundred, and half an hour."""

from __future__ import annotations

import sys

import pytest

from tests.chaos import __main__ as chaos
from tests.chaos import soak

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc as Linux has it"),
]


def test_faults_at_random_moments_lose_and_double_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """B1, B2, B12, C4, C9, C11: workers, executors and drivers killed, drivers paused, bytes damaged, disks full."""
    assert chaos.main(["--runs", "3", "--first", "1"]) == 0, capfd.readouterr().out


def test_nothing_grows_under_steady_load_with_faults(capfd: pytest.CaptureFixture[str]) -> None:
    """B11, B13: memory, files, threads, disk and time of an epoch."""
    assert soak.main(["--minutes", "1.5", "--seed", "1"]) == 0, capfd.readouterr().out
