"""Thousands of subtasks under faults: every record once, in order, and no file too many (H1)."""

from __future__ import annotations

from unittest.mock import patch

import msgspec
import pytest

from penstock.protocol import advance
from penstock.testing.simulate.crowd import world
from penstock.testing.simulate.crowd.world import Crowd
from penstock.testing.simulate.fibers import CheckFailed


@pytest.mark.parametrize("seed", range(4))
def test_a_crowd_of_subtasks_under_faults_is_exact(seed: int) -> None:
    tally = Crowd(seed, subtasks=96, max_parallelism=256, epochs=40).run()
    assert tally.epochs >= 40
    assert tally.drivers > 3, "faults were drawn"


@pytest.mark.slow
def test_ten_thousand_subtasks_run_fifty_epochs_with_faults() -> None:
    tally = Crowd(1, subtasks=10_240, max_parallelism=32_768, epochs=50).run()
    assert tally.epochs >= 50


def test_state_that_is_lost_is_noticed() -> None:
    """A file that one subtask has superseded in its key groups is dropped for all of them."""
    lost = patch.object(advance, "_without", lambda file, _: msgspec.structs.replace(file, ranges=()))
    with lost, pytest.raises(CheckFailed):
        Crowd(0, subtasks=24, max_parallelism=64, epochs=40).run()


def test_a_driver_that_gets_nowhere_is_noticed() -> None:
    with patch.object(world, "STEPS_PER_EPOCH_MAX", 0), pytest.raises(CheckFailed, match="liveness"):
        Crowd(0, subtasks=4, max_parallelism=8, epochs=5).run()
