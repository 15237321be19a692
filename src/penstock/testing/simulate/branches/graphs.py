"""Random graphs: unions of a stream with itself, diamonds, several edges between two stages, names that are made up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pyarrow as pa
import pyarrow.compute as pc

from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.operators.process.process import KeyedProcess
from penstock.testing.simulate.arrivals import arrivals
from penstock.testing.simulate.branches.base import Branch, Fail, same
from penstock.testing.simulate.table import SimSink

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

Bag = Counter[tuple[int, int]]
"""How often each record is there: id, and what the operators on its way made of `n1`."""
WITH_ITSELF = 0.5
"""Of unions."""
TIMES_MAX = 6
"""So many copies of a record at most."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator: what it does, a number for it, which earlier streams it reads, whether it has a name."""

    does: str
    number: int
    reads: tuple[int, ...]
    named: bool


@dataclass(frozen=True, slots=True)
class Graph(Branch):
    """`steps` over the sources; `ends` are the streams that are written."""

    kind: ClassVar[str] = "graph"
    parts: ClassVar[tuple[str, ...]] = ()

    steps: tuple[Step, ...] = ()
    ends: tuple[int, ...] = ()
    cost: float = 0.0

    @classmethod
    def draw(cls, rng: random.Random) -> Self:
        sources = rng.choice((1, 2, 2, 3))
        copies, steps = [1] * sources, list[Step]()
        names = rng.choice((0.0, 0.0, 0.3))
        for _ in range(rng.randint(3, 6)):
            does = rng.choice(("map", "map", "filter", "union", "union", "union", "union", "keyed", "twice", "once"))
            count = rng.choice((2, 2, 3)) if does == "union" else 1
            reads = [min(rng.randrange(len(copies)), rng.randrange(len(copies))) for _ in range(count)]
            if count > 1 and rng.random() < WITH_ITSELF:
                reads[1] = reads[0]
            made = sum(copies[read] for read in reads) * (2 if does == "twice" else 1)
            if made <= TIMES_MAX:
                steps.append(Step(does, len(copies), tuple(reads), rng.random() < names))
                copies.append(made)
        read = {read for step in steps for read in step.reads}
        # A stream without a reader is written: else it would not be part of the pipeline.
        ends = [stream for stream in range(len(copies)) if stream not in read]
        return cls(sources=sources, steps=tuple(steps), ends=tuple(ends), cost=rng.choice((0.0, 0.05, 0.2)))

    def tables(self) -> tuple[str, ...]:
        return tuple(f"{self.kind}.{end}" for end in self.ends)

    def outputs(self, world: World, streams: list[Stream]) -> list[Output]:
        cost_s = self.cost * world.epoch_s

        def spend(rows: int) -> None:
            world.scheduler.spend(rows * cost_s)

        made = streams[: self.sources]
        for step in self.steps:
            made.append(_made(step, [made[read] for read in step.reads], spend))
        sinks = [SimSink(world.tables[table]) for table in self.tables()]
        # Half of the sinks keep the names that are made for them.
        return [
            made[end].write(sink, name=sink.table.name if number % 2 else None)
            for number, (end, sink) in enumerate(zip(self.ends, sinks, strict=True))
        ]

    def check(self, world: World, fail: Fail) -> None:
        made: list[Bag] = [
            Counter((arrival.id, 0) for arrival in arrivals(world, source)) for source in range(self.sources)
        ]
        for step in self.steps:
            made.append(_wanted(step, sum((made[read] for read in step.reads), Bag())))
        for end in self.ends:
            rows = self.rows(world, str(end))
            same("graph", made[end].elements(), ((row["id"], row["n1"]) for row in rows), fail)


def _made(step: Step, reads: list[Stream], spend: Callable[[int], None]) -> Stream:
    name = f"{step.does}.{step.number}" if step.named else None
    first = reads[0]
    match step.does:
        case "map":
            return first.map_batches(_marked(step.number, spend), name=name)
        case "filter":
            return first.filter(pc.not_equal(_rest(step), 0), name=name)
        case "union":
            return first.union(*reads[1:], name=name)
        case "keyed":
            return first.key_by("key").process(_handing_on(first.schema, spend), name=name)
        case "twice":
            return first.flat_map(lambda row: [row, row], name=name)
        case _:
            return first.key_by("id", "n1").deduplicate(name=name)


def _wanted(step: Step, rows: Bag) -> Bag:
    match step.does:
        case "map":
            return Counter({(number, mark * 31 + step.number): times for (number, mark), times in rows.items()})
        case "filter":
            return Counter({row: times for row, times in rows.items() if row[0] % (3 + step.number)})
        case "twice":
            return rows + rows
        case "once":
            return Counter(set(rows))
    return rows


def _rest(step: Step) -> Any:
    """Of the id, divided by a number of the step's own."""
    divisor = 3 + step.number
    return pc.subtract(pc.field("id"), pc.multiply(pc.divide(pc.field("id"), divisor), divisor))


def _marked(mark: int, spend: Callable[[int], None]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def marked(batch: pa.RecordBatch) -> pa.RecordBatch:
        spend(batch.num_rows)
        place = batch.schema.get_field_index("n1")
        return batch.set_column(place, batch.schema.field(place), pc.add(pc.multiply(batch.column(place), 31), mark))

    return marked


def _handing_on(schema: pa.Schema, spend: Callable[[int], None]) -> KeyedProcess:
    class HandingOn(KeyedProcess):
        output = schema

        def process(self, key: Any, rows: list[dict[str, Any]], state: Any, out: Any) -> None:
            del key, state
            spend(len(rows))
            out.emit_many(rows)

    return HandingOn()
