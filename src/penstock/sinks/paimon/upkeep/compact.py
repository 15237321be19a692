"""Compaction: the same rows in fewer files, published as a COMPACT snapshot.

Only files that the table lists are touched, so never one of a committable that still waits. Commits that get in between
add files and take nothing away. If another process did remove a file that was rewritten, or merged runs of the same
bucket, that rewrite is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from penstock.protocol.upkeep import files_to_compact
from penstock.sinks.paimon import private
from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.schema import is_storable
from penstock.sinks.paimon.upkeep.files import DELETE, Entry, KeptTable, ManifestMeta, Snapshot
from penstock.sinks.paimon.upkeep.keyed import merge_unit, new_files
from penstock.sinks.paimon.upkeep.live import Place, SmallFiles, changes_since, place
from penstock.sinks.paimon.upkeep.merge import identity
from penstock.sinks.paimon.upkeep.publish import Content, publish
from penstock.sinks.paimon.upkeep.rewrite import Stopped, rewrite
from penstock.sinks.paimon.upkeep.runs import Unit
from penstock.sinks.upkeep import UpkeepReport

BYTES_PER_STEP = 512 << 20
"""A step in the driver publishes after so much was rewritten, so that little is lost when it is interrupted."""

_HARMLESS = {
    "deletion-vectors.enabled": "false",
    "data-evolution.enabled": "false",
    "row-tracking.enabled": "false",
    "data-file.external-paths": "",
    "data-file.path-directory": "",
    "file.format": "parquet",
}


class Planned(Protocol):
    """Files of one place to be replaced by others, all at once or not at all."""

    @property
    def inputs(self) -> list[Entry]: ...
    @property
    def bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SmallGroup:
    """Small files of an append table that become one."""

    inputs: list[Entry]

    @property
    def bytes(self) -> int:
        return sum(int(entry.file.file_size) for entry in self.inputs)


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Inputs, and the entries that stand for them from now on."""

    planned: Planned
    outputs: list[Entry]

    @property
    def rows(self) -> int:
        """How many more records there are."""
        after = sum(int(entry.file.row_count) for entry in self.outputs)
        return after - sum(int(entry.file.row_count) for entry in self.planned.inputs)


Make = Callable[[Sequence[Planned]], Iterable[Rewrite]]
"""Rewrites what was planned, one by one or at once. May raise `Stopped` in between."""


def why_not(table: KeptTable) -> str | None:
    """Why the small files of this append table cannot be compacted here; None when they can."""
    if Kind.of(table.table).bucketed:
        return "small files stay: rows of a table with buckets have an order that a rewrite could change"
    odd = [option for option, harmless in _HARMLESS.items() if table.options.get(option, harmless).lower() != harmless]
    if odd:
        return f"small files stay: tables with {', '.join(odd)} are not compacted"
    bad = [field.name for field in private.columns_of(table.table) if not is_storable(field.type)]
    return f"small files stay: columns {', '.join(bad)} cannot be rewritten unchanged" if bad else None


def plan_compaction(table: KeptTable, small: SmallFiles, files_min: int) -> list[SmallGroup]:
    """What to rewrite in the newest snapshot, the partitions with the most files first."""
    small.advance(table)
    target = table.data_target_bytes()
    groups: list[SmallGroup] = []
    for files in small.places.values():
        entries = list(files.values())
        sizes = [int(entry.file.file_size) for entry in entries]
        chosen = files_to_compact(sizes, files_min=files_min, target_bytes=target)
        groups += [SmallGroup([entries[index] for index in group]) for group in chosen]
    return sorted(groups, key=lambda group: len(group.inputs), reverse=True)


def made_here(table: KeptTable, stopping: Callable[[], bool]) -> Make:
    """Rewrites in this process, one after another, as much as one step allows."""

    def make(planned: Sequence[Planned]) -> Iterator[Rewrite]:
        done = 0
        for number, one in enumerate(planned):
            if number and done + one.bytes > BYTES_PER_STEP:
                return
            done += one.bytes
            if isinstance(one, Unit):
                yield Rewrite(one, merge_unit(table, one, stopping))
            else:
                yield Rewrite(one, [rewrite(table, one.inputs, stopping)])

    return make


def compact(
    table: KeptTable, known: Snapshot, planned: Sequence[Planned], make: Make, now_ms: Callable[[], int]
) -> UpkeepReport:
    """Rewrites as much as `make` does at a time and publishes it; `known` is the snapshot that was planned on."""
    work = _Work(table, known)
    try:
        for one in make(planned):
            work.add(one)
    except Stopped:
        pass  # what is done so far is good
    except BaseException:
        work.drop(list(work.done))
        raise
    return work.publish(now_ms, more=len(work.done) < len(planned))


class _Work:
    """Rewrites that wait for their snapshot. What is not published is removed."""

    def __init__(self, table: KeptTable, known: Snapshot) -> None:
        self._table, self._known = table, known
        self._manifests: list[ManifestMeta] | None = None
        self.done: list[Rewrite] = []

    def add(self, one: Rewrite) -> None:
        self.done.append(one)

    def drop(self, rewrites: list[Rewrite]) -> None:
        self.done = [done for done in self.done if done not in rewrites]
        for one in rewrites:
            self._table.remove(new_files(self._table, one.planned.inputs, one.outputs))
        self._table.remove_manifests(self._manifests or ())
        self._manifests = None

    def publish(self, now_ms: Callable[[], int], *, more: bool) -> UpkeepReport:
        if publish(self._table, self._content_on, now_ms, lambda: self.drop(self.done)) is None:
            return UpkeepReport()
        keyed = any(isinstance(done.planned, Unit) for done in self.done)
        return UpkeepReport(
            files_compacted=sum(len(done.planned.inputs) for done in self.done),
            files_written=sum(len(new_files(self._table, d.planned.inputs, d.outputs)) for d in self.done),
            bytes_compacted=sum(done.planned.bytes for done in self.done),
            more=more or keyed,  # a merged run may be due to be merged with the next one
        )

    def _content_on(self, latest: Snapshot) -> Content | None:
        changes = changes_since(self._table, self._known, latest)
        if changes is None:
            return None
        gone = {identity(entry) for entry in changes if entry.kind == DELETE}
        merged = {place(entry) for entry in changes if entry.kind == DELETE or entry.file.level > 0}
        lost = [done for done in self.done if _is_lost(done.planned, gone, merged)]
        if lost:
            self.drop(lost)
        if not self.done:
            return None
        if self._manifests is None:
            self._write_manifests()
        rows = sum(done.rows for done in self.done)
        return Content(self._table.manifests(latest), self._manifests or [], rows)

    def _write_manifests(self) -> None:
        removed = [replace(entry, kind=DELETE) for done in self.done for entry in done.planned.inputs]
        self._manifests = self._table.write_manifests([*removed, *(e for done in self.done for e in done.outputs)])


def _is_lost(planned: Planned, gone: set[tuple[object, ...]], merged: set[Place]) -> bool:
    """Whether others changed what this rewrite was made from."""
    if isinstance(planned, Unit):
        return place(planned.inputs[0]) in merged
    return any(identity(entry) in gone for entry in planned.inputs)
