"""What becomes of rows in flight in a changed pipeline. Rows in flight are an output of their producer, and follow it.

- Their consumer still reads that output: they go there.
- It does not, and others read it now that did not before: they go to those that lead to their consumer, as when an
  operator was put in front; where their consumer is gone, to all of them.
- Their producer is gone, and their consumer is still there: they go to the input at which they were waiting.
- No operator reads them: they are refused, unless the user drops them by name.

Where keys and columns are the same, the new edge names the same files. Where only columns differ, rows are cast while
they are read. Elsewhere rows are *rerouted*: the stage of their producer emits them once more, before anything newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from penstock.protocol.columns import ColumnChange, Columns, column_change
from penstock.protocol.fates import Carried, Converted, Fate, Forgotten, PartFate, Refused, Renamed
from penstock.protocol.manifest import (
    EdgeShape,
    EdgeState,
    InputName,
    OperatorShape,
    OutputName,
    PipelineShape,
    Rerouted,
)


@dataclass(frozen=True, slots=True)
class Flow:
    """Where the rows of one edge of the checkpoint go."""

    edge: str
    line: PartFate
    into: tuple[str, ...] = ()
    """Edges of the pipeline that name the same files."""
    rerouted: tuple[Rerouted, ...] = ()
    """Outputs of the pipeline that emit the rows once more."""
    gone: tuple[str, ...] = ()
    """Columns that the rows have and their readers do not."""
    dropped: bool = False


class Wires:
    """A shape as a graph of outputs and inputs, by the names of sources, operators and sinks."""

    def __init__(self, shape: PipelineShape) -> None:
        self.shape = shape
        self.edge_at: dict[InputName, str] = {}
        self.output_at: dict[InputName, OutputName | None] = {}
        """None: an older checkpoint does not tell."""
        ports: dict[str, int] = {}
        for name, edge in shape.edges.items():
            if isinstance(edge.rerouted, msgspec.UnsetType):
                port = ports.setdefault(edge.consumer, 0)
                ports[edge.consumer] = port + 1
                at = InputName(edge.consumer, port)
                self.edge_at[at] = name
                self.output_at[at] = self._output_of(edge, port)
        for name, operator in shape.operators.items():
            inputs = () if isinstance(operator.inputs, msgspec.UnsetType) else operator.inputs
            self.output_at |= {InputName(name, port): output for port, output in enumerate(inputs)}
        written = {} if isinstance(shape.written, msgspec.UnsetType) else shape.written
        for sink, outputs in written.items():
            self.output_at |= {InputName(sink, port): output for port, output in enumerate(outputs)}

    def _output_of(self, edge: EdgeShape, port: int) -> OutputName | None:
        consumer = self.shape.operators.get(edge.consumer)
        if consumer is not None and not isinstance(consumer.inputs, msgspec.UnsetType):
            return consumer.inputs[port]
        if edge.producer in self.shape.sources:
            return OutputName(edge.producer)
        made = [name for name, one in self._of_stage(edge.producer) if one.output == edge.columns]
        return OutputName(made[0]) if len(made) == 1 else None

    def _of_stage(self, stage: str) -> Iterable[tuple[str, OperatorShape]]:
        return ((name, one) for name, one in self.shape.operators.items() if one.stage == stage)

    def readers(self, output: OutputName) -> list[InputName]:
        return [at for at, found in self.output_at.items() if found == output]

    def behind(self, name: str) -> set[str]:
        """An operator or sink, and everything that its rows reach."""
        found, left = {name}, [name]
        while left:
            producer = left.pop()
            more = {
                at.consumer for at, made in self.output_at.items() if made is not None and made.producer == producer
            }
            left += more - found
            found |= more
        return found

    def ports(self, consumer: str) -> int:
        return sum(at.consumer == consumer for at in self.output_at)

    def columns_of(self, output: OutputName, at: InputName) -> Columns:
        """Of the rows that reach an input."""
        edge = self.edge_at.get(at)
        if edge is not None:
            return self.shape.edges[edge].columns
        return self.shape.operators[output.producer].output


@dataclass(frozen=True, slots=True)
class Rewiring:
    """Both graphs, and the names by which their parts are the same."""

    old: Wires
    new: Wires
    names: Mapping[str, str]
    """New by old, of everything that is in both."""
    drop: frozenset[str]
    """Edges of the checkpoint whose rows the user gives up."""
    sides: Mapping[OutputName, Columns] = field(default_factory=dict)


def flow(name: str, state: EdgeState, wiring: Rewiring) -> Flow:
    """Where the rows of an edge go."""
    if name in wiring.drop:
        line = PartFate("rows in flight", name, Forgotten("dropped"), state.rows_in_flight, state.bytes_in_flight)
        return Flow(name, line, dropped=True)
    edge = wiring.old.shape.edges[name]
    output, to = _origin(name, edge, wiring.old)
    places = _unchanged(name, edge, wiring) if output is None else _places(output, to, wiring)
    if not places:
        return Flow(name, _line(name, state, _nobody(name, output)))
    return _led(name, state, edge, places, wiring)


def _origin(name: str, edge: EdgeShape, old: Wires) -> tuple[OutputName | None, tuple[InputName, ...]]:
    """Whose output the rows are, and who was to read them."""
    if not isinstance(edge.rerouted, msgspec.UnsetType):
        return edge.rerouted.output, edge.rerouted.to
    (at,) = (at for at, found in old.edge_at.items() if found == name)
    return old.output_at[at], (at,)


_Place = tuple[OutputName, InputName]


def _unchanged(name: str, edge: EdgeShape, wiring: Rewiring) -> list[_Place]:
    """An older checkpoint does not tell which operator of a stage made the rows: the whole stage must be the same."""
    stages = {edge.producer, edge.consumer}
    old, new = wiring.old.shape, wiring.new.shape
    same = [{op for op, one in shape.operators.items() if one.stage in stages} for shape in (old, new)]
    found = [at for at, there in wiring.new.edge_at.items() if there == name]
    output = wiring.new.output_at[found[0]] if found else None
    if same[0] != same[1] or output is None:
        return []
    return [(output, found[0])]


def _places(output: OutputName, to: tuple[InputName, ...], wiring: Rewiring) -> list[_Place]:
    producer = wiring.names.get(output.producer)
    if producer is None:
        return _waiting_places(to, wiring)
    now = OutputName(producer, output.side)
    readers = wiring.new.readers(now)
    kept = [_same_reader(at, readers, wiring) for at in to]
    found = [at for at in kept if at is not None]
    if len(found) < len(to):
        before = {wiring.names.get(at.consumer) for at in wiring.old.readers(output)}
        fresh = _on_the_way([at for at in readers if at.consumer not in before], to, wiring)
        found = [*found, *fresh] if fresh else []
    return [(now, at) for at in dict.fromkeys(found)]


def _on_the_way(fresh: list[InputName], to: tuple[InputName, ...], wiring: Rewiring) -> list[InputName]:
    """Of new readers, those through which rows reach the consumers that they were waiting for; else all."""
    wanted = {wiring.names.get(at.consumer) for at in to} - {None}
    return [at for at in fresh if wanted & wiring.new.behind(at.consumer)] or fresh


def _same_reader(at: InputName, readers: list[InputName], wiring: Rewiring) -> InputName | None:
    name = wiring.names.get(at.consumer)
    mine = [reader for reader in readers if reader.consumer == name]
    same = [reader for reader in mine if reader.port == at.port]
    return next(iter(same or mine), None)


def _waiting_places(to: tuple[InputName, ...], wiring: Rewiring) -> list[_Place]:
    """The producer is gone: rows go to the inputs at which they were waiting, or to any input of a union."""
    places: list[_Place] = []
    for at in to:
        name = wiring.names.get(at.consumer)
        if name is None:
            return []
        same_ports = wiring.old.ports(at.consumer) == wiring.new.ports(name)
        union = name in wiring.new.shape.operators and wiring.new.shape.operators[name].kind == "pass"
        here = InputName(name, at.port if same_ports else 0)
        output = wiring.new.output_at.get(here)
        if output is None or not (same_ports or union) or (not union and output in _of_other_ports(at, wiring)):
            return []
        places.append((output, here))
    return places


def _of_other_ports(at: InputName, wiring: Rewiring) -> set[OutputName]:
    """What the other inputs of a consumer read: if one of these comes in here now, inputs have changed places."""
    others = [
        found
        for other, found in wiring.old.output_at.items()
        if found is not None and other.consumer == at.consumer and other.port != at.port
    ]
    return {OutputName(wiring.names.get(found.producer, ""), found.side) for found in others}


def _nobody(name: str, output: OutputName | None) -> Refused:
    drop = f"drop_in_flight=[{name!r}] gives them up; or run the old program and query.stop(drain=True)"
    if output is None:
        return Refused("the checkpoint is too old to tell which operator made them", drop)
    return Refused(f"no operator reads the output of {output.producer} that they are", drop)


def _led(name: str, state: EdgeState, edge: EdgeShape, places: list[_Place], wiring: Rewiring) -> Flow:
    into: list[str] = []
    again: dict[OutputName, list[InputName]] = {}
    changes: list[ColumnChange] = []
    gone = () if isinstance(edge.gone, msgspec.UnsetType) else edge.gone
    for output, at in places:
        columns = _columns_at(output, at, wiring)
        change = column_change(edge.columns, columns)
        there = wiring.new.edge_at.get(at)
        target = None if there is None else wiring.new.shape.edges[there]
        refused = _misfit(name, change, target, gone)
        if refused is not None:
            return Flow(name, _line(name, state, refused))
        changes.append(change)
        if there is not None and target is not None and _same_hashes(edge, target):
            into.append(there)
        else:
            again.setdefault(output, []).append(at)
    left_out = tuple(dict.fromkeys((*gone, *(column for change in changes for column, _ in change.removed))))
    rerouted = tuple(Rerouted(output=output, to=tuple(to)) for output, to in again.items())
    fate = _fate(name, into, again, changes)
    return Flow(name, _line(name, state, fate), tuple(into), rerouted, left_out)


def _columns_at(output: OutputName, at: InputName, wiring: Rewiring) -> Columns:
    if at not in wiring.new.edge_at and output in wiring.sides:
        return wiring.sides[output]
    return wiring.new.columns_of(output, at)


def _misfit(name: str, change: ColumnChange, target: EdgeShape | None, gone: tuple[str, ...]) -> Refused | None:
    option = f"drop_in_flight=[{name!r}] gives them up; or run the old program and query.stop(drain=True)"
    if change.changed:
        return Refused(str(ColumnChange(changed=change.changed)), option)
    for column, _ in change.added:
        if target is not None and column in target.keys:
            return Refused(f"they have no column {column}, which is a key now", option)
        if column in gone:
            return Refused(f"some of them have an older column {column}", option)
    return None


def _same_hashes(old: EdgeShape, new: EdgeShape) -> bool:
    """Whether the hash that each row carries leads it to the right subtask of the reader."""
    if old.broadcast or new.broadcast:
        return old.broadcast and new.broadcast
    before, after = dict(old.columns), dict(new.columns)
    return not new.keys or (old.keys == new.keys and all(before.get(key) == after.get(key) for key in new.keys))


def dealt_by_sink(edge: EdgeShape) -> bool:
    """Whether its rows carry lanes of a sink and no hash of columns: then its keys say so in words."""
    return not set(edge.keys) <= dict(edge.columns).keys()


def _fate(name: str, into: list[str], again: Mapping[OutputName, list[InputName]], changes: list[ColumnChange]) -> Fate:
    how = [
        f"once more from {output.producer} to {', '.join(dict.fromkeys(at.consumer for at in to))}"
        for output, to in again.items()
    ]
    if into and (into != [name] or again):
        how.append(f"to {', '.join(into)}")
    how += dict.fromkeys(str(change) for change in changes if str(change))
    if not how:
        return Carried()
    if len(into) == 1 and not again and len(how) == 1 and how[0] == f"to {into[0]}":
        return Renamed(name)
    return Converted("; ".join(how))


def _line(name: str, state: EdgeState, fate: Fate) -> PartFate:
    shown = name
    return PartFate("rows in flight", shown, fate, state.rows_in_flight, state.bytes_in_flight)
