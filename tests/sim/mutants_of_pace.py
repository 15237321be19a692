"""Faults in how epochs are paced. Each is noticed by the tests of the decision that it breaks."""

from __future__ import annotations

import dataclasses
from typing import Any

from penstock import slices
from penstock.engine import pace
from penstock.protocol import epoch
from tests.sim import faulty
from tests.sim.mutant import Anywhere, Mutant

PACE = ("tests/unit/protocol/test_pace.py",)
SLICES = ("tests/unit/subtask/test_slicer.py",)
DECISIONS = ("tests/unit/protocol/test_decisions.py",)


def part(name: str, what: str, tests: tuple[str, ...], *patches: tuple[Any, str, faulty.Make]) -> Mutant:
    return Mutant(name, what, patches, tests)


MUTANTS_OF_PACE = (
    part(
        "no-floor",
        "an epoch is never longer than asked for, whatever it needs besides processing",
        PACE,
        (Anywhere(epoch), "cadence", lambda _: lambda asked_s, fixed_s: epoch.Cadence(asked_s, asked_s)),
    ),
    part(
        "slow-epoch-believed",
        "a single slow epoch makes the next ones long",
        PACE,
        (pace.Pace, "ended", lambda _: lambda self, fixed_s, live: self.fixed_s.update({live: [fixed_s] * 3})),
    ),
    part(
        "backlog-ignored",
        "a micro-batch is taken however long what is in flight takes",
        DECISIONS,
        (
            Anywhere(epoch),
            "decide",
            lambda original: lambda facts: original(dataclasses.replace(facts, max_backlog_s=None)),
        ),
    ),
    part(
        "slow-step-believed",
        "a single slow step says what rows cost",
        SLICES,
        (
            slices.Slicer,
            "observe",
            lambda original: lambda self, rows, elapsed_s, **_: original(self, rows, elapsed_s),
        ),
    ),
)
