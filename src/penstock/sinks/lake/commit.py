"""Commits checkpoints to a lake exactly once, from the driver: what does not depend on the format.

A commit is published only behind everything that was looked at, and nothing looked at holds this checkpoint. Whoever
finds that another commit came first looks again. A new driver closes the door (`fence`) by an empty commit of its own.
An older driver that was about to publish is refused by the table, looks again, asks for leadership after that, and is
told no.

When somebody rolls the table back, commits of ours are no longer among its ancestors. The committer then tells what is
left (`commits`), and publishes nothing behind it before the query was restored to fit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Generic, Protocol, TypeVar

import msgspec

from penstock.errors import CommitFailed, CorruptFile, PenstockError, SubtaskFailed, TablePositionMismatch
from penstock.protocol.commit import Remembered, TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import (
    CommitPermit,
    CommitReceipt,
    Committable,
    NamedFiles,
    files_missing,
    no_longer_leader,
)
from penstock.sinks.parquet.files import TableFolder
from penstock.store.paths import is_path

USER, CHECKPOINT, WATERMARK = "penstock.user", "penstock.checkpoint", "penstock.watermark"
ROWS, FILES, GENERATION = "penstock.rows", "penstock.files", "penstock.generation"


class LakeFile(Protocol):
    """A file that a writer hands over; `deletes` when it holds keys whose rows go away."""

    @property
    def path(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def deletes(self) -> bool: ...


F = TypeVar("F", bound=LakeFile)


class CommitOvertaken(Exception):
    """Another commit came first: nothing of ours was published."""


@dataclass(frozen=True, slots=True)
class TableChange(Generic[F]):
    """What one commit does: files that it adds, and names of listed files that it takes out.

    `made` are files that were made for this commit alone, `spent` are files that nobody needs once it is published.
    """

    added: tuple[F, ...]
    removed: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    spent: tuple[str, ...] = ()


class LakeCommitter(ABC, NamedFiles, Generic[F]):
    """As `Committer`. A format says how to look at its table and how to publish."""

    tries = 100
    """Other writers may be faster a few times in a row."""

    def __init__(self, description: str, root: str, commit_user: str, folder: TableFolder) -> None:
        self._description, self._root, self._user, self._folder = description, root, commit_user, folder
        self._told: int | None = None

    # -- what a format says ----------------------------------------------------------------------------------------

    @abstractmethod
    def _refresh(self) -> None:
        """Looks at the table."""

    @abstractmethod
    def _newest(self) -> int | None:
        """Our newest checkpoint among what was looked at and was not rolled back."""

    @abstractmethod
    def _ours(self) -> Iterator[CommitReceipt]:
        """Our commits that the table is made of, newest first, as far as it goes back."""

    @abstractmethod
    def _latest(self) -> int:
        """The newest snapshot of all users."""

    @abstractmethod
    def _remembered(self, snapshot: int) -> Remembered:
        """What became of a snapshot of ours."""

    @abstractmethod
    def _publish(self, change: TableChange[F], facts: Mapping[str, str], checkpoint: CheckpointId | None) -> None:
        """One commit behind what was looked at. Raises: `CommitOvertaken`; anything else means *unknown outcome*."""

    @abstractmethod
    def _listed(self, files: Sequence[str]) -> set[str]:
        """Which of these files the table needs."""

    @abstractmethod
    def _files(self, payload: bytes) -> list[F]:
        """Raises: `msgspec.DecodeError`, or `ValueError` for files that do not fit the table."""

    @abstractmethod
    def _partition(self, file: F) -> str:
        """The folder of its partition; empty without partitions."""

    @abstractmethod
    def _reading(self) -> AbstractContextManager[None]:
        """Says what failures of the library mean."""

    def _change(self, files: Sequence[F]) -> TableChange[F]:
        """What to publish behind what was looked at: by default, the files are added."""
        return TableChange(tuple(files))

    # -- as `Committer` --------------------------------------------------------------------------------------------

    def fence(self, generation: Generation) -> None:
        for _ in range(self.tries):
            self._refresh()
            try:
                self._publish(TableChange(()), {GENERATION: str(generation)}, None)
            except CommitOvertaken:
                continue
            return
        raise self._unknown()

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        """As `Committer.commits`. What a table holds is told by a mark that never expires, so nothing is `gone`."""
        del floor
        with self._reading():
            self._refresh()
            self._told = self._newest()
            remembered = Remembered.NOTHING if oldest_snapshot is None else self._remembered(oldest_snapshot)
            receipts = () if self._told is None else tuple(self._receipts(limit, oldest_snapshot or 0))
            return TableHistory(receipts, latest=self._latest(), remembered=remembered)

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        """As `Committer.commit`.

        Raises: `Fenced`; `MissingFile`; `TablePositionMismatch` when a rival committed part of this or somebody rolled
        the table back, nothing was published, and the committables have to be chosen anew; anything else means
        *unknown outcome*.
        """
        checkpoint = permit.checkpoint
        files = self._decoded(committables)
        missing = self.missing_files(committables)
        facts = {**properties, USER: self._user, CHECKPOINT: str(checkpoint)}
        facts[ROWS] = str(sum(file.rows for file in files))
        if watermark is not None:
            facts[WATERMARK] = str(watermark)
        for _ in range(self.tries):
            self._refresh()
            found = self._newest()
            if found is not None and found >= checkpoint:
                return self._receipts(1)[-1]
            if found != self._told:
                raise self._moved(checkpoint, found)
            if missing:
                raise files_missing(f"{self._root}/", checkpoint, missing)
            change = self._change(files)
            if not still_leader():
                self._drop(change.made)
                raise no_longer_leader(checkpoint)
            try:
                self._publish(change, {**facts, FILES: str(len(change.added))}, checkpoint)
            except CommitOvertaken:  # if it was us after all, the next look shows it
                self.remove(change.made)
                continue
            self._refresh()
            self._told = int(checkpoint)
            self._drop(change.spent)
            return self._receipts(1)[-1]
        raise self._unknown()

    def _receipts(self, limit: int, oldest: int = 0) -> list[CommitReceipt]:
        """Our newest `limit` commits, oldest first, back to snapshot `oldest`; the newest is always there."""
        newest = self._newest()
        recent = takewhile(lambda receipt: (receipt.snapshot or 0) >= oldest, self._ours())
        found = list(islice(recent, limit))
        if not found and newest is not None:  # its snapshot expired; the table's mark still tells that it was there
            return [CommitReceipt(CheckpointId(newest), None, 0, 0)]
        return found[::-1]

    def _drop(self, files: Sequence[str]) -> None:
        for file in files:
            self._folder.remove(file)

    # -- files -----------------------------------------------------------------------------------------------------

    def _names(self, committable: Committable) -> Sequence[str]:
        return [file.path for file in self._decode(committable)]

    def _exists(self, file: str) -> bool:
        return self._folder.exists(file)

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """As `Committer.partitions`, as their folders are named."""
        return tuple(sorted({name for file in self._decoded(committables) if (name := self._partition(file))}))

    def remove(self, files: Sequence[str]) -> None:
        """As `Committer.remove`; a file that the table needs stays."""
        there = [file for file in files if file.endswith(".parquet") and is_path(file) and self._folder.exists(file)]
        if not there:
            return
        self._refresh()
        listed = self._listed(there)
        self._drop([file for file in there if file not in listed])

    def _decoded(self, committables: Sequence[Committable]) -> list[F]:
        return [file for committable in committables for file in self._decode(committable)]

    def _decode(self, committable: Committable) -> list[F]:
        try:
            files = self._files(committable.payload)
        except (msgspec.DecodeError, ValueError) as error:
            raise self._damaged(str(error)) from error
        if unsafe := [file.path for file in files if not is_path(file.path)]:
            raise self._damaged(f"it names {unsafe[0]!r}")
        return files

    # -- errors ----------------------------------------------------------------------------------------------------

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(
            f"a committable of {self._description} cannot be used: {why}",
            cause="the checkpoint is damaged, or the table was made anew with other partitions",
            next_step="restore an older checkpoint, or write to a new table from a new checkpoint folder",
        )

    def _moved(self, checkpoint: CheckpointId, found: int | None) -> TablePositionMismatch:
        """What we were about to commit was chosen by what the table held before: it has to be chosen anew."""
        back = self._told is not None and (found is None or found < self._told)
        return TablePositionMismatch(
            f"our newest commit in {self._description} was checkpoint {self._told} and is now {found}, while"
            f" {checkpoint} was being committed; nothing was published",
            cause="somebody rolled the table back" if back else "another driver of the same checkpoint folder commits",
            next_step="the table is asked again; what it does not hold is committed, or the query says how to go on",
            checkpoint=checkpoint,
            found=found,
        )

    def _unknown(self) -> CommitFailed:
        return CommitFailed(
            f"a commit to {self._description} may or may not have arrived: others were always faster",
            cause="other writers commit all the time",
            next_step="the commit is tried again after asking the table; if it goes on, look at who writes to it",
            path=self._root,
        )


def receipt_of(facts: Mapping[str, str], snapshot: int, committed_at_ms: int) -> CommitReceipt:
    """What a commit says of itself."""
    watermark = facts.get(WATERMARK)
    return CommitReceipt(
        CheckpointId(int(facts[CHECKPOINT])),
        snapshot,
        int(facts[ROWS]),
        int(facts[FILES]),
        None if watermark is None else int(watermark),
        committed_at_ms,
    )


def write_failed(description: str, path: str, error: Exception) -> PenstockError:
    """The error of a writer."""
    if isinstance(error, PenstockError):
        return error
    return SubtaskFailed(
        f"the writer of {description} failed: {type(error).__name__}: {error}",
        cause="these rows cannot be written as Parquet, or the storage failed",
        next_step="look at the rows or the storage named above, then start again: nothing published was lost",
        path=path,
    )
