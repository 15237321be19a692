"""Checkpoints made of shapes, to ask what becomes of them in another pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.protocol.evolve import Allowed, BadName, Changed, Evolution, evolve
from penstock.protocol.evolve_state import table_name
from penstock.protocol.fates import PartFate
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import EdgeState, Manifest, PipelineShape, Segment, Span, StateFile
from penstock.protocol.recover import first_manifest

GROUPS = KeyGroupRange(0, 4)


def in_flight(rows: int, path: str = "segments/e/f") -> EdgeState:
    if not rows:
        return EdgeState()
    span = Span(ranges=(GROUPS,), cursor=0, rows_left=rows)
    segment = Segment(
        path=path, epoch=CheckpointId(1), producer=0, sequence=0, rows=rows, bytes=8 * rows, checksum="", spans=(span,)
    )
    return EdgeState(accepted=rows, segments=(segment,))


def state_file(path: str, rows: int) -> StateFile:
    return StateFile(path=path, rows=rows, bytes=16 * rows, checksum="", ranges=(GROUPS,))


def checkpoint_of(
    shape: PipelineShape, *, state_rows: int = 10, in_flight_rows: Mapping[str, int] | None = None, **more: Any
) -> Manifest:
    """A checkpoint with state in every table, and rows in flight where that is said."""
    flying = in_flight_rows or {}
    empty = first_manifest(identity="i", library="0", max_parallelism=4, shape=shape, created_at="")
    tables = [table_name(name, part) for name, one in shape.operators.items() for part in one.state]
    return msgspec.structs.replace(
        empty,
        checkpoint=CheckpointId(5),
        state={name: (state_file(f"state/{name}/f", state_rows),) for name in tables if state_rows},
        edges={name: in_flight(flying.get(name, 0), f"segments/{name}/f") for name in shape.edges},
        **more,
    )


def lines(
    stored: Manifest | PipelineShape, current: PipelineShape | Changed, allowed: Allowed | None = None
) -> dict[str, PartFate]:
    """What becomes of each part, by kind and name."""
    base = checkpoint_of(stored) if isinstance(stored, PipelineShape) else stored
    new = Changed(current, sources_by_name=True) if isinstance(current, PipelineShape) else current
    decided = evolve(base, new, allowed or Allowed())
    assert isinstance(decided, Evolution), decided
    return {f"{line.kind} {line.name}": line for line in decided.lines}


def words(
    stored: Manifest | PipelineShape, current: PipelineShape | Changed, allowed: Allowed | None = None
) -> dict[str, str]:
    return {name: line.word for name, line in lines(stored, current, allowed).items()}


def bad_name(stored: PipelineShape, current: PipelineShape, allowed: Allowed) -> BadName:
    decided = evolve(checkpoint_of(stored), Changed(current, sources_by_name=True), allowed)
    assert isinstance(decided, BadName), decided
    return decided
