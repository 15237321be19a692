"""A branch: a part of a simulated pipeline with tables of its own, and what they must hold.

What they must hold is worked out in plain Python from the records, by the operators' definitions: none of the
product's operators takes part in it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.testing.simulate.table import SimSink

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

Row = dict[str, Any]
Fail = Callable[[str, str], NoReturn]


@dataclass(frozen=True, slots=True)
class Branch:
    """One part; subclasses say what it looks like. `sources` is how many it reads."""

    kind: ClassVar[str]
    parts: ClassVar[tuple[str, ...]]
    """Its tables."""
    late: ClassVar[bool] = False
    """Whether it wants records that are late."""

    named: bool = True
    """Whether operators get names, or keep the ones that are made for them."""
    sources: int = 1
    crowded: int = 0
    """So many rows of a source at most it wants in a micro-batch, of few keys, and micro-batches that come while older
    ones are in flight; 0: it does not care."""

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5)

    def tables(self) -> tuple[str, ...]:
        return tuple(f"{self.kind}.{part}" for part in self.parts)

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        raise NotImplementedError

    def check(self, world: World, fail: Fail) -> None:
        raise NotImplementedError

    @property
    def letters(self) -> str | None:
        """The table for dead letters of which no side output is taken."""
        return None

    # -- for subclasses ------------------------------------------------------------------------------------------

    def name(self, name: str) -> str | None:
        return f"{self.kind}-{name}" if self.named else None

    def write(self, world: World, stream: Stream, part: str) -> Output:
        table = f"{self.kind}.{part}"
        return stream.write(SimSink(world.tables[table]), name=table if self.named else None)

    def rows(self, world: World, part: str) -> list[Row]:
        return world.tables[f"{self.kind}.{part}"].rows()


def same(kind: str, wanted: Iterable[Any], found: Iterable[Any], fail: Fail) -> None:
    """Compares two bags."""
    must, are = Counter(list(wanted)), Counter(list(found))
    if must != are:
        missing, extra = sorted((must - are).elements(), key=str)[:5], sorted((are - must).elements(), key=str)[:5]
        fail(kind, f"missing {missing}, too many {extra} ({are.total()} of {must.total()})")
