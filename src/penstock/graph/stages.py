"""Stages: what runs together in one subtask, and the edges between them.

Operators connected without an exchange are fused into one stage. A stage ends where records must move to other
subtasks (`key_by`, several inputs) and behind an operator that emits at the end of an epoch, so that slow user code
behind it can still be interrupted by the barrier. Everything here is frozen and travels to the subtasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from penstock.hashing import hashed_quickly
from penstock.operators.base import OperatorSpec
from penstock.records import StateSchema
from penstock.sinks.base import Routing, Sink


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from a source or a stage to an input of a stage. Without `keys` rows have lanes."""

    name: str
    producer: str
    consumer: str
    keys: tuple[str, ...]
    schema: pa.Schema
    from_source: bool
    broadcast: bool = False
    """Every subtask of the consumer gets every row."""
    timed: bool = False
    """Watermarks come along."""
    event_time: str | None = None
    """Of an edge from a source: the column that its watermark is made of."""
    watermark_by: tuple[str, ...] = ()
    """Likewise: the columns that tell its parts apart, if each has a watermark of its own."""
    dealt: bool = False
    """No consumer downstream needs an order, so waiting rows may be dealt out evenly."""
    routing: Routing | None = None
    """Which rows meet, where the sink behind says so; `keys` then only describe it."""
    inherited: bool = False
    """Its keys are those of the producer: results of a key stay together, though the consumer does not ask for it."""
    keeps_arrivals: bool = False
    """Segments keep the arrival of their rows, because a consumer reads in that order."""
    waits_for: tuple[str, ...] = ()
    """Edges upstream: rows are read only after those that arrived earlier and are still there."""
    rebalanced: bool = False
    """Rows are dealt out over all subtasks as they come; their order is given up."""
    port: int = 0
    """Its number among the inputs of its consumer."""

    @property
    def hashed_on_arrival(self) -> bool:
        """Whether live rows come without the hash of their key, because a subtask is quicker to hash it again."""
        if not self.keys or self.routing is not None:
            return False
        return all(hashed_quickly(self.schema.field(key).type) for key in self.keys)


@dataclass(frozen=True, slots=True)
class ToOperator:
    """Output goes to another operator of the same stage."""

    index: int


@dataclass(frozen=True, slots=True)
class ToEdge:
    """Output goes to another stage."""

    edge: Edge


@dataclass(frozen=True, slots=True)
class ToSink:
    """Output goes to a sink's writer."""

    sink: str


Target = ToOperator | ToEdge | ToSink


@dataclass(frozen=True, slots=True)
class StageNode:
    """An operator inside a stage, and where its output and its side outputs go."""

    spec: OperatorSpec
    targets: tuple[Target, ...]
    sides: Mapping[str, tuple[Target, ...]] = field(default_factory=dict)

    def all_targets(self) -> Iterator[Target]:
        yield from self.targets
        for targets in self.sides.values():
            yield from targets


@dataclass(frozen=True, slots=True)
class SinkBinding:
    """A sink and the columns that reach it."""

    name: str
    sink: Sink
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class StateTable:
    """A table of state of an operator. A broadcast one is the same in all subtasks and written by the first alone."""

    operator: str
    part: str
    schema: StateSchema
    broadcast: bool

    @property
    def name(self) -> str:
        """How checkpoints name it, also the folder of its files."""
        return f"{self.operator}/{self.part}" if self.part else self.operator


@dataclass(frozen=True, slots=True)
class Leftover:
    """Rows that an earlier pipeline left in flight. The stage emits them once more, before anything newer."""

    edge: Edge
    targets: tuple[Target, ...]


@dataclass(frozen=True)
class Stage:
    """What one subtask runs: `nodes[0]` takes the inputs, the rest is fed by it."""

    name: str
    inputs: tuple[Edge, ...]
    nodes: tuple[StageNode, ...]
    sinks: tuple[SinkBinding, ...]
    lanes_behind: tuple[str, ...] = ()
    """Edges downstream on which rows keep their order by the lanes that this stage gave them."""
    leftovers: tuple[Leftover, ...] = ()

    @property
    def head(self) -> OperatorSpec:
        """The operator that takes the inputs."""
        return self.nodes[0].spec

    @cached_property
    def outputs(self) -> tuple[Edge, ...]:
        own = (target for node in self.nodes for target in node.all_targets())
        more = (target for leftover in self.leftovers for target in leftover.targets)
        return tuple({to.edge.name: to.edge for to in (*own, *more) if isinstance(to, ToEdge)}.values())

    @property
    def unbounded(self) -> bool:
        """Whether no barrier stops it: it only hands rows of a source on to broadcast edges, which costs nothing, and
        records that arrived with them must not overtake them."""
        outputs = self.outputs
        passing = all(node.spec.does_nothing for node in self.nodes)
        return (
            passing
            and not self.sinks
            and bool(outputs)
            and bool(self.inputs)
            and all(edge.broadcast for edge in outputs)
        )

    @cached_property
    def passes_on(self) -> bool:
        """Whether it emits only in answer to rows, and in their order: then what it emits arrived when they did. What
        time makes due, or the end of an epoch, arrives when it is emitted."""
        late = any(node.spec.timed or node.spec.emits_at_end for node in self.nodes)
        return not late and (self.head.keeps_order or not self.head.concurrent)

    @property
    def relays(self) -> bool:
        """Whether all that it does is to emit leftovers: those of a source, which has no stage of its own."""
        return not self.inputs

    @property
    def source_inputs(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.inputs if edge.from_source)

    @cached_property
    def tables(self) -> tuple[StateTable, ...]:
        """The tables of state of all operators."""
        return tuple(
            StateTable(node.spec.name, part, schema, part in node.spec.broadcast_tables)
            for node in self.nodes
            for part, schema in node.spec.state_tables.items()
        )
