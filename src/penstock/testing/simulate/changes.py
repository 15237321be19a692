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

MORE = 50
"""Programs that may be started while one of them starts."""


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
    staged: bool = False
    """A stage with the same key is in front of the first keyed operator."""
    fields: int = 0
    """The number of this program, whose first keyed operator has a field of state that no other one has; 0: no such
    field."""
    drawn: int = 0
    """How many programs there were, this one included."""

    @classmethod
    def draw(cls, rng: random.Random, number: int) -> Variant:
        front, fused, behind = rng.random() < 0.5, rng.random() < 0.5, rng.random() < 0.5
        first = rng.choice(FIRST)
        fields = number if rng.random() < 0.5 else 0
        return cls(front, fused, behind, first, rng.random() < 0.3, fields, number)

    @property
    def field(self) -> str | None:
        """What this program stores and no other one."""
        return field_of(self.fields) if self.fields else None

    def options(self) -> Options:
        """What a user has to say for a start of this program, whatever ran before."""
        (other,) = set(FIRST) - {self.first}
        # Drivers that run at once may be newer than this one.
        others = [number for number in range(1, self.drawn + MORE) if number != self.fields]
        return {
            "renamed": {other: self.first},
            "forget": [f"{self.first}.{field_of(number)}" for number in others],
        }


def field_of(number: int) -> str:
    """A forgotten field stays in files for a while, so no other program may have one of that name."""
    return f"field_{number}"
