"""The simulator with programs that change between starts: added, removed and renamed operators, with every fault."""

from __future__ import annotations

import pytest

from penstock.testing.simulate.runner import simulate


@pytest.mark.parametrize("seed", range(60))
def test_programs_that_change_between_starts_lose_double_and_disorder_nothing(seed: int) -> None:
    """F1, F5."""
    outcome = simulate(seed, changes=True)
    assert outcome.failure is None, outcome.text()


def test_the_same_seed_changes_in_the_same_way() -> None:
    assert simulate(7, changes=True).trace_hash == simulate(7, changes=True).trace_hash
