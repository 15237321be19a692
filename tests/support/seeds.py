"""Seeds that are drawn anew each time. The name of a test does not depend on them, so that processes agree on it."""

from __future__ import annotations

import random

import pytest

FRESH = pytest.param(None, id="fresh")


def drawn(seed: int | None) -> int:
    """The seed itself, or for `FRESH` a new one, which is printed so that a failure can be repeated."""
    if seed is None:
        seed = random.SystemRandom().randrange(10**9)
        print(f"seed {seed}")
    return seed
