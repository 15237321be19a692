"""Commits checkpoints to an Iceberg table exactly once, from the driver.

A commit demands of the catalog that the table's newest snapshot is still the one that was looked at, when the table did
not hold this checkpoint. The library's own retries, which would commit behind snapshots that were not looked at, are
off. A new driver closes the door (`fence`) by an empty snapshot of its own. An older driver that was about to commit is
refused by the catalog, looks again, asks for leadership after that, and is told no.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyiceberg.exceptions import CommitFailedException

from penstock.errors import CommitFailed, CorruptFile, Fenced, TablePositionMismatch
from penstock.protocol.commit import Remembered, TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, files_missing
from penstock.sinks.iceberg.catalog import open_table, reading, without_retries
from penstock.sinks.iceberg.layout import layout_of
from penstock.sinks.iceberg.writer import ManifestEntry, as_data_file, decode
from penstock.sinks.parquet.remote import open_folder
from penstock.store.paths import is_path

TRIES = 30
"""Other writers may be faster a few times in a row."""
USER, CHECKPOINT, WATERMARK = "penstock.user", "penstock.checkpoint", "penstock.watermark"
ROWS, FILES = "penstock.rows", "penstock.files"
COMMITTED = "penstock.committed."
"""Before the commit user: the table's property that holds its newest checkpoint."""


class IcebergCommitter:
    """Commits to one table for one commit user; used by one thread."""

    def __init__(self, catalog: Mapping[str, str] | str, name: str, commit_user: str) -> None:
        self._name, self._user = name, commit_user
        self._table = open_table(catalog, name)
        self._data = layout_of(catalog, name).data
        self._folder = open_folder(self._data)
        self._told = self._newest()

    def fence(self, generation: Generation) -> None:
        """As `Committer.fence`: an empty snapshot, so that what an older driver is about to commit is refused."""
        for _ in range(TRIES):
            self._refresh()
            try:
                self._append([], {"penstock.generation": str(generation)}, {})
            except CommitFailedException:
                continue
            return
        raise self._unknown("others were always faster")

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        """As `Committer.commits`. What the table holds is told by a property, which never expires."""
        del floor
        with reading(self._name):
            self._refresh()
        self._told = self._newest()
        latest = int(self._table.metadata.last_sequence_number)
        receipts = tuple(self._receipts(limit, oldest_snapshot or 0))
        return TableHistory(receipts, latest=latest, remembered=self._remembered(oldest_snapshot, latest))

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
        entries = [entry for committable in committables for entry in self._decode(committable)]
        missing = self._missing(entries)
        facts = {**properties, USER: self._user, CHECKPOINT: str(permit.checkpoint), FILES: str(len(entries))}
        facts[ROWS] = str(sum(entry.record_count for entry in entries))
        if watermark is not None:
            facts[WATERMARK] = str(watermark)
        for _ in range(TRIES):
            self._refresh()
            found = self._newest()
            if found is not None and found >= permit.checkpoint:
                return self._receipts(1)[-1]
            if found != self._told:
                raise self._rival(permit.checkpoint, found)
            if missing:
                raise files_missing(f"{self._data}/", permit.checkpoint, missing)
            if not still_leader():
                raise _fenced(permit.checkpoint)
            try:
                self._append(entries, facts, {f"{COMMITTED}{self._user}": str(permit.checkpoint)})
            except CommitFailedException:
                continue  # another snapshot came first; if it was ours after all, the next look shows it
            self._refresh()
            self._told = int(permit.checkpoint)
            return self._receipts(1)[-1]
        raise self._unknown("others were always faster")

    def _append(self, entries: Sequence[ManifestEntry], facts: Mapping[str, str], marks: Mapping[str, str]) -> None:
        """One snapshot behind the newest that was seen. Raises: `CommitFailedException` when another came first."""
        specs, schema = self._table.specs(), self._table.schema()
        files = [as_data_file(entry, self._data, specs[entry.spec], schema) for entry in entries]
        transaction = self._table.transaction()
        if marks:
            transaction.set_properties(dict(marks))
        with transaction.update_snapshot(snapshot_properties=dict(facts)).merge_append() as append:
            for file in files:
                append.append_data_file(file)
        transaction.commit_transaction()

    def _refresh(self) -> None:
        self._table = without_retries(self._table.refresh())

    def _newest(self) -> int | None:
        found = self._table.metadata.properties.get(f"{COMMITTED}{self._user}")
        return None if found is None else int(found)

    # -- what the table tells --------------------------------------------------------------------------------------

    def _receipts(self, limit: int, oldest: int = 0) -> list[CommitReceipt]:
        """The newest `limit` commits whose snapshots are there, oldest first."""
        newest = self._newest()
        if newest is None:
            return []
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self._table.metadata.snapshots}
        found: list[CommitReceipt] = []
        snapshot = self._table.current_snapshot()
        while snapshot is not None and len(found) < limit and int(snapshot.sequence_number or 0) >= oldest:
            if snapshot.summary is not None and snapshot.summary.additional_properties.get(USER) == self._user:
                found.append(_receipt(snapshot))
            snapshot = by_id.get(snapshot.parent_snapshot_id)
        if not found or found[0].checkpoint != newest:  # its snapshot expired, or was rolled back
            return [CommitReceipt(CheckpointId(newest), None, 0, 0)]
        return found[::-1]

    def _remembered(self, number: int | None, latest: int) -> Remembered:
        if number is None:
            return Remembered.NOTHING
        if number > latest:
            return Remembered.LOST
        there = [one for one in self._table.metadata.snapshots if one.sequence_number == number]
        ours = [one for one in there if one.summary and one.summary.additional_properties.get(USER) == self._user]
        return Remembered.PRESENT if ours else Remembered.LOST if there else Remembered.EXPIRED

    # -- files -----------------------------------------------------------------------------------------------------

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """Data files of committables that are gone."""
        return self._missing([entry for committable in committables for entry in self._decode(committable)])

    def _missing(self, entries: Sequence[ManifestEntry]) -> tuple[str, ...]:
        return tuple(entry.path for entry in entries if not self._folder.exists(entry.path))

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """The partitions that committables add rows to, as their folders are named."""
        entries = [entry for committable in committables for entry in self._decode(committable)]
        return tuple(sorted({entry.folder for entry in entries if entry.folder}))

    def abort(self, committables: Sequence[Committable]) -> None:
        """Removes the data files of committables that were never committed."""
        self.remove([entry.path for committable in committables for entry in self._decode(committable)])

    def remove(self, files: Sequence[str]) -> None:
        """Removes files that writers announced; a file that any snapshot lists stays."""
        ours = [file for file in files if file.endswith(".parquet") and is_path(file)]
        there = [file for file in ours if self._folder.exists(file)]
        if not there:
            return
        self._refresh()
        listed = self._listed()
        for file in there:
            if not any(path.endswith(f"/{file}") for path in listed):
                self._folder.remove(file)

    def _listed(self) -> set[str]:
        """Data files of all snapshots; those that a manifest takes out are still in an older one."""
        io = self._table.io
        manifests = {
            manifest.manifest_path: manifest
            for snapshot in self._table.metadata.snapshots
            for manifest in snapshot.manifests(io)
        }
        entries = (entry for manifest in manifests.values() for entry in manifest.fetch_manifest_entry(io))
        return {entry.data_file.file_path for entry in entries}

    def close(self) -> None:
        """Nothing stays open between calls."""

    def _decode(self, committable: Committable) -> list[ManifestEntry]:
        try:
            entries = decode(committable.payload)
        except msgspec.DecodeError as error:
            raise self._damaged(str(error)) from error
        if unsafe := [entry.path for entry in entries if not is_path(entry.path)]:
            raise self._damaged(f"it names {unsafe[0]!r}")
        if lost := [entry.spec for entry in entries if entry.spec not in self._table.specs()]:
            raise self._damaged(f"the table has no partition spec {lost[0]}")
        return entries

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(
            f"a committable of Iceberg table {self._name} cannot be used: {why}",
            cause="the checkpoint is damaged, or the table was made anew",
            next_step="restore an older checkpoint, or write to a new table from a new checkpoint folder",
        )

    def _rival(self, checkpoint: CheckpointId, found: int | None) -> TablePositionMismatch:
        return TablePositionMismatch(
            f"checkpoint {found} appeared in {self._name} while {checkpoint} was committed; nothing was published",
            cause="another driver of the same checkpoint folder commits too",
            next_step="ask the table again and commit only what it does not hold",
            checkpoint=checkpoint,
            found=found,
        )

    def _unknown(self, why: str) -> CommitFailed:
        return CommitFailed(
            f"a commit to Iceberg table {self._name} may or may not have arrived: {why}",
            cause="the catalog failed, or other writers commit all the time",
            next_step="the commit is tried again after asking the table; if it goes on, look at the catalog",
            path=self._name,
        )


def _receipt(snapshot: Any) -> CommitReceipt:
    facts = snapshot.summary.additional_properties
    watermark = facts.get(WATERMARK)
    return CommitReceipt(
        CheckpointId(int(facts[CHECKPOINT])),
        int(snapshot.sequence_number),
        int(facts[ROWS]),
        int(facts[FILES]),
        None if watermark is None else int(watermark),
        int(snapshot.timestamp_ms),
    )


def _fenced(checkpoint: CheckpointId) -> Fenced:
    return Fenced(
        f"checkpoint {checkpoint} was not committed to the table: this driver is no longer the leader",
        cause="another driver was started on the same checkpoint folder",
        next_step="let the newer driver run; stop this one",
        checkpoint=checkpoint,
    )
