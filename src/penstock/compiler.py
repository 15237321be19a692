"""From the streams a user wrote to stages: names, fusion, edges.

Names identify operators in a checkpoint. Those not given are made from the kind of operator and its order, so a
pipeline that will change should name its stateful operators.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.channel.hashing import why_no_key
from penstock.errors import PipelineError
from penstock.graph import Edge, Pipeline, SinkBinding, Source, Stage, StageNode, Target, ToEdge, ToOperator, ToSink
from penstock.operators.base import OperatorSpec
from penstock.operators.passing import Pass
from penstock.sinks.base import Routing, Sink

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,80}")
_HIDDEN = "__penstock"


@dataclass(frozen=True, eq=False, slots=True)
class SourceNode:
    """A streaming DataFrame, as read."""

    name: str
    schema: pa.Schema
    frame: object


@dataclass(frozen=True, eq=False, slots=True)
class OperatorNode:
    """An operator as written; `keys` says how records must be grouped for it."""

    spec: OperatorSpec
    named: bool
    inputs: tuple[SourceNode | OperatorNode, ...]
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class SinkNode:
    """A sink as written."""

    name: str | None
    sink: Sink
    input: SourceNode | OperatorNode


Node = SourceNode | OperatorNode


def schema_of(node: Node) -> pa.Schema:
    return node.schema if isinstance(node, SourceNode) else node.spec.output_schema


def check_keys(schema: pa.Schema, keys: Sequence[str]) -> tuple[str, ...]:
    """Raises: `PipelineError` for a key that is missing or cannot be one."""
    if not keys:
        raise PipelineError("key_by() without columns", cause="no key was given", next_step="name at least one column")
    for key in keys:
        if key not in schema.names:
            raise PipelineError(
                f"key column {key!r} does not exist; columns are {', '.join(schema.names)}",
                cause="a typing error, or the column was dropped before key_by",
                next_step="name an existing column",
                column=key,
            )
        why = why_no_key(schema.field(key))
        if why is not None:
            raise PipelineError(
                f"key column {key!r} has type {schema.field(key).type}: {why}",
                cause="keys must have an order, an equality and a hash",
                next_step="select a field of it, or make a string or number of it before key_by",
                column=key,
            )
    return tuple(keys)


def check_columns(schema: pa.Schema, where: str) -> None:
    """Raises: `PipelineError` for columns that cannot travel: hidden names, one name twice."""
    hidden = [name for name in schema.names if name.startswith(_HIDDEN)]
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if hidden or doubled:
        raise PipelineError(
            f"{where} has columns {', '.join(hidden or doubled)}" + ("" if hidden else " twice"),
            cause=f"names beginning with {_HIDDEN} are used inside" if hidden else "a join or select made duplicates",
            next_step="rename these columns before they reach Penstock",
        )


def compile_pipeline(outputs: Sequence[SinkNode]) -> Pipeline:
    """Stages in topological order for everything that leads to `outputs`.

    Raises: `PipelineError`.
    """
    if not outputs:
        raise PipelineError("nothing to start", cause="no output was given", next_step="end a stream with .write(sink)")
    return _Compiler(outputs).compile()


@dataclass(slots=True)
class _StageDraft:
    name: str
    inputs: list[Edge] = field(default_factory=list)
    specs: list[OperatorSpec] = field(default_factory=list)
    targets: list[list[Target]] = field(default_factory=list)
    sinks: list[SinkBinding] = field(default_factory=list)

    def freeze(self) -> Stage:
        nodes = tuple(StageNode(spec, tuple(targets)) for spec, targets in zip(self.specs, self.targets, strict=True))
        return Stage(self.name, tuple(self.inputs), nodes, tuple(self.sinks))


class _Compiler:
    def __init__(self, outputs: Sequence[SinkNode]) -> None:
        self._outputs = outputs
        self._names: set[str] = set()
        self._sources: dict[SourceNode, Source] = {}
        self._drafts: list[_StageDraft] = []
        self._place: dict[OperatorNode, tuple[_StageDraft, int]] = {}

    def compile(self) -> Pipeline:
        for node in _in_order(self._outputs):
            if isinstance(node, SourceNode):
                self._sources[node] = Source(self._unique(node.name, given=True), node.schema, node.frame)
        for node in _in_order(self._outputs):
            if isinstance(node, OperatorNode):
                self._add_operator(node)
        for output in self._outputs:
            self._add_sink(output)
        return Pipeline(tuple(self._sources.values()), tuple(draft.freeze() for draft in self._drafts))

    def _add_operator(self, node: OperatorNode) -> None:
        spec = self._renamed(node)
        producer = node.inputs[0]
        forward = len(node.inputs) == 1 and not node.keys
        if forward and isinstance(producer, OperatorNode) and not producer.spec.emits_at_end:
            draft, index = self._place[producer]
            draft.targets[index].append(ToOperator(len(draft.specs)))
        else:
            inputs = self._one_source_at_most(node.inputs)
            draft = _StageDraft(spec.name)
            self._drafts.append(draft)
            for upstream in inputs:
                self._connect(upstream, draft, node.keys, None)
        self._place[node] = (draft, len(draft.specs))
        draft.specs.append(spec)
        draft.targets.append([])

    def _one_source_at_most(self, inputs: tuple[Node, ...]) -> tuple[Node, ...]:
        """A stage job has one live input; where several sources meet, each passes through a stage of its own first."""
        if sum(isinstance(upstream, SourceNode) for upstream in inputs) <= 1:
            return inputs
        return tuple(self._passed(node) if isinstance(node, SourceNode) else node for node in inputs)

    def _passed(self, source: SourceNode) -> OperatorNode:
        node = OperatorNode(Pass("pass", source.schema), False, (source,))
        self._add_operator(node)
        return node

    def _connect(self, upstream: Node, draft: _StageDraft, keys: tuple[str, ...], routing: Routing | None) -> None:
        schema = schema_of(upstream)
        if isinstance(upstream, SourceNode):
            producer = self._sources[upstream].name
            draft.inputs.append(Edge(self._edge_name(producer, draft), producer, draft.name, keys, schema, True))
            return
        source, index = self._place[upstream]
        # Results per key stay with their key, where they still carry it: order is kept though nobody asks for keys.
        inherited = tuple(getattr(upstream.spec, "keys", ()))
        keys = keys or (inherited if set(inherited) <= set(schema.names) else ())
        edge = Edge(self._edge_name(source.name, draft), source.name, draft.name, keys, schema, False, routing)
        draft.inputs.append(edge)
        source.targets[index].append(ToEdge(edge))

    def _edge_name(self, producer: str, draft: _StageDraft) -> str:
        taken = {edge.name for edge in draft.inputs}
        names = (f"{producer}-to-{draft.name}{suffix}" for suffix in ("", *(f"-{count}" for count in range(2, 1000))))
        return next(name for name in names if name not in taken)

    def _add_sink(self, output: SinkNode) -> None:
        upstream = output.input
        if isinstance(upstream, SourceNode):
            upstream = self._passed(upstream)
        name = self._unique(output.name or "sink", given=output.name is not None)
        routing = output.sink.routing(schema_of(upstream))
        if routing is not None:
            upstream = self._exchanged(upstream, f"write-{name}"[:80], routing)
        draft, index = self._place[upstream]
        draft.sinks.append(SinkBinding(name, output.sink, schema_of(upstream)))
        draft.targets[index].append(ToSink(name))

    def _exchanged(self, upstream: OperatorNode, name: str, routing: Routing) -> OperatorNode:
        """A stage that only writes, and gets its rows by the sink's rules."""
        node = OperatorNode(Pass(self._unique(name, given=False), schema_of(upstream)), True, (upstream,))
        draft = _StageDraft(node.spec.name)
        self._drafts.append(draft)
        self._connect(upstream, draft, routing.keys, routing)
        self._place[node] = (draft, 0)
        draft.specs.append(node.spec)
        draft.targets.append([])
        return node

    def _renamed(self, node: OperatorNode) -> OperatorSpec:
        name = self._unique(node.spec.name, given=node.named)
        return node.spec if name == node.spec.name else dataclasses.replace(node.spec, name=name)  # type: ignore[type-var]

    def _unique(self, name: str, *, given: bool) -> str:
        if not _NAME.fullmatch(name):
            raise PipelineError(
                f"{name!r} is not a name",
                cause="names become folders in the checkpoint",
                next_step="use letters, digits, '_', '-' and '.', at most 80",
            )
        if name in self._names and given:
            raise PipelineError(
                f"the name {name!r} is used twice",
                cause="names identify sources, operators and sinks in the checkpoint",
                next_step="give each its own name=",
            )
        base, count = name, 1
        while name in self._names:
            count += 1
            name = f"{base}-{count}"
        self._names.add(name)
        return name


def _in_order(outputs: Iterable[SinkNode]) -> list[Node]:
    """Every node once, producers first."""
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in order:
            return
        if isinstance(node, OperatorNode):
            for upstream in node.inputs:
                visit(upstream)
        order[node] = None

    for output in outputs:
        visit(output.input)
    return list(order)
