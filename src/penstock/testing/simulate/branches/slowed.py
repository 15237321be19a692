"""Slow operators without a key before a keyed one: no record overtakes one of its key of an earlier micro-batch."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.process.declare import value_state
from penstock.operators.process.process import KeyedProcess
from penstock.testing.simulate.arrivals import arrivals
from penstock.testing.simulate.branches.base import Branch, Fail, same
from penstock.testing.simulate.branches.order import in_order

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

NUMBERED = pa.schema({"id": pa.int64(), "key": pa.int64(), "n": pa.int64()})
RUN = 4
"""So many rows in a row are slow, then as many are not."""


@dataclass(frozen=True, slots=True)
class Slowed(Branch):
    """`stages` without a key, one behind the other."""

    kind: ClassVar[str] = "slowed"
    parts: ClassVar[tuple[str, ...]] = ("rows",)
    crowded: int = 4
    stages: int = 1
    cost: float = 0.3

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5, stages=rng.choice((1, 1, 2)), cost=rng.choice((0.3, 1.0, 2.0)))

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        cost_s = self.cost * world.epoch_s

        def slow(batch: pa.RecordBatch) -> pa.RecordBatch:
            world.scheduler.spend(cost_s * sum(number // RUN % 2 == 0 for number in batch.column("id").to_pylist()))
            return batch

        stream = streams[0].map_batches(slow, name=self.name("slow"))
        if self.stages == 2:
            stream = stream.union(stream.filter(lambda batch: [False] * batch.num_rows), name=self.name("union"))
            stream = stream.map_batches(slow, name=self.name("slow2"))
        return [self.write(world, stream.key_by("key").process(_numbering(), name=self.name("number")), "rows")]

    def check(self, world: World, fail: Fail) -> None:
        came, rows = arrivals(world, 0), self.rows(world, "rows")
        same("exactly once", (arrival.id for arrival in came), (row["id"] for row in rows), fail)
        counts = [(a.key, sum(b.key == a.key for b in came[: place + 1])) for place, a in enumerate(came)]
        same("state", counts, ((row["key"], row["n"]) for row in rows), fail)
        in_order(came, {row["id"]: row["n"] for row in rows}, fail)


def _numbering() -> KeyedProcess:
    class Numbering(KeyedProcess):
        output = NUMBERED
        n = value_state(pa.int64())

        def process(self, key: Any, rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            for row in rows:
                state.n = (state.n or 0) + 1
                out.emit(id=row["id"], key=key["key"], n=state.n)

    return Numbering()
