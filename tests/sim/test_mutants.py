"""Faults in our own code are noticed; `make mutants` runs all of them."""

from __future__ import annotations

import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.inflight.live import LiveRows
from tests.sim.faulty import Make
from tests.sim.mutant import Mutant
from tests.sim.mutants import ALL
from tests.sim.noticing import ROOT, by_seeds

CHILDREN = """
import os, threading
from tests.sim.forked import in_children

def work(item):
    match item:
        case "raises":
            return 1 / 0
        case "dies":
            os._exit(3)
        case "hangs":
            threading.Event().wait()
    return item

for done in in_children(work, ["answers", "raises", "dies", "hangs"], jobs=2, limit_s=1):
    print(f"{done.item}: {(done.answer or done.why)!r}")
"""


@pytest.mark.timeout(900)
def test_a_random_third_of_the_mutants_is_noticed() -> None:
    """Drawn anew each time, so that all of them have their turn."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"again: make mutants ARGS='--third {seed}'")
    command = [sys.executable, "-m", "tests.sim.hunting", "--third", str(seed)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(run.stdout, run.stderr)
    assert run.returncode == 0, "\n".join(line for line in run.stdout.splitlines() if "NOT CAUGHT" in line)
    assert f"{len(ALL) // 3} of {len(ALL) // 3} mutants caught" in run.stdout


def test_there_are_enough_mutants_and_each_says_what_it_breaks() -> None:
    assert len(ALL) >= 80
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    assert all(mutant.what for mutant in ALL)


def test_a_mutant_that_is_never_called_is_told_apart_from_one_that_survives() -> None:
    unused = SimpleNamespace(function=lambda: None)
    assert _hunted((unused, "function", lambda _: lambda: None)) == "NEVER CALLED"
    survived = _hunted((LiveRows, "spill", lambda original: original))
    assert survived.startswith("SURVIVED")


def test_a_mutant_that_does_not_fit_what_it_replaces_is_not_caught_by_its_own_error() -> None:
    assert _hunted((LiveRows, "spill", lambda _: lambda self, more: more)).startswith("MISFIT")
    assert _hunted((LiveRows, "spill", lambda _: lambda self: self.no_such_name())).startswith("MISFIT")


def _hunted(patch: tuple[Any, str, Make]) -> str:
    caught = by_seeds(Mutant("mutant", "for a test", (patch,)), range(2))
    assert caught.by is None
    return caught.message


def test_a_child_that_raises_dies_or_hangs_is_told_and_does_not_stop_the_others() -> None:
    """In a process of its own: this one has threads."""
    run = subprocess.run([sys.executable, "-c", CHILDREN], cwd=ROOT, capture_output=True, text=True, check=True)
    told = dict(line.split(": ", 1) for line in run.stdout.splitlines())
    assert told["answers"] == "'answers'"
    assert "ZeroDivisionError" in told["raises"]
    assert "the process died" in told["dies"]
    assert "not at its end after 1 s" in told["hangs"]
