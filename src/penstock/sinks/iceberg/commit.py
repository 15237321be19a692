"""Commits checkpoints to an Iceberg table: one snapshot each, which the catalog accepts only behind the newest.

The same catalog commit writes the checkpoint into a property of the table, which no expiry of snapshots takes away. The
library's own retries, which would commit behind snapshots that were not looked at, are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException

from penstock.protocol.commit import Remembered
from penstock.protocol.ids import CheckpointId
from penstock.sinks.base import CommitReceipt
from penstock.sinks.iceberg.catalog import as_written, open_table, reading
from penstock.sinks.iceberg.layout import layout_of_table
from penstock.sinks.iceberg.merge import IcebergMergeTable
from penstock.sinks.iceberg.snapshots import files_of, lineage, replace_files
from penstock.sinks.iceberg.writer import ManifestEntry, as_data_file, decode
from penstock.sinks.lake.commit import CHECKPOINT, USER, CommitOvertaken, LakeCommitter, TableChange, receipt_of
from penstock.sinks.lake.merge import merged
from penstock.sinks.parquet.remote import open_folder

if TYPE_CHECKING:
    from penstock.sinks.iceberg.sink import Iceberg

COMMITTED = "penstock.committed."
"""Before the commit user: the table's property that holds its newest checkpoint."""


class IcebergCommitter(LakeCommitter[ManifestEntry]):
    """Commits to one table for one commit user; used by one thread."""

    tries = 30

    def __init__(self, sink: Iceberg, commit_user: str) -> None:
        self._table = open_table(sink.catalog, sink.table)
        self._data = layout_of_table(self._table, sink.table).data
        super().__init__(sink.description, self._data, commit_user, open_folder(self._data))
        self._sink, self._name = sink, sink.table
        self._told = self._newest()

    def _refresh(self) -> None:
        self._table = as_written(self._table.refresh())

    def _latest(self) -> int:
        return int(self._table.metadata.last_sequence_number)

    def _newest(self) -> int | None:
        """The property tells, unless somebody rolled the table back since: a rollback keeps properties."""
        claimed = self._table.metadata.properties.get(f"{COMMITTED}{self._user}")
        if claimed is None:
            return None
        found = next(self._ours(), None)
        if found is not None:
            return int(found.checkpoint)
        left = [one for one in self._table.metadata.snapshots if _is_of(one, self._user)]
        newest = max((one for one in left if one.summary[CHECKPOINT] == claimed), key=_number, default=None)
        return None if newest is not None and self._passed(_number(newest)) else int(claimed)

    def _ours(self) -> Iterator[CommitReceipt]:
        """Our commits that the table is made of, newest first, as far as its snapshots go back."""
        for snapshot in lineage(self._table):
            if _is_of(snapshot, self._user):
                facts = snapshot.summary.additional_properties
                yield receipt_of(facts, _number(snapshot), int(snapshot.timestamp_ms))

    def _passed(self, number: int) -> bool:
        """Whether the table's ancestors go back beyond a number that is not among them: it was rolled back."""
        numbers = [_number(snapshot) for snapshot in lineage(self._table)]
        return not numbers or (number not in numbers and min(numbers) < number)

    def _remembered(self, snapshot: int) -> Remembered:
        if snapshot > self._latest() or self._passed(snapshot):
            return Remembered.LOST
        there = [one for one in lineage(self._table) if _number(one) == snapshot]
        if not there:
            return Remembered.EXPIRED
        return Remembered.PRESENT if _is_of(there[0], self._user) else Remembered.LOST

    def _publish(
        self, change: TableChange[ManifestEntry], facts: Mapping[str, str], checkpoint: CheckpointId | None
    ) -> None:
        """One snapshot behind the newest that was seen. Raises: `CommitOvertaken` when another came first."""
        specs, schema = self._table.specs(), self._table.schema()
        added = [as_data_file(entry, self._data, specs[entry.spec], schema) for entry in change.added]
        marks = {} if checkpoint is None else {f"{COMMITTED}{self._user}": str(checkpoint)}
        try:
            replace_files(self._table, added, self._removed(change.removed), facts, marks)
        except CommitFailedException as error:
            raise CommitOvertaken from error
        except FileNotFoundError as error:
            # What was looked at is not the newest any more, and has expired with its files.
            looked_at = self._table.metadata.current_snapshot_id
            if self._table.refresh().metadata.current_snapshot_id != looked_at:
                raise CommitOvertaken from error
            raise

    def _change(self, files: Sequence[ManifestEntry]) -> TableChange[ManifestEntry]:
        sink = self._sink
        if not sink.primary_key:
            return TableChange(tuple(files))
        layout = layout_of_table(self._table, sink.table)
        table = IcebergMergeTable(self._table, layout, sink.primary_key, sink.target_file_size, files)
        return merged(table, files, sink.merge_bytes_max, sink.description)

    def _removed(self, paths: Sequence[str]) -> list[Any]:
        if not paths:
            return []
        listed = {task.file.file_path: task.file for task in self._table.scan().plan_files()}
        return [listed[path] for path in paths]

    def _listed(self, files: Sequence[str]) -> set[str]:
        """Files of any snapshot; those that a manifest takes out are still in an older one."""
        listed = files_of(self._table.io, self._table.metadata.snapshots)
        return {file for file in files if any(path.endswith(f"/{file}") for path in listed)}

    def _files(self, payload: bytes) -> list[ManifestEntry]:
        entries = decode(payload)
        if lost := [entry.spec for entry in entries if entry.spec not in self._table.specs()]:
            raise ValueError(f"the table has no partition spec {lost[0]}")
        return entries

    def _partition(self, file: ManifestEntry) -> str:
        return file.folder

    def _reading(self) -> AbstractContextManager[None]:
        return reading(self._name)


def _number(snapshot: Any) -> int:
    return int(snapshot.sequence_number or 0)


def _is_of(snapshot: Any, user: str) -> bool:
    return snapshot.summary is not None and snapshot.summary.additional_properties.get(USER) == user
