"""A savepoint with another `max_parallelism`: every state file and every segment is written again, on Spark."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from penstock.engine.checkpoints import Checkpoints
from penstock.engine.savepoint import Savepoint
from penstock.engine.sourcelog import bring_source
from penstock.observe.tables.shapes import state_names, state_table
from penstock.protocol.eventtime import lowest
from penstock.protocol.evolve_edges import dealt_by_sink
from penstock.protocol.ids import next_checkpoint
from penstock.protocol.keygroups import KeyGroupRange, range_of
from penstock.protocol.layout import SEGMENTS, STATE, AttemptId, DataFile
from penstock.protocol.manifest import EdgeState, Manifest, PipelineShape, StageClock, StateFile, Timer
from penstock.records import Regrouped, RegroupTask
from penstock.store.base import Store
from penstock.store.staging import stage

PART_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class RegroupWork:
    """Tasks, all independent."""

    tasks: Sequence[RegroupTask]
    origin: Store
    target: Store


RunRegroup: TypeAlias = Callable[[RegroupWork], Sequence[Regrouped]]


def regrouped_savepoint(
    manifest: Manifest, origin: Store, target: Store, path: str, max_parallelism: int, run: RunRegroup
) -> Savepoint:
    """A savepoint of a checkpoint for so many key groups. There is none under its name before it is whole.

    Raises: `SavepointRefused`, `MissingFile`, `CorruptFile`, `StorageFailed`.
    """
    started = time.monotonic()
    staging = stage(target)
    try:
        tasks = tuple(_tasks(manifest, origin, max_parallelism))
        made = run(RegroupWork(tasks, origin, staging.store))
        after = _manifest(manifest, made, max_parallelism)
        copied = bring_source(origin, staging.store, manifest.source.batch_id)
        written = Checkpoints(staging.store).publish(after)
        staging.finish()
    except BaseException:
        staging.discard()
        raise
    entries = after.entries()
    return Savepoint(
        path=path,
        checkpoint=after.checkpoint,
        rows_in_flight=after.rows_in_flight,
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries) + copied + written,
        duration_s=time.monotonic() - started,
    )


def _tasks(manifest: Manifest, origin: Store, new: int) -> Iterator[RegroupTask]:
    old, run = manifest.max_parallelism, f"r{uuid.uuid4().hex[:12]}"
    number = 0

    def paths(folder: str, name: str) -> str:
        by = AttemptId(manifest.checkpoint, manifest.generation, number, run)
        return (
            DataFile(folder, name, by, 0).path.replace("{", "{{").replace("}", "}}").removesuffix("-0.arrow")
            + "-{}.arrow"
        )

    for edge, state in manifest.edges.items():
        for segment in state.segments:
            if segment.rows_left:
                yield RegroupTask(old, new, paths(SEGMENTS, edge), edge, segment)
                number += 1
    for operator, part in state_names(manifest):
        table = state_table(manifest, origin, operator, part)
        name = f"{operator}/{part}" if part else operator
        size = sum(file.bytes for file in table.files)
        parts = max(1, min(old, -(-size // PART_BYTES))) if part != "progress" else 1
        for piece in range(parts if table.files else 0):
            yield RegroupTask(
                old,
                new,
                paths(STATE, name),
                name,
                kind=table.shape.kind,
                part=part,
                schema=table.schema,
                user_key=(table.key_begin, table.key_count),
                files=table.files,
                groups=range_of(piece, parts, old),
            )
            number += 1


def _manifest(manifest: Manifest, made: Sequence[Regrouped], new: int) -> Manifest:
    state: dict[str, tuple[StateFile, ...]] = {}
    for one in made:
        if one.files:
            state[one.name] = (*state.get(one.name, ()), *one.files)
    edges = {name: _edge(name, edge, made) for name, edge in manifest.edges.items()}
    assert all(edges[name].rows_in_flight == edge.rows_in_flight for name, edge in manifest.edges.items())
    waiting = manifest.rows_in_flight > 0
    return msgspec.structs.replace(
        manifest,
        max_parallelism=new,
        shape=_shape(manifest),
        parallelism={stage: min(count, new) for stage, count in manifest.parallelism.items()},
        state=state,
        edges=edges,
        stages={
            name: StageClock(
                watermark=clock.watermark,
                timers={operator: _earliest(timers, new) for operator, timers in clock.timers.items()},
                # Rows come in other lanes than before, as after a rescale.
                rescaled=next_checkpoint(manifest.checkpoint) if waiting else clock.rescaled,
            )
            for name, clock in manifest.stages.items()
        },
    )


def _shape(manifest: Manifest) -> PipelineShape:
    """Rows that a sink has dealt out by lanes of its own are dealt out once more by the pipeline that goes on: for it,
    their edge has other keys than its own."""
    edges = dict(manifest.shape.edges)
    for name, edge in edges.items():
        if dealt_by_sink(edge) and manifest.edges[name].segments:
            keys = (*edge.keys, f"of {manifest.max_parallelism} key groups")
            edges[name] = msgspec.structs.replace(edge, keys=keys)
    return msgspec.structs.replace(manifest.shape, edges=edges)


def _edge(name: str, edge: EdgeState, made: Sequence[Regrouped]) -> EdgeState:
    segments = tuple(one.segment for one in made if one.name == name and one.segment is not None)
    return msgspec.structs.replace(edge, segments=segments)


def _earliest(timers: Sequence[Timer], new: int) -> tuple[Timer, ...]:
    """One for all key groups: a moment may come too early, never too late."""
    if not timers:
        return ()
    events = [timer.event_time for timer in timers if timer.event_time is not None]
    moments = [timer.processing_time for timer in timers if timer.processing_time is not None]
    return (
        Timer(
            groups=KeyGroupRange(0, new),
            event_time=lowest(events) if events else None,
            processing_time=min(moments) if moments else None,
        ),
    )
