"""Commit listeners: code that learns of every commit of a sink, with state in the checkpoint.

The state of a listener is exactly once: the checkpoint stores it together with the position of the sink. Calls are at
least once: if a driver dies between a call and the next checkpoint, the next driver calls again with the older state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.protocol.ids import CheckpointId


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """One table snapshot of ours: which checkpoints it holds, and what they added.

    `partitions` are the partitions that got rows, as their folders are named (``day=2026-01-01/hour=3``); times are in
    milliseconds. All of it comes from checkpoint and table, so a repeated call gets equal values.
    """

    sink: str
    first: CheckpointId
    last: CheckpointId
    snapshot: int | None
    rows: int
    files: int
    watermark: int | None
    committed_at_ms: int | None
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SinkTime:
    """Watermark and time of a sink that has committed everything published."""

    watermark: int | None
    now_ms: int


class CommitListener:
    """Base of commit listeners; `name` is the key of its state in the checkpoint.

    Methods run in the sink's commit thread: slow ones delay commits, not epochs. After an exception Penstock repeats
    the call a few times, then the query stops.
    """

    name: str = "listener"

    def on_commit(self, commit: CommitInfo, state: bytes) -> bytes:  # noqa: ARG002 - the default learns nothing
        """Called after each commit, in order; returns the new state. The first state is empty."""
        return state

    def on_progress(self, time: SinkTime, state: bytes) -> bytes:  # noqa: ARG002
        """Called every few seconds while nothing waits to be committed; returns the new state."""
        return state

    def properties(self, state: bytes) -> Mapping[str, str]:  # noqa: ARG002
        """Properties for the next table snapshot."""
        return {}
