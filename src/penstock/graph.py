"""The pipeline as stages: what runs together in one subtask, and the edges between.

Operators connected without an exchange are fused into one stage. A stage ends where records must move to other
subtasks (`key_by`, several inputs) and behind an operator that emits at the end of an epoch, so that slow user code
behind it can still be interrupted by the barrier. Everything here is frozen and travels to the subtasks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.operators.base import OperatorSpec
from penstock.protocol.manifest import EdgeShape, OperatorShape, PipelineShape
from penstock.sinks.base import Routing, Sink


@dataclass(frozen=True, slots=True)
class Edge:
    """A connection from a source or a stage to an input of a stage. Without `keys` rows keep their lane.

    With `routing` the sink behind it says which rows meet, and `keys` only describe that.
    """

    name: str
    producer: str
    consumer: str
    keys: tuple[str, ...]
    schema: pa.Schema
    from_source: bool
    routing: Routing | None = None


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
    """An operator inside a stage, and where its output goes."""

    spec: OperatorSpec
    targets: tuple[Target, ...]


@dataclass(frozen=True, slots=True)
class SinkBinding:
    """A sink and the columns that reach it."""

    name: str
    sink: Sink
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class Stage:
    """What one subtask runs: `nodes[0]` takes the inputs, the rest is fed by it."""

    name: str
    inputs: tuple[Edge, ...]
    nodes: tuple[StageNode, ...]
    sinks: tuple[SinkBinding, ...]

    @property
    def outputs(self) -> tuple[Edge, ...]:
        return tuple(target.edge for node in self.nodes for target in node.targets if isinstance(target, ToEdge))

    @property
    def source_inputs(self) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.inputs if edge.from_source)

    @property
    def stateful(self) -> tuple[str, ...]:
        return tuple(node.spec.name for node in self.nodes if node.spec.state_schema is not None)


@dataclass(frozen=True, slots=True)
class Source:
    """Where records come from: a streaming DataFrame of Spark, of which the graph knows only the columns."""

    name: str
    schema: pa.Schema
    frame: object = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages in topological order, with everything they connect."""

    sources: tuple[Source, ...]
    stages: tuple[Stage, ...]

    def edges(self) -> Iterator[Edge]:
        for stage in self.stages:
            yield from stage.inputs

    def sinks(self) -> Iterator[SinkBinding]:
        for stage in self.stages:
            yield from stage.sinks

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
                    producer=edge.producer, consumer=edge.consumer, keys=edge.keys, columns=columns_of(edge.schema)
                )
                for edge in self.edges()
            },
            sinks=tuple(binding.name for binding in self.sinks()),
        )


def columns_of(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Columns as plain text: name and Arrow type."""
    return tuple((field.name, str(field.type)) for field in schema)


def _operator_shape(spec: OperatorSpec, stage: str) -> OperatorShape:
    state = spec.state_schema
    return OperatorShape(
        kind=spec.kind,
        stage=stage,
        output=columns_of(spec.output_schema),
        state=() if state is None else (*columns_of(state.keys), *columns_of(state.values)),
    )
