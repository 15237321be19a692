"""From the streams a user wrote to stages: names, fusion, edges.

Names identify operators in a checkpoint. Those not given are made from the kind of operator and its order, so a
pipeline that will change should name its stateful operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.graph.names import check_name, edge_names
from penstock.graph.nodes import Input, Node, OperatorNode, SideNode, SinkNode, SourceNode, is_timed, schema_of
from penstock.graph.ordering import with_order
from penstock.graph.pipeline import Pipeline, Source
from penstock.graph.stages import Edge, SinkBinding, Stage, StageNode, Target, ToEdge, ToOperator, ToSink
from penstock.hashing import supported_key_type
from penstock.operators.base import OperatorSpec
from penstock.operators.failures.deadletters import (
    LETTER_SCHEMA,
    letters_go_nowhere,
    no_letters_for,
    no_place_for_letters,
)
from penstock.operators.rowwise.passing import Pass
from penstock.records import DEAD_LETTERS
from penstock.sinks.base import Routing, Sink
from penstock.sinks.listeners import CommitListener


def compile_pipeline(outputs: Sequence[SinkNode], dead_letters: Sink | None = None) -> Pipeline:
    """Stages in topological order for everything that leads to `outputs`; dead letters for which no side output was
    taken go to `dead_letters`.

    Raises: `PipelineError`.
    """
    if not outputs:
        raise PipelineError("nothing to start", cause="no output was given", next_step="end a stream with .write(sink)")
    return _Compiler(outputs, dead_letters).compile()


@dataclass(slots=True)
class _StageDraft:
    name: str
    inputs: list[Edge] = field(default_factory=list)
    specs: list[OperatorSpec] = field(default_factory=list)
    targets: list[dict[str | None, list[Target]]] = field(default_factory=list)
    """Per operator, by side output; None is its main output."""
    sinks: list[SinkBinding] = field(default_factory=list)

    def freeze(self, edges: Mapping[str, Edge]) -> Stage:
        """`edges` are the finished ones by the numbers that stand for their names in a draft."""
        return Stage(
            self.name,
            tuple(edges[edge.name] for edge in self.inputs),
            tuple(self._node(spec, by_output, edges) for spec, by_output in zip(self.specs, self.targets, strict=True)),
            tuple(self.sinks),
        )

    @staticmethod
    def _node(spec: OperatorSpec, by_output: dict[str | None, list[Target]], edges: Mapping[str, Edge]) -> StageNode:
        frozen = {
            output: tuple(ToEdge(edges[to.edge.name]) if isinstance(to, ToEdge) else to for to in targets)
            for output, targets in by_output.items()
        }
        sides = {output: targets for output, targets in frozen.items() if output is not None}
        return StageNode(spec, frozen.get(None, ()), sides)


class _Compiler:
    def __init__(self, outputs: Sequence[SinkNode], dead_letters: Sink | None) -> None:
        self._outputs, self._dead_letters = outputs, dead_letters
        self._names: set[str] = set()
        self._sources: dict[SourceNode, Source] = {}
        self._drafts: list[_StageDraft] = []
        self._edges: list[Edge] = []
        """In the order in which they were made; until all are known, their names are numbers."""
        self._place: dict[OperatorNode, tuple[_StageDraft, int]] = {}
        self._listeners: dict[str, tuple[CommitListener, ...]] = {}

    def compile(self) -> Pipeline:
        self._add_sources([node for node in _in_order(self._outputs) if isinstance(node, SourceNode)])
        for node in _in_order(self._outputs):
            if isinstance(node, OperatorNode):
                self._add_operator(node)
        for output in self._outputs:
            self._add_sink(output)
        self._add_dead_letters()
        edges = self._finished_edges()
        stages = tuple(draft.freeze(edges) for draft in self._drafts)
        return with_order(Pipeline(tuple(self._sources.values()), stages, self._listeners))

    def _add_sources(self, nodes: Sequence[SourceNode]) -> None:
        """Those that users named get their names before those that SQL made of them."""
        names = {node: self._unique(node.name, given=True) for node in nodes if not node.derived}
        names |= {node: self._unique(node.name, given=False) for node in nodes if node.derived}
        self._sources = {node: Source(names[node], node.schema, node.frame, node.time, node.begin) for node in nodes}

    def _finished_edges(self) -> dict[str, Edge]:
        dealt = self._dealt_edges()
        names = edge_names([(edge.producer, edge.consumer) for edge in self._edges])
        return {
            edge.name: dataclasses.replace(edge, name=name, dealt=edge.name in dealt or edge.rebalanced)
            for edge, name in zip(self._edges, names, strict=True)
        }

    def _dealt_edges(self) -> frozenset[str]:
        """Unkeyed edges without a consumer that needs order: no key, no broadcast, down to the sinks."""
        outputs = {
            draft.name: [to.edge for by in self._all_targets(draft) for to in by if isinstance(to, ToEdge)]
            for draft in self._drafts
        }
        free: set[str] = set()
        for draft in reversed(self._drafts):
            behind = outputs[draft.name]
            if all(edge.name in free for edge in behind):
                free |= {edge.name for edge in draft.inputs if not edge.keys and not edge.broadcast}
        return frozenset(free)

    @staticmethod
    def _all_targets(draft: _StageDraft) -> Iterable[list[Target]]:
        return (targets for by_output in draft.targets for targets in by_output.values())

    def _add_operator(self, node: OperatorNode) -> None:
        spec = self._renamed(node)
        first = node.inputs[0]
        exchanged = first.keys or first.broadcast or first.rebalanced
        forward = len(node.inputs) == 1 and not exchanged and not spec.concurrent
        if forward and not isinstance(first.node, SourceNode) and not self._operator(first.node).spec.emits_at_end:
            draft = self._send(first.node, ToOperator(len(self._draft_of(first.node).specs)))
        else:
            inputs = [self._through_files(part) for part in node.inputs]
            draft = _StageDraft(spec.name)
            self._drafts.append(draft)
            for part in inputs:
                self._connect(part, draft)
        self._place[node] = (draft, len(draft.specs))
        draft.specs.append(spec)
        draft.targets.append({})

    @staticmethod
    def _operator(node: OperatorNode | SideNode) -> OperatorNode:
        return node.operator if isinstance(node, SideNode) else node

    def _draft_of(self, node: OperatorNode | SideNode) -> _StageDraft:
        return self._place[self._operator(node)][0]

    def _send(self, node: OperatorNode | SideNode, target: Target) -> _StageDraft:
        draft, index = self._place[self._operator(node)]
        output = node.output if isinstance(node, SideNode) else None
        draft.targets[index].setdefault(output, []).append(target)
        return draft

    def _through_files(self, part: Input) -> Input:
        """All subtasks can read the same broadcast rows only from a file: those of a source pass through a stage."""
        if part.broadcast and isinstance(part.node, SourceNode):
            return dataclasses.replace(part, node=self._passed(part.node))
        return part

    def _passed(self, source: SourceNode) -> OperatorNode:
        name = f"from-{self._sources[source].name}"[:80]
        node = OperatorNode(Pass(name, source.schema), False, (Input(source),))
        self._add_operator(node)
        return node

    def _connect(self, part: Input, draft: _StageDraft, routing: Routing | None = None) -> None:
        upstream, keys = part.node, part.keys
        schema = schema_of(upstream)
        if isinstance(upstream, SourceNode):
            producer, event_time = self._sources[upstream].name, upstream.event_time
            by = upstream.watermark_by
            dealt = (upstream.rebalanced or part.rebalanced) and not keys
            timed = is_timed(upstream)
            self._add_edge(
                draft, producer, keys, schema, True, False, timed, event_time, watermark_by=by, rebalanced=dealt
            )
            return
        if not part.broadcast and not part.rebalanced:
            keys = keys or _inherited_keys(self._operator(upstream).spec, schema)
        producer, timed = self._draft_of(upstream).name, is_timed(upstream)
        more: dict[str, Any] = {"routing": routing, "inherited": not part.keys, "rebalanced": part.rebalanced}
        edge = self._add_edge(draft, producer, keys, schema, False, part.broadcast, timed, **more)
        self._send(upstream, ToEdge(edge))

    def _add_edge(self, draft: _StageDraft, producer: str, *parts: Any, **more: Any) -> Edge:
        more["port"] = len(draft.inputs)
        edge = Edge(str(len(self._edges)), producer, draft.name, *parts, **more)
        self._edges.append(edge)
        draft.inputs.append(edge)
        return edge

    def _add_sink(self, output: SinkNode) -> None:
        upstream = output.input
        if isinstance(upstream, SourceNode):
            upstream = self._passed(upstream)
        name = self._unique(output.name or "sink", given=output.name is not None)
        routing = output.sink.routing(schema_of(upstream))
        if routing is not None:
            upstream = self._exchanged(upstream, f"write-{name}"[:80], routing)
        draft = self._send(upstream, ToSink(name))
        draft.sinks.append(SinkBinding(name, output.sink, schema_of(upstream)))
        self._listeners[name] = output.listeners
        _refuse_doubled_listeners(name, (*output.sink.listeners(), *output.listeners))

    def _exchanged(self, upstream: OperatorNode | SideNode, name: str, routing: Routing) -> OperatorNode:
        """A stage that only writes, and gets its rows by the sink's rules."""
        part = Input(upstream, _in_words(routing, schema_of(upstream)))
        node = OperatorNode(Pass(self._unique(name, given=False), schema_of(upstream)), True, (part,))
        draft = _StageDraft(node.spec.name)
        self._drafts.append(draft)
        self._connect(part, draft, routing)
        self._place[node] = (draft, 0)
        draft.specs.append(node.spec)
        draft.targets.append({})
        return node

    def _add_dead_letters(self) -> None:
        """One sink for the operators of all stages; it takes rows in any order."""
        unread = [
            node
            for node, (draft, index) in self._place.items()
            if DEAD_LETTERS in node.spec.side_outputs and DEAD_LETTERS not in draft.targets[index]
        ]
        if self._dead_letters is None:
            if unread:
                raise letters_go_nowhere([self._place[node][0].specs[self._place[node][1]].name for node in unread])
            return
        if not unread:
            raise no_letters_for(self._dead_letters.description)
        if self._dead_letters.routing(LETTER_SCHEMA) is not None:
            raise no_place_for_letters(self._dead_letters.description)
        binding = SinkBinding(self._unique(DEAD_LETTERS, given=True), self._dead_letters, LETTER_SCHEMA)
        self._listeners[binding.name] = ()
        for node in unread:
            draft = self._send(SideNode(node, DEAD_LETTERS), ToSink(binding.name))
            if binding not in draft.sinks:
                draft.sinks.append(binding)

    def _renamed(self, node: OperatorNode) -> OperatorSpec:
        name = self._unique(node.spec.name, given=node.named)
        return node.spec if name == node.spec.name else dataclasses.replace(node.spec, name=name)  # type: ignore[type-var]

    def _unique(self, name: object, *, given: bool) -> str:
        name = check_name(name)
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


def _inherited_keys(spec: OperatorSpec, schema: pa.Schema) -> tuple[str, ...]:
    """Results per key that still have the key columns stay with their key. So order is kept although the consumer does
    not ask for keys.

    A column of that name may be of another type by now, which may be none that a key can have.
    """
    keys = spec.output_keys
    kept = all(key in schema.names and supported_key_type(schema.field(key).type) for key in keys)
    return keys if kept else ()


def _in_words(routing: Routing, schema: pa.Schema) -> tuple[str, ...]:
    """What a checkpoint remembers of a routing: a row with a lane of a sink has no hash of these columns."""
    keys = routing.keys
    return (f"lanes({', '.join(keys)})",) if set(keys) <= set(schema.names) else keys


def _refuse_doubled_listeners(sink: str, listeners: tuple[CommitListener, ...]) -> None:
    names = [listener.name for listener in listeners]
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise PipelineError(
            f"sink {sink} has several commit listeners named {', '.join(map(repr, doubled))}",
            cause="a listener's name is the key of its state in the checkpoint",
            next_step="give each listener a name of its own",
        )


def _in_order(outputs: Iterable[SinkNode]) -> list[Node]:
    """Every node once, producers first."""
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node in order:
            return
        match node:
            case OperatorNode():
                for part in node.inputs:
                    visit(part.node)
            case SideNode():
                visit(node.operator)
        order[node] = None

    for output in outputs:
        visit(output.input)
    return list(order)
