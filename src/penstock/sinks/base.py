"""The protocol between a sink and the engine.

A writer never waits for a commit: it writes files and hands over *committables* with the subtask's report (C1).
The driver's coordinator commits them after the checkpoint that holds them was published (C2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.protocol.commit import CommitPermit, CommitReceipt
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable

__all__ = [
    "CommitPermit",
    "CommitReceipt",
    "Committable",
    "Committer",
    "Routing",
    "Sink",
    "Writer",
    "WriterContext",
]


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Who writes: unique per attempt, so that no two writers share a file name."""

    checkpoint: CheckpointId
    generation: Generation
    subtask: int
    parallelism: int
    attempt: str


class Routing(Protocol):
    """Which rows must meet in one writer; travels to the subtasks, so it holds plain values only."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Says in words what `lanes` depends on: a checkpoint with other words does not fit."""
        ...

    def lanes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """Any number not below 0 for each row; rows with equal ones meet. Consecutive ones are dealt out evenly."""
        ...


class Writer(Protocol):
    """Writes one subtask's output of one epoch."""

    def write(self, batch: pa.RecordBatch) -> None: ...
    def prepare(self) -> list[Committable]:
        """Closes all files and tells what to commit; called once, last."""
        ...

    def abort(self) -> None:
        """Removes what was written; called instead of `prepare` when the attempt fails."""
        ...


class Committer(Protocol):
    """Commits to one table for one commit user; used by one thread."""

    def committed_up_to(self, oldest_snapshot: int | None = None) -> CommitReceipt | None:
        """The newest commit of our commit user that the table holds; walks back no further than `oldest_snapshot`."""
        ...

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        properties: dict[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        """Commits under ``permit.checkpoint`` exactly once.

        Asks the table first; if it already holds that checkpoint, answers with what it holds. `still_leader` is
        asked again right before the snapshot becomes visible.

        Raises: `Fenced` when this driver is no longer the leader; any other exception means *unknown outcome*:
        ask `committed_up_to` before trying again.
        """
        ...

    def abort(self, committables: Sequence[Committable]) -> None:
        """Removes the files of committables that were never committed and never will be."""
        ...

    def close(self) -> None: ...


class Sink(Protocol):
    """A place to write to; travels to the subtasks, so it holds plain values only."""

    @property
    def description(self) -> str: ...
    def routing(self, schema: pa.Schema) -> Routing | None:
        """How rows must be exchanged before they are written; None if any writer may get any row.

        Raises: as `check`.
        """
        ...

    def check(self, schema: pa.Schema) -> None:
        """Called once in the driver before anything runs: creates or verifies the table.

        Raises: `TableMismatch`, `TableRefused`, `StorageFailed`.
        """
        ...

    def taken_over(self, checkpoint: CheckpointId, pending: Sequence[Committable]) -> Sink:
        """The sink as the writers of this driver get it, once no older driver can publish.

        `checkpoint` is the takeover's; `pending` is what was published before and the table may not hold yet.
        """
        ...

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> Writer: ...
    def open_committer(self, commit_user: str) -> Committer: ...
