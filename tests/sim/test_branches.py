"""Worlds have every kind of part, and the lists in which kinds are kept are whole."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import islice
from typing import NoReturn
from unittest.mock import patch

import pytest

from penstock.inflight.live import LiveInputs, LiveRows
from penstock.testing.simulate import simulate
from penstock.testing.simulate.branches import BRANCHES, Branch, draw_branches
from penstock.testing.simulate.branches.meeting import Connected
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


@pytest.mark.parametrize("held", [False, True])
def test_live_rows_of_a_crowded_input_are_put_away_while_others_are_read(held: bool) -> None:
    """Behind older rows of their edge, or because their input is held back."""
    crowded = (seed for seed in range(600) if _crowded(seed) == held)
    assert any(_puts_away(seed) for seed in islice(crowded, 8))


@cache
def _crowded(seed: int) -> bool | None:
    """Whether an input is held back where live inputs are crowded; None where they are not."""
    branches = World(seed).shape.branches
    return next((branch.held_back for branch in branches if isinstance(branch, Connected) and branch.crowded), None)


def _puts_away(seed: int) -> bool:
    reads, left = LiveInputs.read_for, 0

    def read_for(self: LiveInputs, asking: LiveRows) -> bool:
        nonlocal left
        before = [rows.left_behind for rows in self._inputs.values()]
        read = reads(self, asking)
        left += [rows.left_behind for rows in self._inputs.values()] != before
        return read

    with patch.object(LiveInputs, "read_for", read_for):
        simulate(seed)
    return left > 0


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
