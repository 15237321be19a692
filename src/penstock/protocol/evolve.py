"""Changing a pipeline: what becomes of every part of a checkpoint in another pipeline, given what the user allowed.

Parts are matched by name. State follows its operator (`evolve_state`), rows in flight follow their producer
(`evolve_edges`). Nothing that the checkpoint holds is lost unless the user named it. `evolved` makes the manifest that
the decision describes; the checkpoint itself stays as it is, so that going back is a restore.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock.protocol.columns import Columns
from penstock.protocol.evolve_edges import Flow, Rewiring, Wires, flow
from penstock.protocol.evolve_state import KeptOperator, OperatorChange, StateRules, drop, keep, table_name
from penstock.protocol.fates import Carried, Fate, Forgotten, New, PartFate, Refused, Renamed
from penstock.protocol.manifest import Manifest, OperatorShape, OutputName, PipelineShape
from penstock.protocol.recover import edges_named


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the user lets happen to a checkpoint."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    """New names by old ones: of operators, sources and sinks."""
    forget: frozenset[str] = frozenset()
    """Operators, sinks, or `operator.part` of state, that are not in the pipeline any more."""
    reset: frozenset[str] = frozenset()
    """Operators and sinks that are in the pipeline and begin anew."""
    migrate: frozenset[str] = frozenset()
    """Tables of state, as the pipeline calls them, that a function of the user makes anew where they do not fit."""
    migrate_always: bool = False
    """Also where they fit: one named checkpoint is migrated."""
    drop_in_flight: Literal["all"] | tuple[str, ...] = ()
    """Edges, or operators behind them, as the checkpoint names them."""


@dataclass(frozen=True, slots=True)
class ReaderCounts:
    """Of how many readers each source is made: those of the checkpoint, of earlier pipelines, and of the new one."""

    were: Mapping[str, int]
    parked: Mapping[str, int]
    now: Mapping[str, int]
    seeded: Mapping[str, str] = field(default_factory=dict)
    """By source that begins where another query ended, what to tell about it."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The pipeline that is to go on."""

    shape: PipelineShape
    rules: Mapping[str, StateRules] = field(default_factory=dict)
    """By table of state."""
    outputs: Mapping[OutputName, Columns] = field(default_factory=dict)
    sources_by_name: bool = False
    """Whether the source's own log knows sources by name; if not, it knows them by their places."""
    in_table: Mapping[str, int] = field(default_factory=dict)
    """By sink of the checkpoint, the last checkpoint that the commit log found in its table."""
    fork: bool = False
    """Whether it begins beside the pipeline that wrote the checkpoint, which keeps its sinks."""
    fixed: str = ""
    """Why sources must stay in their places, where that is not simply the log."""
    readers: ReaderCounts | None = None
    """Of a feed that tells."""
    seen_until: str = ""
    """The largest event time that sources have delivered, for people."""


@dataclass(frozen=True, slots=True)
class BadName:
    """An option that names something it cannot mean; the query does not start."""

    option: str
    why: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Evolution:
    """The decision."""

    lines: tuple[PartFate, ...]
    names: Mapping[str, str]
    """New names by old ones, of everything that goes on."""
    flows: tuple[Flow, ...]
    operators: Mapping[str, OperatorChange]
    """By name in the pipeline, or in the checkpoint where it ends."""
    sinks: Mapping[str, str]
    """By name in the pipeline, the name in the checkpoint of those that go on."""

    @property
    def refused(self) -> tuple[PartFate, ...]:
        return tuple(line for line in self.lines if line.refused)

    @property
    def migrated(self) -> dict[str, str]:
        """Tables that a function makes anew: by name in the pipeline, the name in the checkpoint."""
        return {name: change.tables[name] for change in self.operators.values() for name in sorted(change.migrated)}

    @property
    def changes(self) -> bool:
        """Whether anything is other than it was."""
        return any(not isinstance(line.fate, Carried) for line in self.lines)


def evolve(base: Manifest, new: Changed, allowed: Allowed) -> Evolution | BadName:
    """What becomes of each part of `base`."""
    bad = next(_bad_names(base.shape, new.shape, allowed), None)
    if bad is not None:
        return bad
    names = _names(base.shape, new.shape, allowed)
    operators = dict(_operators(base, new, allowed, names))
    flows = tuple(_flows(base, new, allowed, names))
    sinks, sink_lines = _sinks(base, new, allowed, names)
    lines = (
        *_sources(base, new, allowed, names),
        *(line for change in operators.values() for line in change.lines),
        *(found.line for found in flows),
        *sink_lines,
    )
    return Evolution(lines, names, flows, operators, sinks)


def _parts(shape: PipelineShape) -> frozenset[str]:
    return frozenset((*shape.sources, *shape.operators, *shape.sinks))


def _bad_names(old: PipelineShape, new: PipelineShape, allowed: Allowed) -> Iterator[BadName]:
    before, after = _parts(old), _parts(new)
    if len(set(allowed.renamed.values())) < len(allowed.renamed):
        twice = sorted(name for name in set(allowed.renamed.values()) if [*allowed.renamed.values()].count(name) > 1)
        yield BadName("renamed", f"two parts are renamed to {twice[0]!r}", "give each a name of its own")
    for name, to in allowed.renamed.items():
        what = f"{name!r} is renamed to {to!r}"
        if to not in after:
            yield BadName("renamed", f"{what}, which is not in the pipeline", _known(after))
        elif name in after:
            yield BadName("renamed", f"{what}, and {name!r} is in the pipeline still", "rename what the pipeline lacks")
        elif name in before and to in before:
            yield BadName(
                "renamed",
                f"{what}, and the checkpoint has {to!r} already",
                f"forget=[{to!r}] is no way out: give the operator a name that the checkpoint does not have",
            )
        elif name in before and _family(old, name) != _family(new, to):
            yield BadName(
                "renamed", f"{what}: the one is a {_family(old, name)}, the other a {_family(new, to)}", _known(after)
            )
    # A sink that is reset ends and begins: rows that wait for its table may be given up.
    for name in sorted((allowed.forget & after) - (allowed.reset & frozenset(new.sinks))):
        yield BadName("forget", f"{name!r} is in the pipeline", f"reset=[{name!r}] lets it begin with empty state")
    for name in sorted(allowed.reset - after):
        yield BadName("reset", f"{name!r} is not in the pipeline", _known(after))
    tables = frozenset(table_name(name, part) for name, shape in new.operators.items() for part in shape.state)
    for name in sorted(allowed.migrate - tables):
        yield BadName("migrate", f"{name!r} is no state of the pipeline", _known(tables))
    for name in sorted(allowed.migrate & allowed.reset):
        yield BadName("migrate", f"{name!r} is in reset= too", "choose one of them")


def _known(names: frozenset[str]) -> str:
    return f"name one of {', '.join(sorted(names))}"


def _family(shape: PipelineShape, name: str) -> str:
    return "source" if name in shape.sources else "sink" if name in shape.sinks else "operator"


def _names(old: PipelineShape, new: PipelineShape, allowed: Allowed) -> dict[str, str]:
    names = {}
    for name in sorted(_parts(old)):
        to = allowed.renamed.get(name, name)
        if to in _parts(new) and _family(old, name) == _family(new, to):
            names[name] = to
    return names


def _sources(base: Manifest, new: Changed, allowed: Allowed, names: Mapping[str, str]) -> Iterator[PartFate]:
    old, now = list(base.shape.sources), list(new.shape.sources)
    places = [names.get(name) for name in old]
    if not new.sources_by_name and base.source.batch_id is not None and places != now:
        yield from _misplaced(old, now, names, new.fixed)
        return
    for name in old:
        if name not in names:
            yield PartFate("source", name, Forgotten("not read any more; where it was read up to is kept"))
    was = {after: before for before, after in names.items() if before in base.shape.sources}
    for name in now:
        yield PartFate("source", name, _source(name, was.get(name), new.readers, allowed.reset))


def _source(name: str, was: str | None, readers: ReaderCounts | None, reset: frozenset[str]) -> Fate:
    if name in reset:
        return New("reset: read from its beginning")
    known = None if readers is None else readers.parked.get(name) if was is None else readers.were.get(was)
    if readers is not None and known is not None and known != readers.now[name]:
        return Refused(
            f"it was made of {known} streaming readers, now of {readers.now[name]}: offsets cannot be told apart",
            "read the others with a pen.read(…, name=…) of their own",
        )
    if was is not None:
        return Carried() if was == name else Renamed(was)
    if known is not None:
        return New("comes back: read on from where it was")
    return New("read from its beginning" if readers is None else readers.seeded.get(name, "read from its beginning"))


def _misplaced(old: list[str], now: list[str], names: Mapping[str, str], fixed: str) -> Iterator[PartFate]:
    why = fixed or "Spark's offset log of this checkpoint knows sources by their places, so they must stay as they are"
    option = "see 'Sources' in the guide on changing a pipeline"
    if sorted(names[name] for name in old if name in names) == sorted(now) and len(old) == len(now):
        before = ", ".join(names[name] for name in old)
        yield PartFate("source", ", ".join(now), Refused(f"{why}: {before}", "read them in that order"))
        return
    for name in old:
        if name not in names:
            yield PartFate("source", name, Refused(f"not in the pipeline; {why}", option))
    for name in now:
        if name not in names.values():
            yield PartFate("source", name, Refused(f"not in the checkpoint; {why}", option))


def _operators(
    base: Manifest, new: Changed, allowed: Allowed, names: Mapping[str, str]
) -> Iterator[tuple[str, OperatorChange]]:
    old = base.shape
    for name, shape in old.operators.items():
        if name not in names:
            taken_by = _family(new.shape, name) if name in _parts(new.shape) else ""
            yield name, drop(name, shape, base.state, allowed.forget, taken_by)
    was = {after: before for before, after in names.items()}
    for name, shape in new.shape.operators.items():
        before = was.get(name)
        if before is None:
            states = [PartFate("state", name, New())] if shape.state else []
            yield name, OperatorChange((PartFate("operator", name, New()), *states), carried=False)
            continue
        yield (
            name,
            keep(
                KeptOperator(
                    before,
                    name,
                    old.operators[before],
                    shape,
                    _input_keys(old, old.operators[before].stage),
                    _input_keys(new.shape, shape.stage),
                    base.state,
                    new.rules,
                    allowed.forget,
                    name in allowed.reset,
                    allowed.migrate,
                    allowed.migrate_always,
                    new.seen_until,
                    _crossed(old.operators[before], shape, names),
                )
            ),
        )


def _crossed(old: OperatorShape, new: OperatorShape, names: Mapping[str, str]) -> str:
    """The producer of an output that came in at another place before."""
    if isinstance(old.inputs, msgspec.UnsetType) or isinstance(new.inputs, msgspec.UnsetType):
        return ""
    were = [OutputName(names.get(output.producer, ""), output.side) for output in old.inputs]
    for port, output in enumerate(new.inputs):
        if output in were and (port >= len(were) or were[port] != output):
            return output.producer
    return ""


def _input_keys(shape: PipelineShape, stage: str) -> tuple[tuple[str, ...], ...]:
    return tuple(
        edge.keys for edge in shape.edges.values() if edge.consumer == stage and edge.keys and not edge.broadcast
    )


def _flows(base: Manifest, new: Changed, allowed: Allowed, names: Mapping[str, str]) -> Iterator[Flow]:
    shape = base.shape
    dropped = tuple(shape.edges) if allowed.drop_in_flight == "all" else allowed.drop_in_flight
    edges, _ = edges_named(shape, dropped)
    wiring = Rewiring(Wires(shape), Wires(new.shape), names, edges, new.outputs)
    for name, state in base.edges.items():
        if state.segments:
            yield flow(name, state, wiring)


def _sinks(
    base: Manifest, new: Changed, allowed: Allowed, names: Mapping[str, str]
) -> tuple[dict[str, str], list[PartFate]]:
    if new.fork:
        return {}, [
            *(
                PartFate("sink", name, Forgotten("stays with the original"))
                for name in base.shape.sinks
                if name not in new.shape.sinks
            ),
            *(PartFate("sink", name, New("a fork: gets rows from now on")) for name in new.shape.sinks),
        ]
    kept: dict[str, str] = {}
    lines = []
    was = {after: before for before, after in names.items() if before in base.shape.sinks}
    ends = [name for name in base.shape.sinks if name not in names]
    ends += [was[name] for name in new.shape.sinks if name in was and name in allowed.reset]
    for name in ends:
        waiting = [part for part in base.sinks[name].pending if part.checkpoint > new.in_table.get(name, -1)]
        pending = sum(commit.rows for commit in waiting)
        if pending and name not in allowed.forget:
            first = waiting[0].checkpoint
            lines.append(
                PartFate(
                    "sink",
                    name,
                    Refused(
                        f"rows of checkpoint {first} and later are not in its table yet",
                        "start the old program once more and stop it, which commits them;"
                        f" or forget=[{name!r}] gives them up",
                    ),
                    pending,
                )
            )
        else:
            lines.append(PartFate("sink", name, Forgotten("all of it is in the table" if not pending else ""), pending))
    for name in new.shape.sinks:
        if name not in was:
            lines.append(PartFate("sink", name, New("gets rows from now on")))
        elif name in allowed.reset:
            lines.append(PartFate("sink", name, New("reset: gets rows from now on")))
        elif was[name] != name:
            lines.append(PartFate("sink", name, _renamed_sink(was[name], name)))
        else:
            kept[name] = name
            lines.append(PartFate("sink", name, Carried()))
    return kept, lines


def _renamed_sink(before: str, after: str) -> Refused:
    """A table knows the commits of a sink by its name: under another one it would take pending rows a second time."""
    return Refused(
        f"it was called {before!r}, and the table knows its commits by that name",
        f"keep the name: write(…, name={before!r});"
        f" or leave {before!r} out of renamed=, and {after!r} gets rows from now on",
    )
