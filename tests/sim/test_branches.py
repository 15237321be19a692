"""Worlds have every kind of part, and the lists in which kinds are kept are whole."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import NoReturn

import pytest

from penstock.testing.simulate import simulate
from penstock.testing.simulate.branches import BRANCHES, Branch, draw_branches
from penstock.testing.simulate.fibers import CheckFailed
from penstock.testing.simulate.world import World


def test_every_kind_of_branch_is_drawn_and_has_a_name_of_its_own() -> None:
    kinds = {kind.kind for kind in BRANCHES}
    drawn = Counter(branch.kind for seed in range(2_000) for branch in draw_branches(random.Random(seed)))
    assert drawn.keys() == kinds
    assert len(kinds) == len(set(BRANCHES))
    assert min(drawn.values()) >= 20


@pytest.mark.parametrize("kind", sorted({kind.kind for kind in BRANCHES}))
def test_a_world_with_each_kind_of_branch_passes(kind: str) -> None:
    """Records exactly once, in order, windows and timers right, whatever goes wrong around them."""
    seed = _seeds_with(kind)[0]
    outcome = simulate(seed)
    assert outcome.failure is None, outcome.text()


@pytest.mark.parametrize("kind", sorted(set(BRANCHES), key=lambda kind: kind.kind))
def test_an_expectation_notices_a_row_that_is_missing_and_one_that_is_doubled(kind: type[Branch]) -> None:
    """The checkers themselves: they would not notice anything if they compared nothing."""
    for change in (_without_last, _with_last_twice):
        assert any(_notices(seed, kind, change) for seed in _seeds_with(kind.kind))


def _seeds_with(kind: str) -> list[int]:
    return [seed for seed in range(600) if kind in _kinds_in(seed)][:4]


@cache
def _kinds_in(seed: int) -> frozenset[str]:
    return frozenset(branch.kind for branch in World(seed).shape.branches)


def _without_last(listed: tuple[int, ...]) -> tuple[int, ...]:
    return listed[:-1]


def _with_last_twice(listed: tuple[int, ...]) -> tuple[int, ...]:
    return (*listed, *listed[-1:])


def _notices(seed: int, kind: type[Branch], change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> bool:
    """Whether the check of a branch fails when a file of one of its tables is lost, or there twice."""
    world = World(seed)
    world.run()
    branch = next(branch for branch in world.shape.branches if branch.kind == kind.kind)

    def fail(checker: str, message: str) -> NoReturn:
        raise CheckFailed(f"{checker}: {message}")

    for name in branch.tables():
        table = world.tables[name]
        if not table.listed or not table.files[table.listed[-1]]:
            continue
        newest = table.history[-1]
        table.history[-1] = type(newest)(newest.id, newest.user, newest.checkpoint, change(newest.listed))
        try:
            branch.check(world, fail)
        except CheckFailed:
            return True
        table.history[-1] = newest
    return False
