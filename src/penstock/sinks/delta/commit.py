"""Commits checkpoints to a Delta table: one entry of its log each, which nobody can create twice.

The entry carries an application transaction of our commit user with the checkpoint as its version, so the table says
what was committed after its log was cleaned up, too. The library's own retries, which would commit behind entries that
were not looked at, are off. So is its cleanup of the log after each commit, which takes longer with every entry: upkeep
does it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from deltalake import CommitProperties, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from penstock.protocol.commit import Remembered
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import CommitReceipt
from penstock.sinks.delta.log import DeltaLog, file_name
from penstock.sinks.delta.merge import DeltaMergeTable
from penstock.sinks.delta.table import open_table, reading
from penstock.sinks.delta.writer import AddedFile, decode
from penstock.sinks.lake.commit import GENERATION, USER, CommitOvertaken, LakeCommitter, TableChange, receipt_of
from penstock.sinks.lake.merge import merged
from penstock.sinks.parquet.partitions import folder_of
from penstock.sinks.parquet.remote import open_folder

if TYPE_CHECKING:
    from penstock.sinks.delta.sink import Delta

_HOOKS = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


class DeltaCommitter(LakeCommitter[AddedFile]):
    """Commits to one table for one commit user; used by one thread."""

    def __init__(self, sink: Delta, commit_user: str) -> None:
        super().__init__(sink.description, sink.uri, commit_user, open_folder(sink.uri))
        self._sink = sink
        self._table = open_table(sink.uri)
        self._log = DeltaLog(self._folder)
        self._partition_by = tuple(self._table.metadata().partition_columns)
        self._told = self._newest()

    def _refresh(self) -> None:
        self._table.update_incremental()

    def _latest(self) -> int:
        return int(self._table.version())

    def _newest(self) -> int | None:
        """The transaction tells, unless somebody restored an older version since: the log keeps the transaction.

        Where none of our commits is left in the log, they were taken away if one of them is among what was, else they
        were cleaned up.
        """
        claimed = self._table.transaction_version(self._user)
        if claimed is None:
            return None
        found = next(self._ours(), None)
        if found is not None:
            return int(found.checkpoint)
        lost = any(info.get(USER) == self._user for info in self._log.undone(self._latest()))
        return None if lost else int(claimed)

    def _ours(self) -> Iterator[CommitReceipt]:
        """Our commits that the table is made of, newest first, as far as the log goes back."""
        for version, info in self._log.lineage(self._latest()):
            if info.get(USER) == self._user:
                yield receipt_of(info, version, int(info["timestamp"]))

    def _remembered(self, snapshot: int) -> Remembered:
        if snapshot > self._latest():
            return Remembered.LOST
        for version, info in self._log.lineage(self._latest()):
            if version == snapshot:
                return Remembered.PRESENT if info.get(USER) == self._user else Remembered.LOST
            if version < snapshot:  # an older version was restored
                return Remembered.LOST
        return Remembered.EXPIRED

    def _publish(
        self, change: TableChange[AddedFile], facts: Mapping[str, str], checkpoint: CheckpointId | None
    ) -> None:
        """Creates the next entry of the log. Raises: `CommitOvertaken` when somebody else did."""
        now_ms = int(time.time() * 1000)
        # A driver's fence has a transaction of its own: it is no commit of ours.
        user, number = f"{self._user}/driver", int(facts.get(GENERATION, 0))
        if checkpoint is not None:
            user, number = self._user, int(checkpoint)
        actions = [*map(_added, change.added), *(_removed(path, now_ms) for path in change.removed)]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                list(self._partition_by),
                commit_properties=CommitProperties(
                    custom_metadata=dict(facts),
                    max_commit_retries=0,
                    app_transactions=[Transaction(user, number, now_ms)],
                ),
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            raise CommitOvertaken from error

    def _change(self, files: Sequence[AddedFile]) -> TableChange[AddedFile]:
        sink = self._sink
        if not sink.primary_key:
            return TableChange(tuple(files))
        table = DeltaMergeTable(self._table, self._folder, sink.primary_key, sink.target_file_size)
        return merged(table, files, sink.merge_bytes_max, sink.description)

    def _listed(self, files: Sequence[str]) -> set[str]:
        return set(files) & set(map(file_name, self._table.get_add_actions()["path"].to_pylist()))

    def _files(self, payload: bytes) -> list[AddedFile]:
        files = decode(payload)
        if any(set(file.partition) != set(self._partition_by) for file in files):
            raise ValueError(f"its partitions are not those of the table, {list(self._partition_by)}")
        return files

    def _partition(self, file: AddedFile) -> str:
        names = self._partition_by
        return folder_of(names, [file.partition[name] for name in names]) if names else ""

    def _reading(self) -> AbstractContextManager[None]:
        return reading(self._root)


def _added(file: AddedFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition, file.modified_ms, data_change=True, stats=file.stats)


def _removed(path: str, at_ms: int) -> RemoveAction:
    """`path` is as the log spells it; the library encodes what it is given."""
    return RemoveAction(file_name(path), True, at_ms)
