"""The pipeline: all sources, stages and sinks of a query, checked when it is made, and the shape a checkpoint keeps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from penstock.graph.names import require_distinct, require_portable
from penstock.graph.nodes import SparkPlace
from penstock.graph.stages import Edge, SinkBinding, Stage, ToEdge, ToOperator, ToSink
from penstock.graph.wiring import wiring_of
from penstock.operators.base import OperatorSpec
from penstock.protocol.columns import Columns
from penstock.protocol.eventtime import SourceTime
from penstock.protocol.evolve_state import StateRules
from penstock.protocol.manifest import EdgeShape, OperatorShape, OutputName, PipelineShape
from penstock.sinks.base import Sink
from penstock.sinks.listeners import CommitListener


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: a streaming DataFrame of Spark, of which the graph knows only the columns."""

    name: str
    schema: pa.Schema
    frame: object = field(compare=False, repr=False)
    time: SourceTime | None = None
    begin: SparkPlace | None = None
    """The checkpoint of another query of Spark, where the source begins."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in topological order, with everything they connect."""

    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]
    added_listeners: Mapping[str, tuple[CommitListener, ...]] = field(default_factory=dict)
    """Users' commit listeners by sink; they stay in the driver, so they are no part of a stage."""

    def __post_init__(self) -> None:
        """Checks that no two things have one name, and that every edge leads from one output to one input.

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
        outputs = ((edge, stage) for stage in self.stages for edge in stage.outputs)
        # Leftovers of a source are sent to its own edges.
        sent = sorted((edge.name, stage.name) for edge, stage in outputs if not (stage.relays and edge.from_source))
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
        """The commit listeners of a sink: its own, then the user's."""
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
        wiring = wiring_of(self.stages)
        return PipelineShape(
            sources={source.name: columns_of(source.schema) for source in self.sources},
            operators={
                node.spec.name: _operator_shape(node.spec, stage.name, wiring.inputs[node.spec.name])
                for stage in self.stages
                for node in stage.nodes
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
            written={name: tuple(outputs) for name, outputs in wiring.written.items()},
        )

    def links(self) -> tuple[tuple[str, str], ...]:
        """The pipeline as a graph for people: from a source or operator to an operator or sink, by name."""
        heads = {stage.name: stage.head.name for stage in self.stages}
        links = [(edge.producer, heads[edge.consumer]) for edge in self.edges() if edge.from_source]
        for stage in self.stages:
            for node in stage.nodes:
                for target in node.all_targets():
                    match target:
                        case ToOperator(index):
                            links.append((node.spec.name, stage.nodes[index].spec.name))
                        case ToEdge(edge):
                            links.append((node.spec.name, heads[edge.consumer]))
                        case ToSink(sink):
                            links.append((node.spec.name, sink))
        return tuple(dict.fromkeys(links))

    def outputs(self) -> dict[OutputName, Columns]:
        """The columns of everything that operators emit."""
        found: dict[OutputName, Columns] = {}
        for stage in self.stages:
            for node in stage.nodes:
                found[OutputName(node.spec.name)] = columns_of(node.spec.output_schema)
                for side, schema in node.spec.side_outputs.items():
                    found[OutputName(node.spec.name, side)] = columns_of(schema)
        return found

    def state_rules(self) -> dict[str, StateRules]:
        """By table of state, how it may differ from a checkpoint's."""
        return {
            table.name: StateRules(
                keys=len(table.schema.keys), may_grow=table.schema.may_grow, from_start=table.schema.from_start
            )
            for stage in self.stages
            for table in stage.tables
        }


def columns_of(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Columns as plain text: name and Arrow type."""
    return tuple((field.name, str(field.type)) for field in schema)


def _operator_shape(spec: OperatorSpec, stage: str, inputs: Sequence[OutputName]) -> OperatorShape:
    return OperatorShape(
        kind=spec.kind,
        stage=stage,
        output=columns_of(spec.output_schema),
        state={
            part: (*columns_of(schema.keys), *columns_of(schema.values)) for part, schema in spec.state_tables.items()
        },
        computed=dict(spec.computed) or msgspec.UNSET,
        inputs=tuple(inputs),
    )
