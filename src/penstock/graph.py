"""The pipeline as stages: what runs together in one subtask, and the edges between.

Operators connected without an exchange are fused into one stage. A stage ends where records must move to other
subtasks (`key_by`, several inputs) and behind an operator that emits at the end of an epoch, so that slow user code
behind it can still be interrupted by the barrier. Everything here is frozen and travels to the subtasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import msgspec
import pyarrow as pa

from penstock.channel.hashing import hashed_quickly
from penstock.names import require_distinct, require_portable
from penstock.operators.base import OperatorSpec, StateSchema
from penstock.protocol.eventtime import SourceTime
from penstock.protocol.manifest import EdgeShape, OperatorShape, PipelineShape
from penstock.sinks.base import Routing, Sink
from penstock.sinks.listeners import CommitListener


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
    dealt: bool = False
    """Nobody behind needs an order, so rows that wait may be dealt out evenly."""
    routing: Routing | None = None
    """Which rows meet, where the sink behind says so; `keys` then only describe it."""
    inherited: bool = False
    """Its keys are those of the producer: results of a key stay together, though the consumer does not ask for it."""
    keeps_arrivals: bool = False
    """Segments know the micro-batch that their rows came with, because somebody reads in that order."""
    waits_for: tuple[str, ...] = ()
    """Edges upstream: rows are read only after those that arrived earlier and are still there."""

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
class Table:
    """A table of state of an operator. A broadcast one is the same in all subtasks and written by the first alone."""

    operator: str
    part: str
    schema: StateSchema
    broadcast: bool

    @property
    def name(self) -> str:
        """How checkpoints name it, also the folder of its files."""
        return f"{self.operator}/{self.part}" if self.part else self.operator


@dataclass(frozen=True)
class Stage:
    """What one subtask runs: `nodes[0]` takes the inputs, the rest is fed by it."""

    name: str
    inputs: tuple[Edge, ...]
    nodes: tuple[StageNode, ...]
    sinks: tuple[SinkBinding, ...]
    lanes_behind: tuple[str, ...] = ()
    """Edges downstream on which rows keep their order by the lanes that this stage gave them."""

    @property
    def head(self) -> OperatorSpec:
        """The operator that takes the inputs."""
        return self.nodes[0].spec

    @cached_property
    def outputs(self) -> tuple[Edge, ...]:
        return tuple(target.edge for node in self.nodes for target in node.all_targets() if isinstance(target, ToEdge))

    @property
    def unbounded(self) -> bool:
        """Whether no barrier stops it: it only hands rows of a source on to broadcast edges, which costs nothing, and
        records that arrived with them must not overtake them (B9)."""
        outputs = self.outputs
        passing = all(node.spec.kind == "pass" for node in self.nodes)
        return passing and not self.sinks and bool(outputs) and all(edge.broadcast for edge in outputs)

    @cached_property
    def passes_on(self) -> bool:
        """Whether it emits only in answer to rows, and in their order: then what it emits arrived when they did. What
        time makes due, or the end of an epoch, arrives when it is emitted."""
        late = any(node.spec.timed or node.spec.emits_at_end for node in self.nodes)
        return not late and (self.head.keeps_order or not self.head.holds)

    @property
    def source_inputs(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.inputs if edge.from_source)

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """The tables of state of all operators."""
        return tuple(
            Table(node.spec.name, part, schema, part in node.spec.broadcast_tables)
            for node in self.nodes
            for part, schema in node.spec.state_tables.items()
        )


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: a streaming DataFrame of Spark, of which the graph knows only the columns."""

    name: str
    schema: pa.Schema
    frame: object = field(compare=False, repr=False)
    time: SourceTime | None = None


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in topological order, with everything they connect."""

    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]
    added_listeners: Mapping[str, tuple[CommitListener, ...]] = field(default_factory=dict)
    """Users' commit listeners by sink; they stay in the driver, so they are no part of a stage."""

    def __post_init__(self) -> None:
        """Whoever made it: no two things have one name, and every edge leads from one output to one input.

        Raises: `PipelineError`.
        """
        operators = [node.spec.name for stage in self.stages for node in stage.nodes]
        sinks = [binding.name for binding in self.sinks()]
        require_distinct("sources, operators or sinks", [*(source.name for source in self.sources), *operators, *sinks])
        require_distinct("edges", [edge.name for edge in self.edges()])
        require_distinct("tables of state", [table.name for stage in self.stages for table in stage.tables])
        require_distinct("stages", [stage.name for stage in self.stages])
        require_distinct("sinks", [name for name, _ in {(part.name, id(part.sink)) for part in self._bindings()}])
        self._require_connected()

    def _bindings(self) -> Iterator[SinkBinding]:
        for stage in self.stages:
            yield from stage.sinks

    def _require_connected(self) -> None:
        sent = sorted((edge.name, stage.name) for stage in self.stages for edge in stage.outputs)
        taken = sorted((edge.name, edge.producer) for edge in self.edges() if not edge.from_source)
        assert sent == taken, f"edges that are sent to, {sent}, are not those that are read, {taken}"
        known = {source.name for source in self.sources}
        unread = {edge.producer for edge in self.edges() if edge.from_source} - known
        assert not unread, f"edges come from sources that are not there: {unread}"

    def require_portable_names(self) -> None:
        """For a new checkpoint. Raises: `PipelineError`, as `names.require_portable`."""
        require_portable(node.spec.name for stage in self.stages for node in stage.nodes)
        require_portable(table.name for stage in self.stages for table in stage.tables)
        require_portable(edge.name for edge in self.edges())
        require_portable(binding.name for binding in self.sinks())

    def edges(self) -> Iterator[Edge]:
        for stage in self.stages:
            yield from stage.inputs

    def sinks(self) -> Iterator[SinkBinding]:
        """Each once, though several stages may write dead letters to one."""
        yield from {binding.name: binding for binding in self._bindings()}.values()

    def listeners(self, sink: str) -> tuple[CommitListener, ...]:
        """Who is told of a sink's commits: the sink's own listeners, then the user's."""
        (binding,) = (binding for binding in self.sinks() if binding.name == sink)
        return (*binding.sink.listeners(), *self.added_listeners.get(sink, ()))

    def with_sinks(self, sinks: Mapping[str, Sink]) -> Pipeline:
        """The same pipeline with other values for its sinks."""
        return dataclasses.replace(
            self,
            stages=tuple(
                dataclasses.replace(
                    stage,
                    sinks=tuple(dataclasses.replace(binding, sink=sinks[binding.name]) for binding in stage.sinks),
                )
                for stage in self.stages
            ),
        )

    def stage_of(self) -> Mapping[str, str]:
        """Stage name by operator name."""
        return {node.spec.name: stage.name for stage in self.stages for node in stage.nodes}

    def shape(self) -> PipelineShape:
        """The fingerprint that a checkpoint keeps."""
        return PipelineShape(
            sources={source.name: columns_of(source.schema) for source in self.sources},
            operators={
                node.spec.name: _operator_shape(node.spec, stage.name) for stage in self.stages for node in stage.nodes
            },
            edges={
                edge.name: EdgeShape(
                    producer=edge.producer,
                    consumer=edge.consumer,
                    keys=edge.keys,
                    columns=columns_of(edge.schema),
                    broadcast=edge.broadcast,
                )
                for edge in self.edges()
            },
            sinks=tuple(binding.name for binding in self.sinks()),
        )

    def growing_state(self) -> dict[str, frozenset[str]]:
        """By operator, the tables of state that may have more columns than a checkpoint's."""
        return {
            node.spec.name: frozenset(name for name, table in node.spec.state_tables.items() if table.may_grow)
            for stage in self.stages
            for node in stage.nodes
        }


def columns_of(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Columns as plain text: name and Arrow type."""
    return tuple((field.name, str(field.type)) for field in schema)


def _operator_shape(spec: OperatorSpec, stage: str) -> OperatorShape:
    return OperatorShape(
        kind=spec.kind,
        stage=stage,
        output=columns_of(spec.output_schema),
        state={
            part: (*columns_of(schema.keys), *columns_of(schema.values)) for part, schema in spec.state_tables.items()
        },
        computed=dict(spec.computed) or msgspec.UNSET,
    )
