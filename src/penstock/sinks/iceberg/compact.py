"""Rewrites small files of an Iceberg table as large ones, without changing its rows.

The new files are written first, however long that takes. Then they replace the old ones in one snapshot, if all of
these are still listed and nobody deleted rows of them meanwhile. So commits that go on do not make it start over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.exceptions import CommitFailedException

from penstock.protocol.upkeep import files_to_compact
from penstock.sinks.iceberg.catalog import as_written
from penstock.sinks.iceberg.layout import layout_of_table
from penstock.sinks.iceberg.merge import SnapshotReader, values_of
from penstock.sinks.iceberg.snapshots import replace_files
from penstock.sinks.iceberg.writer import IcebergFiles, as_data_file
from penstock.sinks.parquet.partitions import Partition
from penstock.sinks.upkeep import UpkeepReport

if TYPE_CHECKING:
    from penstock.sinks.iceberg.sink import Iceberg

TRIES = 30
STEP_BYTES_MAX = 1 << 30
"""What one step rewrites at most; then others get their turn."""


class Compaction:
    """One step of compaction of one table."""

    def __init__(self, sink: Iceberg, table: Any, stopped: Callable[[], bool]) -> None:
        self._sink, self._table, self._stopped = sink, as_written(table), stopped
        self._layout = layout_of_table(table, sink.table)
        self._format = IcebergFiles(self._layout, lambda _: None, sink.target_file_size)

    def step(self, files_min: int) -> UpkeepReport:
        report = UpkeepReport()
        for group in self._groups(files_min):
            if self._stopped():
                break
            if report.bytes_compacted > STEP_BYTES_MAX:
                return report.plus(UpkeepReport(more=True))
            report = report.plus(self._rewritten(group))
        return report

    def _groups(self, files_min: int) -> list[list[Any]]:
        """Small files of one partition. A file of which rows were deleted is left to the engine that did."""
        by_partition: dict[Partition, list[Any]] = {}
        for task in self._table.scan().plan_files():
            if not task.delete_files and task.file.spec_id == self._format.spec.spec_id:
                by_partition.setdefault(values_of(task.file), []).append(task)
        return [
            [tasks[place] for place in group]
            for tasks in by_partition.values()
            for group in files_to_compact(
                [task.file.file_size_in_bytes for task in tasks],
                files_min=files_min,
                target_bytes=self._sink.target_file_size,
            )
        ]

    def _rewritten(self, tasks: Sequence[Any]) -> UpkeepReport:
        sort_by = self._sink.sort_by or self._sink.primary_key
        files = self._format.new(self._format.columns, "compacted", sort_by)
        reader = SnapshotReader(self._table, self._format.columns)
        try:
            for task in tasks:
                for rows in reader.read(task):
                    files.add_to(values_of(task.file), rows)
                    files.bound_memory()
            made = [self._format.described(file) for file in files.finish()]
        except BaseException:
            files.abort()
            raise
        # From here on an exception means that the outcome is unknown: the files stay, listed or as orphans.
        schema = self._table.schema()
        added = [as_data_file(entry, self._layout.data, self._format.spec, schema) for entry in made]
        if not self._published(added, {task.file.file_path for task in tasks}):
            files.abort()
            return UpkeepReport()
        size = sum(int(task.file.file_size_in_bytes) for task in tasks)
        return UpkeepReport(files_compacted=len(tasks), files_written=len(made), bytes_compacted=size)

    def _published(self, added: Sequence[Any], sources: set[str]) -> bool:
        """False when one of the old files is gone, or has lost rows."""
        for _ in range(TRIES):
            listed = {task.file.file_path: task for task in self._table.scan().plan_files()}
            if any(file.file_path in listed for file in added):
                return True  # the catalog said no to a commit that it had made
            if not all(path in listed and not listed[path].delete_files for path in sources):
                return False
            removed = [listed[path].file for path in sources]
            try:
                replace_files(self._table, added, removed, {"penstock.upkeep": "compaction"}, {})
            except CommitFailedException:
                self._table = as_written(self._table.refresh())  # a commit came first
                continue
            return True
        return False
