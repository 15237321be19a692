"""A pipeline with the rows that an earlier one left in flight, and that go once more through this one.

The checkpoint says whose output they are and who gets them (`Rerouted` in its shape). The stage of that output emits
them. A source has no stage, so its rows get one that does nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow as pa

from penstock.graph.names import unused_name
from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Edge, Leftover, Stage, StageNode, Target, ToEdge, ToOperator, ToSink
from penstock.graph.wiring import outputs_of
from penstock.operators.rowwise.passing import Pass
from penstock.protocol.manifest import InputName, OutputName, PipelineShape, Rerouted


def with_leftovers(pipeline: Pipeline, shape: PipelineShape) -> Pipeline:
    """The pipeline, and a place for everything that `shape`, that of its checkpoint, has rerouted."""
    rerouted = {
        name: edge.rerouted for name, edge in shape.edges.items() if not isinstance(edge.rerouted, msgspec.UnsetType)
    }
    if not rerouted:
        return pipeline
    schemas = {source.name: source.schema for source in pipeline.sources}
    of_sources = {name: part for name, part in rerouted.items() if part.output.producer in schemas}
    relays = [_relay(pipeline, name, part, schemas[part.output.producer]) for name, part in of_sources.items()]
    stages = [_with_own(stage, {k: v for k, v in rerouted.items() if k not in of_sources}) for stage in pipeline.stages]
    return _waiting(dataclasses.replace(pipeline, stages=(*relays, *stages)), tuple(rerouted))


def _waiting(pipeline: Pipeline, rerouted: tuple[str, ...]) -> Pipeline:
    """An edge that waits for rows upstream waits for these too; nothing holds them, so they are through soon."""

    def waits(edge: Edge) -> Edge:
        return dataclasses.replace(edge, waits_for=(*edge.waits_for, *rerouted)) if edge.waits_for else edge

    stages = tuple(dataclasses.replace(stage, inputs=tuple(map(waits, stage.inputs))) for stage in pipeline.stages)
    return dataclasses.replace(pipeline, stages=stages)


def _with_own(stage: Stage, rerouted: Mapping[str, Rerouted]) -> Stage:
    schemas = {node.spec.name: node for node in stage.nodes}
    found = tuple(
        Leftover(_edge(name, part.output, stage.name, _schema(schemas[part.output.producer], part.output)), targets)
        for name, part in rerouted.items()
        if part.output.producer in schemas
        for targets in (tuple(_targets(stage, part)),)
    )
    return dataclasses.replace(stage, leftovers=found) if found else stage


def _schema(node: StageNode, output: OutputName) -> pa.Schema:
    return node.spec.side_outputs[output.side] if output.side else node.spec.output_schema


def _targets(stage: Stage, part: Rerouted) -> Iterator[Target]:
    wanted = list(part.to)
    for output, to in outputs_of(stage):
        if output == part.output and any(_leads(stage, to, at) for at in wanted):
            yield to


def _leads(stage: Stage, to: Target, at: InputName) -> bool:
    match to:
        case ToOperator(index):
            return stage.nodes[index].spec.name == at.consumer
        case ToEdge(edge):
            return (edge.consumer, edge.port) == (at.consumer, at.port)
        case ToSink(sink):
            return sink == at.consumer


def _relay(pipeline: Pipeline, name: str, part: Rerouted, schema: pa.Schema) -> Stage:
    taken = {node.spec.name for stage in pipeline.stages for node in stage.nodes}
    taken |= {source.name for source in pipeline.sources} | {binding.name for binding in pipeline.sinks()}
    stage = unused_name(name, taken)
    targets = tuple(
        ToEdge(edge)
        for edge in pipeline.edges()
        if edge.from_source and edge.producer == part.output.producer and InputName(edge.consumer, edge.port) in part.to
    )
    edge = _edge(name, part.output, stage, schema)
    return Stage(stage, (), (StageNode(Pass(stage, schema), ()),), (), leftovers=(Leftover(edge, targets),))


def _edge(name: str, output: OutputName, stage: str, schema: pa.Schema) -> Edge:
    return Edge(name, output.producer, stage, (), schema, from_source=False)


def with_relays(pipeline: Pipeline, parallelism: Mapping[str, int]) -> dict[str, int]:
    """The number of subtasks of all stages: a stage for leftovers of a source has as many as the stage it feeds."""
    relays = {
        stage.name: max((parallelism[edge.consumer] for edge in stage.outputs), default=1)
        for stage in pipeline.stages
        if stage.relays
    }
    return {**parallelism, **relays}
