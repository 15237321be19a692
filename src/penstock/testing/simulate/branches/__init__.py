"""Parts of simulated pipelines, each with an expectation of its own; a world has up to two of them."""

from __future__ import annotations

import random

from penstock.testing.simulate.branches.base import Branch
from penstock.testing.simulate.branches.calls import Calls
from penstock.testing.simulate.branches.graphs import Graph
from penstock.testing.simulate.branches.letters import Letters
from penstock.testing.simulate.branches.meeting import Connected, Gathered, SelfJoin
from penstock.testing.simulate.branches.ranks import Ranks
from penstock.testing.simulate.branches.slowed import Slowed
from penstock.testing.simulate.branches.timers import EventTimers, ProcessingTimers
from penstock.testing.simulate.branches.windows import Windows

__all__ = ["BRANCHES", "Branch", "draw_branches"]

# Some are worth more seeds than others.
BRANCHES: tuple[type[Branch], ...] = (
    Windows,
    EventTimers,
    ProcessingTimers,
    Calls,
    Letters,
    Ranks,
    Graph,
    Graph,
    Connected,
    Connected,
    Connected,
    SelfJoin,
    Gathered,
    Slowed,
    Slowed,
    Slowed,
)
_CHANCE = (0.5, 0.4, 0.1)
"""Of worlds: none, one, two."""


def draw_branches(rng: random.Random) -> tuple[Branch, ...]:
    count = rng.choices((0, 1, 2), _CHANCE)[0]
    kinds = list(dict.fromkeys(rng.sample(BRANCHES, count)))
    late = any(kind.late for kind in kinds)
    # Of two that want different records the first decides.
    return tuple(kind.draw(rng) for kind in kinds if not late or kind.late or kind in _ANY_TIME)


_ANY_TIME = {Letters, Ranks, Graph, Connected, Gathered, ProcessingTimers, Slowed}
"""Those that do not care about late records."""
