"""A whole pipeline from a seed: its streams, which of them are written, its input, and what happens while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import penstock as pen
from tests.generated.everything import draw_everything, draw_rebalance
from tests.generated.keyed import (
    draw_aggregate,
    draw_deduplicate,
    draw_note,
    draw_number,
    draw_sum,
    draw_top,
)  # fmt: skip
from tests.generated.nodes import Node, Pool
from tests.generated.rowwise import (
    draw_filter,
    draw_flat_map,
    draw_map_async,
    draw_map_batches,
    draw_select,
    draw_union,
)
from tests.generated.several import draw_broadcast, draw_connect
from tests.generated.sources import Input, Source, draw_input, draw_pushed, draw_sources
from tests.generated.timed import draw_join, draw_ring, draw_window, draw_window_top

Drawn = Callable[[Pool], Node | None]
OPERATIONS: dict[Drawn, int] = {
    draw_map_batches: 6, draw_select: 2, draw_filter: 4, draw_flat_map: 3, draw_map_async: 2, draw_union: 5,
    draw_aggregate: 5,
    draw_deduplicate: 3, draw_number: 4, draw_note: 6, draw_sum: 3, draw_top: 3, draw_window: 7, draw_window_top: 4,
    draw_join: 4, draw_ring: 3, draw_connect: 4, draw_broadcast: 3, draw_pushed: 3,
    draw_everything: 3, draw_rebalance: 3,
}  # fmt: skip
ROW_BY_ROW = (draw_map_batches, draw_select, draw_filter, draw_flat_map, draw_map_async)
BY_ARRIVAL = (draw_note, draw_note, draw_number, draw_deduplicate, draw_aggregate)


@dataclass(slots=True)
class Step:
    """One micro-batch, and what happens with it."""

    parallelism: int | None = None
    """A restart at this parallelism before it."""
    crash: bool = False
    """Its epoch is lost and repeated."""
    idle: int = 0
    """Epochs without new rows after it."""


@dataclass(slots=True)
class Schedule:
    """How a pipeline runs."""

    seed: int
    parallelism: int
    max_parallelism: int
    barrier: int | None
    """After how many steps of a subtask the barrier fires."""
    prefetch_bytes: int
    segment_bytes: int
    batch_rows: int
    """Rows of a batch as Spark hands them over."""
    flush: bool = False
    """At the end of the input everything comes out, though no row says that time has passed."""
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Program:
    """Everything there is to know of a run."""

    seed: int
    nodes: list[Node]
    outputs: list[Node]
    input: Input
    schedule: Schedule

    @property
    def sources(self) -> list[Node]:
        return [node for node in self.reached() if isinstance(node.op, Source)]

    def reached(self) -> list[Node]:
        """What leads to the outputs, producers first."""
        found: dict[int, Node] = {}

        def visit(node: Node) -> None:
            if node.number not in found:
                for part in node.inputs:
                    visit(part)
                found[node.number] = node

        for output in self.outputs:
            visit(output)
        return [found[number] for number in sorted(found)]

    def streams(self, source: Callable[[Node], pen.Stream]) -> dict[int, pen.Stream]:
        """The pipeline, written with the public API."""
        made: dict[int, pen.Stream] = {}
        for node in self.reached():
            inputs = [made[part.number] for part in node.inputs]
            made[node.number] = source(node) if isinstance(node.op, Source) else node.op.build(*inputs)
        return made

    def __str__(self) -> str:
        written = ", ".join(f"t{node.number}" for node in self.outputs)
        lines = [f"seed {self.seed}", *(f"  {node}" for node in self.reached()), f"  written: {written}"]
        rows = sum(len(rows) for batch in self.input.batches for rows in batch.values())
        return "\n".join([*lines, f"  {self.schedule}", f"  {rows} rows", *([str(self.input)] if rows <= 60 else [])])


def draw_program(seed: int, *, on_spark: bool = False) -> Program:
    chance = Random(f"pipeline {seed}")
    pool = Pool(chance, on_spark)
    sources = draw_sources(pool)
    wanted = len(sources) + chance.randint(1, 8)
    for _ in range(wanted * 3):
        if len(pool.nodes) >= wanted:
            break
        _grow(pool)
    outputs = _outputs(chance, pool.nodes)
    program = Program(seed, pool.nodes, outputs, Input(), _schedule(chance))
    program.schedule.flush = chance.random() < 0.4
    program.input = draw_input(chance, program.sources, closes=not program.schedule.flush)
    program.schedule.steps = [_step(chance) for _ in program.input.batches]
    return program


def _grow(pool: Pool) -> None:
    """One more operation; or several on each other, or on one stream, as chance alone seldom makes them."""
    pool.focus = None
    match pool.chance.random():
        case few if few < 0.15:
            _chain(pool, pool.chance.choice(ROW_BY_ROW), pool.chance.choice(BY_ARRIVAL))
        case few if few < 0.25:
            _chain(pool, pool.chance.choice(ROW_BY_ROW), draw_union)
            pool.focus = pool.nodes[-1].inputs[0] if pool.nodes[-1].inputs else None
            draw_union(pool)
        case _:
            _any_operation(pool)(pool)


def _chain(pool: Pool, *operations: Drawn) -> None:
    for operation in operations:
        pool.focus = operation(pool)


def _any_operation(pool: Pool) -> Drawn:
    return pool.chance.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]


def _outputs(chance: Random, nodes: Sequence[Node]) -> list[Node]:
    """Whatever nobody reads, whatever must be read, and some others."""
    read = {part.number for node in nodes for part in node.inputs if not node.must}
    ends = [node for node in nodes if node.number not in read or node.must]
    operations = [node for node in ends if node.inputs]
    chosen = operations or ends
    return chosen + [node for node in nodes if node not in chosen and node.inputs and chance.random() < 0.15]


def _schedule(chance: Random) -> Schedule:
    max_parallelism = chance.choice((1, 4, 5, 16, 16))
    return Schedule(
        seed=chance.randrange(1 << 30),
        parallelism=min(chance.choice((1, 2, 3, 4)), max_parallelism),
        max_parallelism=max_parallelism,
        barrier=chance.choice((None, 1, 1, 1, 2)),
        prefetch_bytes=chance.choice((1, 200, 2000, 1 << 20, 1 << 20)),
        segment_bytes=chance.choice((200, 5000, 1 << 20)),
        batch_rows=chance.choice((1, 2, 3, 10, 10_000)),
    )


def _step(chance: Random) -> Step:
    return Step(
        parallelism=chance.randint(1, 4) if chance.random() < 0.2 else None,
        crash=chance.random() < 0.25,
        idle=chance.choice((0, 0, 0, 0, 1, 3)),
    )
