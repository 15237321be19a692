"""Whole runs under faults, from seeds: a fixed set, and fresh ones each time.

What the simulator found in the product is kept as a mutant that brings the fault back (`overtaken-start`,
`takeover-name-freed`, `unread-forgotten`, `stale-answer`): seeds mean other runs when it is extended.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest

from penstock.testing.simulate import simulate
from tests.sim.mutants import named
from tests.sim.noticing import by_seeds

FIXED = range(16)
FRESH = int(os.environ.get("PENSTOCK_SIM_FRESH", "12"))


@pytest.mark.parametrize("seed", FIXED)
def test_fixed_seeds_pass(seed: int) -> None:
    """A7, A8, B7, B13, C5, C9."""
    outcome = simulate(seed)
    assert outcome.failure is None, outcome.text()


def test_fresh_seeds_pass() -> None:
    """A7, A8, A10, B2, B7, B9, B13, C4, C5, C9: seeds are printed, each replays exactly."""
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds {first}..{first + FRESH - 1}")
    for seed in range(first, first + FRESH):
        outcome = simulate(seed)
        assert outcome.failure is None, outcome.text()


def test_a_seed_replays_exactly() -> None:
    """Also in another process, where Python hashes strings differently."""
    here = [simulate(seed).trace_hash for seed in (1, 2, 1, 2)]
    assert here[:2] == here[2:]
    code = "from penstock.testing.simulate import simulate; print(*(simulate(seed).trace_hash for seed in (1, 2)))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert there.stdout.split() == here[:2]


def test_a_failure_says_what_happened_and_how_to_see_it_again() -> None:
    mutant = named("older-state-wins")
    seed = by_seeds(mutant, range(40)).by
    assert seed is not None
    with mutant.applied():
        text = simulate(int(seed)).text()
    assert f"seed {seed}: FAILED state: " in text
    assert f"--seed {seed} --trace" in text
    assert "create manifests/" in text
