"""The best rows of each key, and the first ones."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.testing.simulate.arrivals import Arrival, arrivals
from penstock.testing.simulate.branches.base import Branch, Fail, same

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World


@dataclass(frozen=True, slots=True)
class Ranks(Branch):
    """Both may read what a `map` made, which is then one stage more."""

    kind: ClassVar[str] = "ranks"
    parts: ClassVar[tuple[str, ...]] = ("best", "first")

    n: int = 2
    ascending: bool = False
    first: bool = True
    mapped: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(
            named=rng.random() < 0.5,
            n=rng.choice((1, 2, 5)),
            ascending=rng.random() < 0.5,
            first=rng.random() < 0.5,
            mapped=rng.random() < 0.3,
        )

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        keyed = (streams[0].map_batches(lambda batch: batch) if self.mapped else streams[0]).key_by("key")
        best = keyed.top_n(self.n, by="ts", ascending=self.ascending, name=self.name("best"))
        written = [self.write(world, best, "best")]
        if self.first:
            written.append(self.write(world, keyed.deduplicate(name=self.name("first")), "first"))
        return written

    def check(self, world: World, fail: Fail) -> None:
        by_key: dict[int, list[Arrival]] = defaultdict(list)
        for arrival in arrivals(world, 0):
            by_key[arrival.key].append(arrival)
        wanted = [
            (key, rank, arrival.id)
            for key, mine in by_key.items()
            for rank, arrival in enumerate(sorted(mine, key=lambda a: a.time, reverse=not self.ascending)[: self.n], 1)
        ]
        newest = {(row["key"], row["rank"]): row["id"] for row in self.rows(world, "best")}
        same("ranks", wanted, ((*place, number) for place, number in newest.items()), fail)
        if self.first:
            self._check_first(world, by_key, fail)

    def _check_first(self, world: World, by_key: dict[int, list[Arrival]], fail: Fail) -> None:
        rows = self.rows(world, "first")
        same("exactly once", by_key, (row["key"] for row in rows), fail)
        for row in rows:
            if row["id"] not in firsts(by_key[row["key"]]):
                fail("order", f"key {row['key']}: {row['id']} is held to be the first")


def firsts(mine: list[Arrival]) -> set[int]:
    """Ids that may be the first of a key: which partition of a micro-batch comes first is not promised."""
    seen: dict[tuple[int, int], int] = {}
    for arrival in mine:
        if arrival.batch == mine[0].batch:
            seen.setdefault((arrival.source, arrival.partition), arrival.id)
    return set(seen.values())
