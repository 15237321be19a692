"""Several sources, or one source several times, in one stage: connected by key, with inputs held back, or joined."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.process.connect import ConnectProcess
from penstock.operators.process.declare import map_state, value_state
from penstock.testing.simulate.arrivals import Arrival, arrivals
from penstock.testing.simulate.branches.base import Branch, Fail, Row, same
from penstock.testing.simulate.branches.order import in_order

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

S = 1_000_000
CROWDED = 0.7
"""Of connected sources: live rows of the last input come while older ones wait, and others are read meanwhile, so that
some have to be put away."""
CROWD, RUN = 12, 4
"""Then micro-batches are so large, and of the last input so many rows in a row are slow, then as many are not: what was
cut off is caught up with soon after."""
SEEN = pa.schema(
    {
        "id": pa.int64(),
        "key": pa.int64(),
        "port": pa.string(),
        "n": pa.int64(),
        "others": pa.int64(),
        "pad": pa.string(),
    }
)


@dataclass(frozen=True, slots=True)
class Connected(Branch):
    """`inputs` are sources, one of them maybe twice; the last one may be held back."""

    kind: ClassVar[str] = "connected"
    parts: ClassVar[tuple[str, ...]] = ("rows",)

    inputs: tuple[int, ...] = (0, 1)
    held_back: bool = False
    cost: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        inputs = rng.choice(((0, 1), (0, 1), (0, 0), (0, 1, 2), (0, 1, 0)))
        crowded = CROWD if rng.random() < CROWDED else 0
        return cls(
            named=rng.random() < 0.5,
            sources=max(inputs) + 1,
            crowded=crowded,
            inputs=inputs,
            held_back=rng.random() < 0.5,
            cost=rng.choice((0.0, 0.2, 0.5, 1.0) if crowded else (0.0, 0.05, 0.2)),
        )

    @property
    def ports(self) -> tuple[str, ...]:
        return tuple(f"port{number}" for number in range(len(self.inputs)))

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        first, *others = (streams[source].key_by("key") for source in self.inputs)
        rows = first.connect(
            *others,
            process=_numbering(world, self.ports, self.cost * world.epoch_s, crowded=self.crowded > 0),
            name=self.name("connect"),
            hold_back=self.ports[-1:] if self.held_back else (),
        )
        return [self.write(world, rows, "rows")]

    def check(self, world: World, fail: Fail) -> None:
        came = {port: arrivals(world, source) for port, source in zip(self.ports, self.inputs, strict=True)}
        rows = self.rows(world, "rows")
        wanted = [(port, arrival.id, arrival.row["pad"]) for port, mine in came.items() for arrival in mine]
        same("exactly once", wanted, ((row["port"], row["id"], row["pad"]) for row in rows), fail)
        by_key: dict[int, list[int]] = defaultdict(list)
        for row in rows:
            by_key[row["key"]].append(row["n"])
        same("state", ((k, n + 1) for k, m in by_key.items() for n in range(len(m))), _pairs(by_key), fail)
        found = {(row["port"], row["id"]): row for row in rows}
        for port, mine in came.items():
            in_order(mine, {arrival.id: found[port, arrival.id]["n"] for arrival in mine}, fail)
        if self.held_back:
            self._check_held_back(came, found, fail)

    def _check_held_back(self, came: dict[str, list[Arrival]], found: dict[tuple[str, int], Row], fail: Fail) -> None:
        """A row that is held back comes after all rows of its key that other inputs had by then."""
        held = self.ports[-1]
        for arrival in came[held]:
            before = sum(
                other.key == arrival.key and other.batch <= arrival.batch
                for port, mine in came.items()
                if port != held
                for other in mine
            )
            seen = found[held, arrival.id]["others"]
            if seen < before:
                fail("hold back", f"id {arrival.id} came after {seen} rows of other inputs, {before} were there")


def _pairs(by_key: dict[int, list[int]]) -> list[tuple[int, int]]:
    return [(key, n) for key, mine in by_key.items() for n in mine]


def _numbering(world: World, ports: tuple[str, ...], cost_s: float, *, crowded: bool) -> ConnectProcess:
    held = ports[-1]

    class Numbering(ConnectProcess):
        inputs = ports
        output = SEEN
        n = value_state(pa.int64())
        seen = map_state(pa.string(), pa.int64())

        def process(self, port: str, key: dict[str, Any], rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            world.checks.key_group(key["key"])
            slow = [row for row in rows if port == held and row["id"] // RUN % 2 == 0] if crowded else rows
            world.scheduler.spend(len(slow) * cost_s)
            for row in rows:
                others = sum(count for name, count in state.seen.items() if name != held)
                state.n = (state.n or 0) + 1
                state.seen[port] = state.seen.get(port, 0) + 1
                out.emit(id=row["id"], key=row["key"], port=port, n=state.n, others=others, pad=row["pad"])

    return Numbering()


@dataclass(frozen=True, slots=True)
class SelfJoin(Branch):
    """A source joined with itself: two edges from one source into one stage."""

    kind: ClassVar[str] = "selfjoin"
    parts: ClassVar[tuple[str, ...]] = ("pairs",)

    span: int = 3
    mapped: bool = False

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5, span=rng.choice((0, 3, 8)), mapped=rng.random() < 0.3)

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        stream = streams[0].map_batches(lambda batch: batch, name=self.name("map")) if self.mapped else streams[0]
        keyed = stream.key_by("key")
        pairs = keyed.join(keyed, within=(-self.span, self.span), name=self.name("join"))
        return [self.write(world, pairs, "pairs")]

    def check(self, world: World, fail: Fail) -> None:
        came = arrivals(world, 0)
        wanted = [(a.id, b.id) for a in came for b in came if a.key == b.key and abs(a.time - b.time) <= self.span * S]
        same("join", wanted, ((row["id"], row["id_right"]) for row in self.rows(world, "pairs")), fail)


@dataclass(frozen=True, slots=True)
class Gathered(Branch):
    """A union of up to three sources, written as it is: nothing behind it asks for an order."""

    kind: ClassVar[str] = "gathered"
    parts: ClassVar[tuple[str, ...]] = ("rows",)

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        return cls(named=rng.random() < 0.5, sources=rng.choice((2, 3)))

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        union = streams[0].union(*streams[1 : self.sources], name=self.name("union"))
        return [self.write(world, union, "rows")]

    def check(self, world: World, fail: Fail) -> None:
        wanted = [arrival for source in range(self.sources) for arrival in arrivals(world, source)]
        found = ((row["id"], row["pad"]) for row in self.rows(world, "rows"))
        same("exactly once", ((arrival.id, arrival.row["pad"]) for arrival in wanted), found, fail)
