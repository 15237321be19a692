"""What users wrote, as nodes: sources, operators, side outputs and sinks, each with its inputs.

The compiler makes stages of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from penstock.operators.base import OperatorSpec
from penstock.protocol.eventtime import SourceTime
from penstock.sinks.base import Sink
from penstock.sinks.listeners import CommitListener


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """The checkpoint of a query of Structured Streaming, whose offsets are taken, and never its state."""

    place: str
    without_state: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class SourceNode:
    """A streaming DataFrame, as read."""

    name: str
    schema: pa.Schema
    frame: object
    event_time: str | None = None
    time: SourceTime | None = None
    watermark_by: tuple[str, ...] = ()
    """Columns that tell parts of the source apart, each of which has a watermark of its own."""
    by_default: bool = False
    """`watermark_by` was not given: without its columns there is one watermark for all."""
    rebalanced: bool = False
    """Rows without a key go to all subtasks evenly, not by partition."""
    derived: bool = False
    """Made of what a user read, by SQL: of several, all but the first get another name."""
    begin: SparkPlace | None = None
    """The checkpoint of another query of Spark, where the source begins."""


@dataclass(frozen=True, eq=False, slots=True)
class OperatorNode:
    """An operator as written."""

    spec: OperatorSpec
    named: bool
    inputs: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Input:
    """One input of an operator: how its records must be grouped, or that each subtask gets all of them."""

    node: Node
    keys: tuple[str, ...] = ()
    broadcast: bool = False
    rebalanced: bool = False
    """Rows go to all subtasks evenly, whatever made them."""


@dataclass(frozen=True, eq=False, slots=True)
class SideNode:
    """A side output of an operator."""

    operator: OperatorNode
    output: str


@dataclass(frozen=True, eq=False, slots=True)
class SinkNode:
    """A sink as written."""

    name: str | None
    sink: Sink
    input: Node
    listeners: tuple[CommitListener, ...] = ()


Node: TypeAlias = "SourceNode | OperatorNode | SideNode"


def schema_of(node: Node) -> pa.Schema:
    match node:
        case SourceNode():
            return node.schema
        case OperatorNode():
            return node.spec.output_schema
        case SideNode():
            return node.operator.spec.side_outputs[node.output]


def event_time_of(node: Node) -> str | None:
    """The column with a stream's event time: the source's, as long as operators hand on a column of that name and type,
    unless an operator has an `own_time`."""
    match node:
        case SourceNode():
            return node.event_time
        case OperatorNode():
            if node.spec.own_time is not None:
                return node.spec.own_time.column
            return _inherited(schema_of(node), [part.node for part in node.inputs if not part.broadcast])
        case SideNode():
            return _inherited(schema_of(node), [part.node for part in node.operator.inputs if not part.broadcast])


def _inherited(schema: pa.Schema, inputs: Sequence[Node]) -> str | None:
    names = {event_time_of(node) for node in inputs}
    name = names.pop() if len(names) == 1 else None
    if name is None or name not in schema.names:
        return None
    return name if all(schema_of(node).field(name).type == schema.field(name).type for node in inputs) else None


def event_time_is_end(node: Node) -> bool:
    """Whether the event time is the end of a window, which is the first moment after it."""
    match node:
        case SourceNode():
            return False
        case OperatorNode():
            if node.spec.own_time is not None and node.spec.own_time.column is not None:
                return node.spec.own_time.is_end
            return any(event_time_is_end(part.node) for part in node.inputs if not part.broadcast)
        case SideNode():
            return any(event_time_is_end(part.node) for part in node.operator.inputs if not part.broadcast)


def is_timed(node: Node) -> bool:
    """Whether watermarks come along."""
    match node:
        case SourceNode():
            return node.time is not None
        case OperatorNode():
            return any(is_timed(part.node) for part in node.inputs)
        case SideNode():
            return is_timed(node.operator)
