"""What the stages of an epoch have to read, and up to where their event time has come."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.graph.pipeline import Pipeline
from penstock.graph.stages import Stage
from penstock.protocol.advance import Draft
from penstock.protocol.eventtime import highest, lowest
from penstock.protocol.ids import NO_CHECKPOINT
from penstock.protocol.manifest import EdgeState, SourceClock, StageClock
from penstock.protocol.order import held_after, held_before
from penstock.protocol.plan import InputFacts


def stage_inputs(stage: Stage, draft: Draft, *, live: bool = False) -> dict[str, InputFacts]:
    before = held_before(draft.edges, stage.lanes_behind, draft.stages.get(stage.name, StageClock()))
    earlier_first = is_rerouting(stage, draft)
    inputs = {
        edge.name: InputFacts(
            draft.edges[edge.name],
            live=live and edge.from_source,
            broadcast=edge.broadcast,
            timed=edge.timed,
            after=NO_CHECKPOINT if earlier_first else held_after(draft.edges, edge.waits_for),
            before=None if edge.broadcast else before,
        )
        for edge in stage.inputs
    }
    return {**inputs, **{part.edge.name: InputFacts(draft.edges[part.edge.name]) for part in stage.leftovers}}


def is_rerouting(stage: Stage, draft: Draft) -> bool:
    """Whether rows of an earlier pipeline come first: whatever else the stage has is held until they are through."""
    return any(draft.edges[part.edge.name].segments for part in stage.leftovers)


def with_waiting(stage: Stage, draft: Draft, watermark: int | None) -> int | None:
    """What new segments carry: rows that are emitted once more are not later than they were."""
    waiting = [segment.watermark for part in stage.leftovers for segment in draft.edges[part.edge.name].segments]
    return lowest((watermark, *waiting))


def with_source_watermarks(
    pipeline: Pipeline, edges: Mapping[str, EdgeState], clocks: Mapping[str, SourceClock]
) -> dict[str, EdgeState]:
    """The edges with what their sources' clocks say. In a changed pipeline a reader may be further than a source: its
    time does not go back."""
    marks = {edge.name: clocks[edge.producer].watermark for edge in pipeline.edges() if edge.from_source and edge.timed}
    after = {name: highest((edge.watermark, marks.get(name))) for name, edge in edges.items()}
    return {
        # One that stays as it is has counted its rows already.
        name: edge if after[name] == edge.watermark else msgspec.structs.replace(edge, watermark=after[name])
        for name, edge in edges.items()
    }
