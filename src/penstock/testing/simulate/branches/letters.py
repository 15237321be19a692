"""Records that make user code fail, and side outputs: each record ends in one table, once."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import pyarrow as pa

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.process.declare import value_state
from penstock.operators.process.process import KeyedProcess
from penstock.testing.simulate.arrivals import arrivals
from penstock.testing.simulate.branches.base import Branch, Fail, same

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

POISON = 5
ASIDE = 3
COUNTED = pa.schema({"id": pa.int64(), "key": pa.int64(), "n": pa.int64()})
How = Literal["process", "flat_map", "map_batches"]
_ID = re.compile(r"\bid\W+(\d+)")


@dataclass(frozen=True, slots=True)
class Letters(Branch):
    """`how` the operator is written; `taken`: dead letters are a side output, not the query's table for them."""

    kind: ClassVar[str] = "letters"
    parts: ClassVar[tuple[str, ...]] = ("good", "aside", "bad")

    how: How = "process"
    taken: bool = True
    cost: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        ways: tuple[How, ...] = ("process", "flat_map", "map_batches")
        how = rng.choice(ways)
        return cls(named=rng.random() < 0.5, how=how, taken=rng.random() < 0.5, cost=rng.choice((0.0, 0.1)))

    @property
    def letters(self) -> str | None:
        return None if self.taken else f"{self.kind}.bad"

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        cost_s, name = self.cost * world.epoch_s, self.name(self.how)
        if self.how == "process":
            good = streams[0].key_by("key").process(_counting(world, cost_s), name=name, on_error="dead_letter")
            written = [self.write(world, good.side("aside"), "aside")]
        elif self.how == "flat_map":
            good = streams[0].flat_map(_twice(world, cost_s), name=name, on_error="dead_letter")
            written = []
        else:
            good = streams[0].map_batches(_whole(world, cost_s), name=name, on_error="dead_letter")
            written = []
        if self.taken:
            written.append(self.write(world, good.side("dead_letters"), "bad"))
        return [*written, self.write(world, good, "good")]

    def check(self, world: World, fail: Fail) -> None:
        came = arrivals(world, 0)
        bad = [_ID.search(row["record"]) for row in self.rows(world, "bad")]
        same(
            "dead letters",
            (arrival.id for arrival in came if arrival.id % POISON == 0),
            (int(found[1]) for found in bad if found),
            fail,
        )
        fine = [arrival for arrival in came if arrival.id % POISON]
        rows = self.rows(world, "good")
        if self.how != "process":
            times = 2 if self.how == "flat_map" else 1
            same("exactly once", (a.id for a in fine for _ in range(times)), (row["id"] for row in rows), fail)
            return
        aside = [arrival.id for arrival in fine if arrival.id % ASIDE == 0]
        same("side output", aside, (row["id"] for row in self.rows(world, "aside")), fail)
        kept = [arrival for arrival in fine if arrival.id % ASIDE]
        same("exactly once", (arrival.id for arrival in kept), (row["id"] for row in rows), fail)
        wanted = [(key, n + 1) for key in {a.key for a in kept} for n in range(sum(a.key == key for a in kept))]
        same("state", wanted, ((row["key"], row["n"]) for row in rows), fail)


def _poisoned(number: int) -> None:
    if number % POISON == 0:
        raise ValueError(f"poison {number}")


def _counting(world: World, cost_s: float) -> KeyedProcess:
    class Counting(KeyedProcess):
        output = COUNTED
        sides: ClassVar[dict[str, Any]] = {"aside": COUNTED}
        n = value_state(pa.int64())

        def process(self, key: Any, rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            for row in rows:
                world.scheduler.spend(cost_s)
                _poisoned(row["id"])
                if row["id"] % ASIDE == 0:
                    out.side("aside").emit(id=row["id"], key=key["key"], n=0)
                else:
                    state.n = (state.n or 0) + 1
                    out.emit(id=row["id"], key=key["key"], n=state.n)

    return Counting()


def _twice(world: World, cost_s: float) -> Any:
    def twice(row: dict[str, Any]) -> list[dict[str, Any]]:
        world.scheduler.spend(cost_s)
        _poisoned(row["id"])
        return [row, row]

    return twice


def _whole(world: World, cost_s: float) -> Any:
    def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
        world.scheduler.spend(batch.num_rows * cost_s)
        for number in batch.column("id").to_pylist():
            _poisoned(number)
        return batch

    return whole
