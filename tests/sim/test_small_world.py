"""All interleavings of two drivers, with a crash at each step: nothing is lost, nothing is doubled, one goes on."""

from __future__ import annotations

import pytest

from tests.sim.small_world import Driver, Rules, World, explore, wrong


def ends(rules: Rules, drivers: int = 2) -> tuple[int, list[str]]:
    """How many ends there are, and what is wrong with some of them."""
    count, found = 0, []
    for world in explore(World((Driver(),) * drivers), rules):
        count += 1
        if (problem := wrong(world, rules)) is not None:
            found.append(problem)
    return count, found


def test_two_drivers_in_every_order_lose_and_double_nothing() -> None:
    """C4, C6, C9."""
    count, found = ends(Rules())
    assert found == []
    assert count > 10


@pytest.mark.parametrize(
    "rules",
    [
        Rules(batches=2, keep_takeovers=False),
        Rules(batches=2, verify_takeover=False),
        Rules(batches=2, ask_before_commit=False),
        Rules(batches=2, exclusive_publish=False),
    ],
)
def test_without_one_of_the_rules_something_goes_wrong(rules: Rules) -> None:
    """The exploration can fail: each rule is there for a reason."""
    assert ends(rules)[1] != []
