"""Programs that change between starts: the same results by other operators, stages and names.

Each start draws one, also of two drivers that run at once, and one that goes back to an older checkpoint. What each
record must become does not depend on it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from penstock.engine.options import Options

FIRST = ("first", "primary")
"""Names of the operator that numbers the records of a key."""


@dataclass(frozen=True, slots=True)
class Variant:
    """How a program differs from others with the same results."""

    front: bool = False
    """Another operator is in front of the first keyed one."""
    fused: bool = False
    """And one more behind that, in the same stage."""
    behind: bool = False
    """Another operator is behind the first keyed one."""
    first: str = FIRST[0]

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5, rng.choice(FIRST))

    def options(self) -> Options:
        """What a user has to say for a start of this program, whatever ran before."""
        (other,) = set(FIRST) - {self.first}
        return {"renamed": {other: self.first}}
