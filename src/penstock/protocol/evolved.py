"""The checkpoint as a changed pipeline goes on from it: the same files under the names that it has for them.

Nothing is written or read here but the manifest. Records still add up on every edge: what is in flight was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.protocol.eventtime import lowest
from penstock.protocol.evolve import Evolution
from penstock.protocol.evolve_edges import Flow
from penstock.protocol.ids import next_checkpoint
from penstock.protocol.manifest import (
    EdgeShape,
    EdgeState,
    Manifest,
    PipelineShape,
    Rerouted,
    Segment,
    SinkState,
    SourceClock,
    StageClock,
)
from penstock.protocol.recover import Dropped

REROUTED = "again"
"""Edges of rerouted rows begin with it."""


def evolved(base: Manifest, shape: PipelineShape, evolution: Evolution) -> Manifest:
    """`base` for a pipeline of this shape; nothing of the decision may be refused."""
    assert not evolution.refused, "a refused change is not carried out"
    rerouted = _rerouted(shape, evolution)
    edges = {name: _edge(name, edge, base, evolution) for name, edge in shape.edges.items()}
    edges |= {name: _moved(base.edges[flow.edge]) for name, (flow, _) in rerouted.items()}
    after = msgspec.structs.replace(
        base,
        shape=_with_leftovers(base, shape, evolution, rerouted),
        edges=edges,
        state={
            new: base.state[old]
            for change in evolution.operators.values()
            for new, old in change.tables.items()
            if old in base.state
        },
        sinks={
            name: base.sinks[evolution.sinks[name]] if name in evolution.sinks else SinkState() for name in shape.sinks
        },
        sources=_source_clocks(base, shape, evolution),
        stages=_stage_clocks(base, shape, evolution),
        parallelism=_parallelism(base, shape, evolution),
        counters=_counters(base, evolution),
    )
    assert all(edge.accepted == edge.consumed + edge.dropped + edge.rows_in_flight for edge in edges.values())
    return after


def dropped_rows(base: Manifest, evolution: Evolution) -> tuple[Dropped, ...]:
    """What the user gave up by name."""
    return tuple(
        Dropped(flow.edge, base.edges[flow.edge].rows_in_flight, base.edges[flow.edge].bytes_in_flight)
        for flow in evolution.flows
        if flow.dropped
    )


def _rerouted(shape: PipelineShape, evolution: Evolution) -> dict[str, tuple[Flow, Rerouted]]:
    found: dict[str, tuple[Flow, Rerouted]] = {}
    for flow in evolution.flows:
        for again in flow.rerouted:
            stem = name = f"{REROUTED}-{flow.edge.removeprefix(f'{REROUTED}-')}"[:200]
            count = 1
            while name in shape.edges or name in found:
                count += 1
                name = f"{stem}-{count}"
            found[name] = (flow, again)
    return found


def _with_leftovers(
    base: Manifest,
    shape: PipelineShape,
    evolution: Evolution,
    rerouted: Mapping[str, tuple[Flow, Rerouted]],
) -> PipelineShape:
    """The shape with what only the checkpoint knows: rows to be rerouted, columns that files still have."""
    edges = dict(shape.edges)
    for flow in evolution.flows:
        for name in flow.into:
            if flow.gone:
                edges[name] = msgspec.structs.replace(edges[name], gone=_joined(edges[name].gone, flow.gone))
    for name, (flow, again) in rerouted.items():
        old = base.shape.edges[flow.edge]
        columns = tuple(column for column in old.columns if column[0] not in flow.gone)
        edges[name] = EdgeShape(
            producer=again.output.producer,
            consumer=again.output.producer,
            keys=(),
            columns=columns,
            rerouted=again,
            gone=flow.gone or msgspec.UNSET,
        )
    operators = {
        name: msgspec.structs.replace(one, gone=dict(evolution.operators[name].gone) or msgspec.UNSET)
        for name, one in shape.operators.items()
    }
    return msgspec.structs.replace(shape, operators=operators, edges=edges)


def _joined(known: tuple[str, ...] | msgspec.UnsetType, more: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*(() if isinstance(known, msgspec.UnsetType) else known), *more)))


def _edge(name: str, edge: EdgeShape, base: Manifest, evolution: Evolution) -> EdgeState:
    same = _is_same(name, edge, base, evolution)
    prior = base.edges[name] if same else EdgeState()
    segments: tuple[Segment, ...] = ()
    for flow in evolution.flows:
        if name in flow.into:
            segments = (*segments, *base.edges[flow.edge].segments)
    dropped = prior.dropped + sum(
        prior.rows_in_flight for flow in evolution.flows if flow.dropped and flow.edge == name and prior.segments
    )
    after = msgspec.structs.replace(prior, dropped=dropped, segments=segments)
    accepted = after.consumed + after.dropped + after.rows_in_flight
    watermark = prior.watermark if same else _first_watermark(edge, segments, base, evolution)
    return msgspec.structs.replace(after, accepted=accepted, watermark=watermark)


def _is_same(name: str, edge: EdgeShape, base: Manifest, evolution: Evolution) -> bool:
    """Whether an edge of the checkpoint with this name has the same ends."""
    old = base.shape.edges.get(name)
    if old is None or name not in base.edges:
        return False
    names = evolution.names
    return (names.get(old.producer), names.get(old.consumer)) == (edge.producer, edge.consumer)


def _first_watermark(
    edge: EdgeShape, segments: tuple[Segment, ...], base: Manifest, evolution: Evolution
) -> int | None:
    """Of an edge that was not there: its consumer's time must not go back, nor pass rows that wait."""
    was = {after: before for before, after in evolution.names.items()}
    for end in (edge.consumer, edge.producer):
        clock = base.stages.get(was.get(end, ""), StageClock())
        if clock.watermark is not None:
            waiting = [segment.watermark for segment in segments if segment.watermark is not None]
            return lowest((clock.watermark, *waiting))
    return None


def _moved(edge: EdgeState) -> EdgeState:
    """The rows that are left of an edge, on an edge of their own."""
    return EdgeState(accepted=edge.rows_in_flight, segments=edge.segments, watermark=edge.watermark)


def _source_clocks(base: Manifest, shape: PipelineShape, evolution: Evolution) -> dict[str, SourceClock]:
    """A new source begins where the time of its readers is: their time never goes back."""
    clocks = {names: base.sources[old] for old, names in evolution.names.items() if old in base.sources}
    was = {after: before for before, after in evolution.names.items()}
    for source in shape.sources:
        if source in was:
            continue
        readers = [edge.consumer for edge in shape.edges.values() if edge.producer == source]
        marks = [base.stages[was[name]].watermark for name in readers if was.get(name) in base.stages]
        known = [mark for mark in marks if mark is not None]
        if known:
            clocks[source] = SourceClock(watermark=max(known))
    return clocks


def _stage_clocks(base: Manifest, shape: PipelineShape, evolution: Evolution) -> dict[str, StageClock]:
    was = {after: before for before, after in evolution.names.items()}
    stages = dict.fromkeys(operator.stage for operator in shape.operators.values())
    moved = (evolution.changes or base.shape.edges != shape.edges) and base.rows_in_flight > 0
    clocks = {}
    for stage in stages:
        clock = base.stages.get(was.get(stage, ""))
        if clock is None and not moved:
            continue
        clock = clock or StageClock()
        timers = {
            evolution.names[name]: found
            for name, found in clock.timers.items()
            if name in evolution.names and evolution.operators[evolution.names[name]].carried
        }
        # Rows may come in other lanes than before, as after a rescale.
        rescaled = next_checkpoint(base.checkpoint) if moved else clock.rescaled
        clocks[stage] = StageClock(watermark=clock.watermark, timers=timers, rescaled=rescaled)
    return clocks


def _parallelism(base: Manifest, shape: PipelineShape, evolution: Evolution) -> dict[str, int]:
    stages = {operator.stage for operator in shape.operators.values()}
    renamed = ((evolution.names.get(stage), count) for stage, count in base.parallelism.items())
    return {stage: count for stage, count in renamed if stage is not None and stage in stages}


def _counters(base: Manifest, evolution: Evolution) -> dict[str, int]:
    """What operators counted goes on under their names; what is given up is counted too."""
    counters: dict[str, int] = {}
    for name, count in base.counters.items():
        operator, dot, what = name.rpartition(".")
        counters[f"{evolution.names.get(operator, operator)}{dot}{what}"] = count
    for line in evolution.lines:
        if line.word == "forgotten" and line.rows:
            name = f"{line.name}.{'dropped' if line.kind == 'rows in flight' else 'forgotten'}"
            counters[name] = counters.get(name, 0) + line.rows
    return counters
