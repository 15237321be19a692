"""Starting from a checkpoint: the empty one, where the source stands, what the user drops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from penstock.protocol.ids import NO_CHECKPOINT, NO_GENERATION, BatchId
from penstock.protocol.manifest import (
    FORMAT_VERSION,
    EdgeShape,
    EdgeState,
    Manifest,
    PipelineShape,
    SinkState,
    SourcePosition,
)


@dataclass(frozen=True, slots=True)
class TakeBatch:
    """The micro-batch follows the last one ingested."""


@dataclass(frozen=True, slots=True)
class SkipBatch:
    """The micro-batch is already part of the checkpoint: Spark replays it after a restart."""


@dataclass(frozen=True, slots=True)
class RefuseBatch:
    """The source's checkpoint does not fit ours."""

    why: str


def judge_batch(
    manifest: Manifest, batch_id: BatchId, offsets_digest: str | None, query_id: str | None
) -> TakeBatch | SkipBatch | RefuseBatch:
    """Whether an offered micro-batch is the next one, a replay, or from a source checkpoint that does not fit."""
    position = manifest.source
    if position.query_id is not None and query_id is not None and position.query_id != query_id:
        return RefuseBatch(f"it belongs to the streaming query {query_id}, ours was {position.query_id}")
    last = -1 if position.batch_id is None else position.batch_id
    if batch_id == last + 1:
        return TakeBatch()
    if batch_id == last:
        if position.offsets_digest not in (None, offsets_digest):
            return RefuseBatch("its offsets are not those that were ingested under the same batch id")
        return SkipBatch()
    return RefuseBatch("it is older" if batch_id < last else "batches in between are missing")


def first_manifest(
    *, identity: str, library: str, max_parallelism: int, shape: PipelineShape, created_at: str
) -> Manifest:
    """The empty checkpoint a new query starts from; it is never published itself."""
    return Manifest(
        format=FORMAT_VERSION,
        library=library,
        identity=identity,
        checkpoint=NO_CHECKPOINT,
        parent=None,
        generation=NO_GENERATION,
        created_at=created_at,
        max_parallelism=max_parallelism,
        parallelism={},
        shape=shape,
        source=SourcePosition(),
        edges={name: EdgeState() for name in shape.edges},
        state={},
        sinks={name: SinkState() for name in shape.sinks},
    )


@dataclass(frozen=True, slots=True)
class Dropped:
    """In-flight records of one edge that a user had thrown away."""

    edge: str
    rows: int
    bytes: int


def edges_named(shape: PipelineShape, names: Iterable[str]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Edges by their own names, or by that of an operator whose stage they feed; and the names that mean none."""
    edges: set[str] = set()
    unknown = []
    for name in names:
        operator = shape.operators.get(name)
        stage = None if operator is None else operator.stage
        found = {edge for edge, ends in shape.edges.items() if edge == name or _feeds(ends, name, stage)}
        edges |= found
        if not found:
            unknown.append(name)
    return frozenset(edges), tuple(unknown)


def _feeds(edge: EdgeShape, operator: str, stage: str | None) -> bool:
    """Whether rows of an edge are on their way to an operator, or to the first one of its stage. Rows that go once more
    are with their producer, which is done with them."""
    if isinstance(edge.rerouted, msgspec.UnsetType):
        return edge.consumer == stage
    return any(at.consumer in (operator, stage) for at in edge.rerouted.to)
