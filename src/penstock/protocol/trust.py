"""Whether a manifest holds together. It may come from anywhere, and a right checksum alone proves nothing.

Numbers are bounded where they are declared (`penstock.protocol.manifest`); here is what takes two of them to see, and
names: those of files stay in the folders that hold such files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.layout import SEGMENTS, STATE, is_in_data_folder, is_owner
from penstock.protocol.manifest import EdgeState, Manifest, Segment, SinkState, StateFile

_IDENTITY = re.compile(r"[0-9A-Za-z_-]{1,64}")


def why_not(manifest: Manifest) -> str | None:
    """Why a manifest cannot be one that Penstock has written; None if it may be."""
    return next(_faults(manifest), None)


def _faults(manifest: Manifest) -> Iterator[str]:
    if not _IDENTITY.fullmatch(manifest.identity):
        yield "its identity is not one"
    if manifest.parent is not None and manifest.parent >= manifest.checkpoint:
        yield f"its parent {manifest.parent} is not older than {manifest.checkpoint}"
    for stage, subtasks in manifest.parallelism.items():
        if subtasks > manifest.max_parallelism:
            yield f"{stage} has {subtasks} subtasks, max_parallelism is {manifest.max_parallelism}"
    for name in (*manifest.edges, *manifest.sinks):
        if not is_owner(name):
            yield f"{name!r} cannot be the name of a folder"
    for name, edge in manifest.edges.items():
        yield from (f"edge {name}: {fault}" for fault in _edge_faults(edge, manifest))
    for name, files in manifest.state.items():
        for file in files:
            yield from (f"state {name}: {fault}" for fault in _file_faults(file))
            yield from (f"state {name}: {fault}" for fault in _range_faults(file.ranges, manifest.max_parallelism))
    for name, sink in manifest.sinks.items():
        yield from (f"sink {name}: {fault}" for fault in _sink_faults(sink, manifest.checkpoint))
    for stage, clock in manifest.stages.items():
        groups = [timer.groups for timers in clock.timers.values() for timer in timers]
        if any(part.hi > manifest.max_parallelism for part in groups):
            yield f"timers of {stage} are beyond max_parallelism {manifest.max_parallelism}"


def _edge_faults(edge: EdgeState, manifest: Manifest) -> Iterator[str]:
    if edge.accepted != edge.consumed + edge.dropped + edge.rows_in_flight:
        yield (
            f"{edge.accepted} records were accepted, {edge.consumed} consumed, {edge.dropped} dropped, and "
            f"{edge.rows_in_flight} are in flight"
        )
    for segment in edge.segments:
        yield from _file_faults(segment)
        if max(segment.epoch, segment.arrived) > manifest.checkpoint:
            yield f"{segment.path} is of a checkpoint after {manifest.checkpoint}"
        for span in segment.spans:
            if span.cursor > segment.rows or span.rows_left > segment.rows - span.cursor:
                yield f"{segment.path} has {segment.rows} rows; {span.rows_left} are left from {span.cursor} on"
        ranges = [part for span in segment.spans for part in span.ranges]
        yield from _range_faults(ranges, manifest.max_parallelism)
        if segment.rows_left > segment.rows:
            yield f"{segment.path} has {segment.rows} rows; {segment.rows_left} are left"


def _file_faults(file: Segment | StateFile) -> Iterator[str]:
    if not is_in_data_folder(file.path):
        yield f"{file.path[:100]!r} is no file of {SEGMENTS}/ or {STATE}/"


def _range_faults(ranges: Iterable[KeyGroupRange], max_parallelism: int) -> Iterator[str]:
    end = 0
    for part in sorted(ranges):
        if not end <= part.lo < part.hi <= max_parallelism:
            yield f"key groups {part.lo} to {part.hi} do not fit into {max_parallelism}, or are there twice"
        end = max(end, part.hi)


def _sink_faults(sink: SinkState, checkpoint: CheckpointId) -> Iterator[str]:
    ids = [pending.checkpoint for pending in sink.pending]
    if ids != sorted(set(ids)) or (ids and ids[-1] > checkpoint):
        yield f"its pending checkpoints {ids[:10]} do not ascend up to {checkpoint}"
    if sink.committed is not None and sink.committed > checkpoint:
        yield f"checkpoint {sink.committed} is committed and was never published"
