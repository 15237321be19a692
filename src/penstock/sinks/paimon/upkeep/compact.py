"""Compacts small files of append tables: the same rows in fewer files, published as a COMPACT snapshot.

Only files that the table lists are touched, so never one of a committable that still waits. Commits that get in between
add files and take nothing away; if another process did remove a file that was rewritten, that rewrite is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.protocol.upkeep import files_to_compact
from penstock.sinks.paimon import private
from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.schema import is_storable
from penstock.sinks.paimon.upkeep.files import DELETE, Entry, KeptTable, ManifestMeta, Snapshot
from penstock.sinks.paimon.upkeep.live import SmallFiles, changes_since
from penstock.sinks.paimon.upkeep.publish import Content, publish
from penstock.sinks.paimon.upkeep.rewrite import Stopped, rewrite
from penstock.sinks.upkeep import UpkeepReport

BYTES_PER_STEP = 512 << 20
"""A step publishes after so much was rewritten, so that little is lost when it is interrupted."""

_HARMLESS = {
    "deletion-vectors.enabled": "false",
    "data-evolution.enabled": "false",
    "row-tracking.enabled": "false",
    "data-file.external-paths": "",
    "data-file.path-directory": "",
    "file.format": "parquet",
}


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Files of one partition that become one."""

    inputs: list[Entry]
    output: Entry | None = None

    @property
    def bytes(self) -> int:
        return sum(int(entry.file.file_size) for entry in self.inputs)


def why_not(table: KeptTable) -> str | None:
    """Why the files of this table cannot be compacted here; None when they can."""
    if table.table.is_primary_key_table:
        return "small files stay: a table with a primary key is compacted by Paimon's own engines"
    if Kind.of(table.table).bucketed:
        return "small files stay: rows of a table with buckets have an order that a rewrite could change"
    odd = [option for option, harmless in _HARMLESS.items() if table.options.get(option, harmless).lower() != harmless]
    if odd:
        return f"small files stay: tables with {', '.join(odd)} are not compacted"
    bad = [field.name for field in private.columns_of(table.table) if not is_storable(field.type)]
    return f"small files stay: columns {', '.join(bad)} cannot be rewritten unchanged" if bad else None


def plan_compaction(table: KeptTable, small: SmallFiles, files_min: int) -> list[Rewrite]:
    """What to rewrite in the newest snapshot, the partitions with the most files first."""
    small.advance(table)
    target = table.data_target_bytes()
    rewrites: list[Rewrite] = []
    for files in small.places.values():
        entries = list(files.values())
        sizes = [int(entry.file.file_size) for entry in entries]
        groups = files_to_compact(sizes, files_min=files_min, target_bytes=target)
        rewrites += [Rewrite([entries[index] for index in group]) for group in groups]
    return sorted(rewrites, key=lambda rewrite: len(rewrite.inputs), reverse=True)


def compact(
    table: KeptTable,
    known: Snapshot,
    planned: list[Rewrite],
    now_ms: Callable[[], int],
    stopping: Callable[[], bool],
) -> UpkeepReport:
    """Rewrites as much as one step allows and publishes it; `known` is the snapshot that the plan was made from."""
    work = _Work(table, known)
    try:
        for number, planned_one in enumerate(planned):
            if number and sum(done.bytes for done in work.done) + planned_one.bytes > BYTES_PER_STEP:
                break
            work.done.append(replace(planned_one, output=rewrite(table, planned_one.inputs, stopping)))
    except Stopped:
        pass  # what is done so far is good
    except BaseException:
        work.drop(work.done)
        raise
    return work.publish(now_ms, more=len(work.done) < len(planned))


class _Work:
    """Rewrites that wait for their snapshot. What is not published is removed."""

    def __init__(self, table: KeptTable, known: Snapshot) -> None:
        self._table, self._known = table, known
        self._manifests: list[ManifestMeta] | None = None
        self.done: list[Rewrite] = []

    def drop(self, rewrites: list[Rewrite]) -> None:
        self.done = [done for done in self.done if done not in rewrites]
        self._table.remove(path for done in rewrites for path in self._paths(done))
        self._table.remove_manifests(self._manifests or ())
        self._manifests = None

    def publish(self, now_ms: Callable[[], int], *, more: bool) -> UpkeepReport:
        if publish(self._table, self._content_on, now_ms, lambda: self.drop(self.done)) is None:
            return UpkeepReport()
        return UpkeepReport(
            files_compacted=sum(len(done.inputs) for done in self.done),
            files_written=len(self.done),
            bytes_compacted=sum(done.bytes for done in self.done),
            more=more,
        )

    def _content_on(self, latest: Snapshot) -> Content | None:
        changes = changes_since(self._table, self._known, latest)
        if changes is None:
            return None
        gone = {entry.file.file_name for entry in changes if entry.kind == DELETE}
        lost = [done for done in self.done if any(entry.file.file_name in gone for entry in done.inputs)]
        if lost:
            self.drop(lost)
        if not self.done:
            return None
        if self._manifests is None:
            self._write_manifests()
        return Content(self._table.manifests(latest), self._manifests or [])

    def _write_manifests(self) -> None:
        removed = [replace(entry, kind=DELETE) for done in self.done for entry in done.inputs]
        self._manifests = self._table.write_manifests(removed + [done.output for done in self.done])

    def _paths(self, done: Rewrite) -> list[Path]:
        return self._table.data_paths(done.output)
