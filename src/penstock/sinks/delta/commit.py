"""Commits checkpoints to a Delta table exactly once, from the driver.

Entry N of the log is created only if nobody else created it, and only by a committer that has read all entries before
N: then none of them holds this checkpoint. The library's own retries, which would commit behind entries that were not
looked at, are off. A new driver closes the door (`fence`) by an empty entry of its own. Whoever was about to create
that entry fails, reads the log again, asks for leadership after that, and is told no.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from deltalake import CommitProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from penstock.errors import CommitFailed, CorruptFile, Fenced, TablePositionMismatch
from penstock.protocol.commit import Remembered, TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, files_missing
from penstock.sinks.delta.table import open_table, reading
from penstock.sinks.delta.writer import AddedFile, decode
from penstock.sinks.parquet.partitions import folder_of
from penstock.sinks.parquet.remote import open_folder
from penstock.store.paths import is_path

TRIES = 100
"""Other writers may be faster a few times in a row; each try costs a few milliseconds."""
USER, ROWS, FILES = "penstock.user", "penstock.rows", "penstock.files"
CHECKPOINT, WATERMARK = "penstock.checkpoint", "penstock.watermark"
WALK_FIRST = 16
"""Entries that are looked at first for our newest commit; then twice as many, and so on."""


class DeltaCommitter:
    """Commits to one table for one commit user; used by one thread."""

    def __init__(self, uri: str, commit_user: str) -> None:
        self._uri, self._user = uri, commit_user
        self._table = open_table(uri)
        self._folder = open_folder(uri)
        self._partition_by = tuple(self._table.metadata().partition_columns)
        self._told = self._newest()

    def fence(self, generation: Generation) -> None:
        """As `Committer.fence`: takes the next entry of the log, which an older driver may be about to create."""
        for _ in range(TRIES):
            self._refresh()
            try:
                self._append([], {"penstock.generation": str(generation)}, f"{self._user}/driver", generation)
            except CommitFailedError:
                continue
            return
        raise self._unknown("others were always faster")

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        """As `Committer.commits`. What the table holds is told by its application transactions, which never expire."""
        del floor
        with reading(self._uri):
            self._refresh()
            self._told = self._newest()
            version = int(self._table.version())
            receipts = self._receipts(oldest_snapshot or 0, limit)
            remembered = self._remembered(oldest_snapshot, version)
        return TableHistory(tuple(receipts), latest=version, remembered=remembered)

    def holds(self, committables: Sequence[Committable]) -> bool:
        """Never needed: no commit of ours is ever in doubt."""
        del committables
        return False

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

        Raises: `Fenced`; `MissingFile`; `TablePositionMismatch` when a rival committed part of this, nothing was
        published, and the committables have to be chosen anew; anything else means *unknown outcome*.
        """
        files = [file for committable in committables for file in self._decode(committable)]
        missing = self._missing(files)
        facts = {**properties, USER: self._user, CHECKPOINT: str(permit.checkpoint), FILES: str(len(files))}
        facts[ROWS] = str(sum(file.rows for file in files))
        if watermark is not None:
            facts[WATERMARK] = str(watermark)
        actions = [_action(file) for file in files]
        for _ in range(TRIES):
            self._refresh()
            found = self._newest()
            if found is not None and found >= permit.checkpoint:
                return self._receipts(0, 1)[-1]
            if found != self._told:
                raise self._rival(permit.checkpoint, found)
            if missing:
                raise files_missing(f"{self._uri}/", permit.checkpoint, missing)
            if not still_leader():
                raise _fenced(permit.checkpoint)
            try:
                self._append(actions, facts, self._user, permit.checkpoint)
            except CommitFailedError:
                continue  # somebody else made this entry; if it was us after all, the next look shows it
            self._refresh()
            self._told = int(permit.checkpoint)
            return self._receipts(0, 1)[-1]
        raise self._unknown("others were always faster")

    def _rival(self, checkpoint: CheckpointId, found: int | None) -> TablePositionMismatch:
        """A part of what we were about to commit may be in the table: what is left has to be chosen anew."""
        return TablePositionMismatch(
            f"checkpoint {found} appeared in {self._uri} while {checkpoint} was being committed; nothing was published",
            cause="another driver of the same checkpoint folder commits too",
            next_step="ask the table again and commit only what it does not hold",
            checkpoint=checkpoint,
            found=found,
        )

    def _append(self, actions: Sequence[AddAction], facts: Mapping[str, str], app_id: str, version: int) -> None:
        """Creates the next entry of the log. Raises: `CommitFailedError` when somebody else did."""
        self._table.create_write_transaction(
            list(actions),
            "append",
            self._table.schema(),
            list(self._partition_by),
            commit_properties=CommitProperties(
                custom_metadata=dict(facts),
                max_commit_retries=0,
                app_transactions=[Transaction(app_id, int(version), int(time.time() * 1000))],
            ),
        )

    def _refresh(self) -> None:
        self._table.update_incremental()

    def _newest(self) -> int | None:
        found = self._table.transaction_version(self._user)
        return None if found is None else int(found)

    # -- what the table tells --------------------------------------------------------------------------------------

    def _receipts(self, oldest: int, limit: int) -> list[CommitReceipt]:
        """The newest `limit` commits, oldest first; the walk ends at entry `oldest` and where the log was cleaned."""
        newest = self._newest()
        if newest is None:
            return []
        depth = WALK_FIRST
        while True:
            entries = self._table.history(depth)
            mine = [_receipt(entry) for entry in entries if entry.get(USER) == self._user][:limit]
            exhausted = len(entries) < depth or int(entries[-1]["version"]) <= oldest
            if len(mine) >= limit or exhausted:
                break
            depth *= 2
        if not mine:  # its entry is gone; the transaction still tells that it was there
            return [CommitReceipt(CheckpointId(newest), None, 0, 0)]
        return mine[::-1]

    def _remembered(self, version: int | None, latest: int) -> Remembered:
        if version is None:
            return Remembered.NOTHING
        if version > latest:
            return Remembered.LOST
        entries = self._table.history(latest - version + 1)
        if not entries or int(entries[-1]["version"]) != version:
            return Remembered.EXPIRED
        return Remembered.PRESENT if entries[-1].get(USER) == self._user else Remembered.LOST

    # -- files -----------------------------------------------------------------------------------------------------

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """Data files of committables that are gone."""
        return self._missing([file for committable in committables for file in self._decode(committable)])

    def _missing(self, files: Sequence[AddedFile]) -> tuple[str, ...]:
        return tuple(file.path for file in files if not self._folder.exists(file.path))

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """The partitions that committables add rows to, as their folders are named."""
        files = [file for committable in committables for file in self._decode(committable)]
        names = self._partition_by
        return tuple(sorted({folder_of(names, [file.partition[name] for name in names]) for file in files if names}))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Removes the data files of committables that were never committed; a file that the table lists stays."""
        self.remove([file.path for committable in committables for file in self._decode(committable)])

    def remove(self, files: Sequence[str]) -> None:
        """Removes files that writers announced; a file that the table lists stays."""
        ours = [file for file in files if file.endswith(".parquet") and is_path(file)]
        there = [file for file in ours if self._folder.exists(file)]
        if not there:
            return
        self._refresh()
        listed = set(self._table.get_add_actions()["path"].to_pylist())
        for file in there:
            if quote(file) not in listed and file not in listed:
                self._folder.remove(file)

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _decode(self, committable: Committable) -> list[AddedFile]:
        try:
            files = decode(committable.payload)
        except msgspec.DecodeError as error:
            raise self._damaged(str(error)) from error
        if unsafe := [file.path for file in files if not is_path(file.path)]:
            raise self._damaged(f"it names {unsafe[0]!r}")
        if any(set(file.partition) != set(self._partition_by) for file in files):
            raise self._damaged(f"its partitions are not those of the table, {list(self._partition_by)}")
        return files

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(
            f"a committable of Delta table {self._uri} cannot be used: {why}",
            cause="the checkpoint is damaged, or the table was made anew with other partitions",
            next_step="restore an older checkpoint, or write to a new table from a new checkpoint folder",
        )

    def _unknown(self, why: str) -> CommitFailed:
        return CommitFailed(
            f"a commit to Delta table {self._uri} may or may not have arrived: {why}",
            cause="the storage failed, or other writers commit all the time",
            next_step="the commit is tried again after asking the table; if it goes on, look at the table's storage",
            path=self._uri,
        )


def _action(file: AddedFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition, file.modified_ms, data_change=True, stats=file.stats)


def _receipt(entry: Mapping[str, Any]) -> CommitReceipt:
    watermark = entry.get(WATERMARK)
    return CommitReceipt(
        CheckpointId(int(entry[CHECKPOINT])),
        int(entry["version"]),
        int(entry[ROWS]),
        int(entry[FILES]),
        None if watermark is None else int(watermark),
        int(entry["timestamp"]),
    )


def _fenced(checkpoint: CheckpointId) -> Fenced:
    return Fenced(
        f"checkpoint {checkpoint} was not committed to the table: this driver is no longer the leader",
        cause="another driver was started on the same checkpoint folder",
        next_step="let the newer driver run; stop this one",
        checkpoint=checkpoint,
    )
