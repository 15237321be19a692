"""The protocol between a sink and the engine.

A writer never waits for a commit: it writes files and hands over *committables* with the subtask's report.
The driver's coordinator commits them after the checkpoint that holds them was published.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import Fenced, MissingFile
from penstock.protocol.commit import CommitPermit, CommitReceipt, TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable, TableMark
from penstock.sinks.listeners import CommitListener

__all__ = [
    "CommitPermit",
    "CommitReceipt",
    "Committable",
    "Committer",
    "CommitterDefaults",
    "Routing",
    "Sink",
    "SinkDefaults",
    "TableHistory",
    "TableMark",
    "Writer",
    "WriterContext",
    "files_missing",
]


def files_missing(where: str, checkpoint: CheckpointId, missing: Sequence[str]) -> MissingFile:
    """The error for data files that a checkpoint is to commit and that do not exist."""
    return MissingFile(
        f"{where}{missing[0]}, which checkpoint {checkpoint} is to commit, does not exist; nothing was committed"
        + (f" ({len(missing)} files are missing)" if len(missing) > 1 else ""),
        cause="files that the table did not list yet were deleted by hand or by another engine's cleanup",
        next_step="put the file back, or restore an older checkpoint (restore=N): its rows are written again",
        path=missing[0],
    )


def no_longer_leader(checkpoint: CheckpointId, what: str = "was not committed to the table") -> Fenced:
    """The error of a driver that was about to commit and has a successor."""
    return Fenced(
        f"checkpoint {checkpoint} {what}: this driver is no longer the leader",
        cause="another driver was started on the same checkpoint folder",
        next_step="let the newer driver run; stop this one",
        checkpoint=checkpoint,
    )


def _to_nobody(file: str) -> None:
    """Without a driver to listen, announcements go nowhere."""


@dataclass(frozen=True, slots=True)
class WriterContext:
    """Identifies the writer: unique per attempt, so that no two writers share a file name.

    A writer calls `announce` with the name of each file before it makes the file. The driver removes the files of
    attempts that lost, also of those that were killed before they could report.
    """

    checkpoint: CheckpointId
    generation: Generation
    subtask: int
    parallelism: int
    attempt: str
    announce: Callable[[str], object] = _to_nobody


class Routing(Protocol):
    """Which rows must meet in one writer; travels to the subtasks, so it holds plain values only."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names what `lanes` depends on. A checkpoint with another text here does not fit."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether rows that meet must be written in the order in which the source delivered them."""
        ...

    def lanes(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        """A number from 0 on for each row. Rows with equal numbers meet in one writer; consecutive numbers are spread
        evenly."""
        ...


class Writer(Protocol):
    """Writes one subtask's output of one epoch."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Takes some rows; may keep them, or write them to files that it announced."""
        ...

    def prepare(self) -> list[Committable]:
        """Closes all files and tells what to commit; called once, last."""
        ...

    def abort(self) -> None:
        """Removes what was written; called instead of `prepare` when the attempt fails."""
        ...


class Committer(Protocol):
    """Commits to one table for one commit user; used by one thread."""

    def fence(self, generation: Generation) -> None:
        """Called once, after this generation was claimed: no older driver's commit appears from now on.

        Where a table cannot promise that, commits still happen once: `commit` asks right before it publishes.
        """
        ...

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        """The newest `limit` commits of our commit user, and how far back the table could be read.

        `oldest_snapshot` is the one of the last commit that was acknowledged. Commits that were not acknowledged are in
        later ones than that, and later than `floor`. The newest commit is always among the answer's, unless snapshots
        are `gone`; older ones may be missing (expired).

        Raises: `TablePositionMismatch` when the table lost what it had; any other exception: ask again.
        """
        ...

    def holds(self, committables: Sequence[Committable]) -> bool:
        """Whether the newest snapshot lists one of these files. If it does, they were committed. If not, they may have
        been committed and compacted away."""
        ...

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        """Commits under ``permit.checkpoint`` exactly once.

        The committer asks the table first and returns the receipt of a commit that is already there. It asks
        `still_leader` again right before the snapshot becomes visible.

        Raises: `Fenced` when this driver is no longer the leader; `MissingFile` when a data file is gone and nothing
        was committed; any other exception means *unknown outcome*: ask `commits` before trying again.
        """
        ...

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """Data files of committables that are gone."""
        ...

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """The partitions that committables add rows to, sorted; none where the table has none."""
        ...

    def abort(self, committables: Sequence[Committable]) -> None:
        """Removes the files of committables that will never be committed."""
        ...

    def remove(self, files: Sequence[str]) -> None:
        """Removes files by the names that writers announced, of attempts that lost."""
        ...

    def close(self) -> None:
        """Called once, last."""
        ...


class Sink(Protocol):
    """A place to write to; travels to the subtasks, so it holds plain values only."""

    @property
    def description(self) -> str:
        """What errors and events call it."""
        ...

    def routing(self, schema: pa.Schema) -> Routing | None:
        """Which rows must meet in one writer; None if any writer may get any row.

        Raises: as `check`.
        """
        ...

    def mark(self) -> TableMark | None:
        """Which table this is; None when it does not exist yet. Makes nothing."""
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

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> Writer:
        """Called in a task, for each attempt at a subtask."""
        ...

    def open_committer(self, commit_user: str) -> Committer:
        """Called in the driver; `commit_user` names the query and this sink of it, and never changes."""
        ...

    def listeners(self) -> tuple[CommitListener, ...]:
        """Listeners that belong to the sink itself; users add their own with ``write(sink, commit_listeners=…)``."""
        ...


class SinkDefaults:
    """A sink that always exists, without routing or listeners, whose writers need nothing from a takeover."""

    __slots__ = ()

    def mark(self) -> TableMark | None:
        return TableMark(name=type(self).__name__)

    def routing(self, schema: pa.Schema) -> Routing | None:
        del schema
        return None

    def taken_over(self, checkpoint: CheckpointId, pending: Sequence[Committable]) -> Self:
        del checkpoint, pending
        return self

    def listeners(self) -> tuple[CommitListener, ...]:
        return ()


class CommitterDefaults:
    """A committer into a table without partitions, which cannot tell files apart and keeps nothing open."""

    __slots__ = ()

    def holds(self, committables: Sequence[Committable]) -> bool:
        del committables
        return False

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        del committables
        return ()

    def close(self) -> None:
        """Nothing is open."""


class NamedFiles(CommitterDefaults):
    """A committer whose committables name files. It says which, whether one exists, and how files are removed."""

    __slots__ = ()

    def _names(self, committable: Committable) -> Sequence[str]:
        raise NotImplementedError

    def _exists(self, file: str) -> bool:
        raise NotImplementedError

    def remove(self, files: Sequence[str]) -> None:
        raise NotImplementedError

    def _all_names(self, committables: Sequence[Committable]) -> list[str]:
        return [file for committable in committables for file in self._names(committable)]

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        return tuple(file for file in self._all_names(committables) if not self._exists(file))

    def abort(self, committables: Sequence[Committable]) -> None:
        self.remove(self._all_names(committables))
