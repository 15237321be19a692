"""Which edges keep order across micro-batches, and whose rows they wait for; `protocol.order` says what that means.

An edge wants order where its consumer asks for keys, or gets all rows in every subtask. It waits for the edges from
which rows reach it through stages that only answer rows. Nothing waits where it need not: rows that leave a keyed stage
with the key they came with are in order already, however far other keys are behind.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Edge, Stage, StageNode, Target, ToEdge, ToOperator


def with_order(pipeline: Pipeline) -> Pipeline:
    """The same pipeline, with what its edges wait for."""
    stages = {stage.name: stage for stage in pipeline.stages}
    waits = {edge.name: _waits_for(edge, stages) for edge in pipeline.edges()}
    wanted = {name for upstream in waits.values() for name in upstream} | {name for name in waits if waits[name]}

    def ordered(edge: Edge) -> Edge:
        kept = edge.name in wanted and (edge.from_source or stages[edge.producer].passes_on)
        return dataclasses.replace(edge, waits_for=waits[edge.name], keeps_arrivals=kept)

    def target(to: Target) -> Target:
        return ToEdge(ordered(to.edge)) if isinstance(to, ToEdge) else to

    def node(of: StageNode) -> StageNode:
        sides = {output: tuple(map(target, targets)) for output, targets in of.sides.items()}
        return StageNode(of.spec, tuple(map(target, of.targets)), sides)

    changed = tuple(
        dataclasses.replace(stage, inputs=tuple(map(ordered, stage.inputs)), nodes=tuple(map(node, stage.nodes)))
        for stage in pipeline.stages
    )
    return dataclasses.replace(pipeline, stages=_with_lanes(changed))


def _waits_for(edge: Edge, stages: Mapping[str, Stage]) -> tuple[str, ...]:
    if edge.from_source or not _wants_order(edge) or _in_order(edge, stages[edge.producer]):
        return ()
    return tuple(dict.fromkeys(_upstream(stages[edge.producer], stages)))


def _with_lanes(stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """A stage whose own inputs want order is no part of this: rows of its keys may not wait for lanes."""
    by_name = {stage.name: stage for stage in stages}
    return tuple(
        stage
        if any(_wants_order(edge) and not edge.broadcast for edge in stage.inputs)
        else dataclasses.replace(stage, lanes_behind=tuple(dict.fromkeys(_lanes(stage, by_name))))
        for stage in stages
    )


def _lanes(stage: Stage, stages: Mapping[str, Stage]) -> Iterator[str]:
    if not stage.passes_on:
        return
    for edge in stage.outputs:
        if edge.keeps_arrivals and not edge.keys and not edge.broadcast:
            yield edge.name
            yield from _lanes(stages[edge.consumer], stages)


def _wants_order(edge: Edge) -> bool:
    if edge.routing is not None:
        return edge.routing.ordered
    return edge.broadcast or (bool(edge.keys) and not edge.inherited)


def _upstream(stage: Stage, stages: Mapping[str, Stage]) -> Iterator[str]:
    """Edges whose rows may become rows that leave the stage, as rows that arrived when they did."""
    if not stage.passes_on:
        return
    for edge in _in_turn(stage):
        yield edge.name
        if not edge.from_source:
            yield from _upstream(stages[edge.producer], stages)


def _in_turn(stage: Stage) -> Iterator[Edge]:
    """The inputs without those that a user holds back: their rows are meant to be overtaken."""
    ranks = stage.head.port_ranks or (0,) * len(stage.inputs)
    usual = min((rank for edge, rank in zip(stage.inputs, ranks, strict=True) if not edge.broadcast), default=0)
    return (edge for edge, rank in zip(stage.inputs, ranks, strict=True) if rank <= usual)


def _in_order(edge: Edge, producer: Stage) -> bool:
    """Whether rows of one key of the edge all come out of one key of its producer, one after the other."""
    if len(producer.inputs) != 1 or edge.routing is not None:
        return False
    (before,) = producer.inputs
    keyed = bool(before.keys) and before.routing is None and set(before.keys) <= set(edge.keys)
    return keyed and _handed_on(producer, 0, edge)


def _handed_on(stage: Stage, index: int, edge: Edge) -> bool:
    """Whether rows reach the edge as they came, from this operator on."""
    node = stage.nodes[index]
    if not node.spec.hands_on:
        return False
    if any(isinstance(to, ToEdge) and to.edge.name == edge.name for to in node.targets):
        return True
    return any(isinstance(to, ToOperator) and _handed_on(stage, to.index, edge) for to in node.targets)
