"""Which output goes where, by the names of operators: what stages hide, because they fuse operators.

A checkpoint keeps it. Where stages are cut depends on the whole pipeline; outputs and inputs are what users wrote.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.graph.stages import Edge, Stage, StageNode, Target, ToEdge, ToOperator, ToSink
from penstock.protocol.manifest import OutputName


@dataclass(slots=True)
class Wiring:
    """By operator the output that each of its inputs reads; by sink the outputs that go there."""

    inputs: dict[str, list[OutputName]] = field(default_factory=dict)
    written: dict[str, list[OutputName]] = field(default_factory=dict)


def wiring_of(stages: Sequence[Stage]) -> Wiring:
    wiring = Wiring()
    senders = {to.edge.name: output for stage in stages for output, to in outputs_of(stage) if isinstance(to, ToEdge)}
    for stage in stages:
        wiring.inputs[stage.head.name] = [_output_behind(edge, senders) for edge in stage.inputs]
        for output, to in outputs_of(stage):
            match to:
                case ToOperator(index):
                    wiring.inputs.setdefault(stage.nodes[index].spec.name, []).append(output)
                case ToSink(sink):
                    wiring.written.setdefault(sink, []).append(output)
                case ToEdge():
                    pass
    return wiring


def outputs_of(stage: Stage) -> Iterator[tuple[OutputName, Target]]:
    """Every target in a stage, with the output that goes there."""
    for node in stage.nodes:
        yield from targets_of(node)


def targets_of(node: StageNode) -> Iterator[tuple[OutputName, Target]]:
    for to in node.targets:
        yield OutputName(node.spec.name), to
    for side, targets in node.sides.items():
        for to in targets:
            yield OutputName(node.spec.name, side), to


def _output_behind(edge: Edge, senders: dict[str, OutputName]) -> OutputName:
    return OutputName(edge.producer) if edge.from_source else senders[edge.name]
