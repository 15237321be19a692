"""The files of a table with a primary key as sorted runs, and which of them are due to be merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from penstock.errors import TableRefused
from penstock.protocol.sorted_runs import (
    BALANCED,
    READS,
    WRITES,
    BucketRun,
    KeyRange,
    Tiering,
    rewrites,
    runs_to_merge,
    sections,
)
from penstock.sinks.paimon import private
from penstock.sinks.paimon.kinds import Kind, check_kind
from penstock.sinks.paimon.schema import is_storable
from penstock.sinks.paimon.upkeep.files import Entry, KeptTable
from penstock.sinks.paimon.upkeep.live import LiveFiles, is_whole
from penstock.sinks.upkeep import MergeFor

FIRST_ROW = "first-row"
QUIET_BYTES_MAX = 64 << 20
"""So much is merged in one look at a table that is quiet. A table that gets a commit now and then is quiet often."""
_TIERINGS: dict[MergeFor, Tiering] = {"reads": READS, "writes": WRITES}


@dataclass(frozen=True, slots=True)
class Group:
    """Files of one bucket that become one sorted run, or a part of it, on `level`.

    `parts` are files whose keys do not meet, part by part, by ascending keys. `above` are older files that stay and
    may hold the same keys. With `drops_deletes` a deletion has nothing left to delete.
    """

    parts: tuple[tuple[Entry, ...], ...]
    level: int
    drops_deletes: bool
    above: tuple[Entry, ...] = ()

    @property
    def inputs(self) -> list[Entry]:
        return [entry for part in self.parts for entry in part]

    @property
    def bytes(self) -> int:
        return sum(int(entry.file.file_size) for entry in self.inputs)

    @property
    def raises_only(self) -> bool:
        """Whether the one file can stay as it is, on another level."""
        (first, *more) = self.inputs
        kept = not self.drops_deletes or not first.file.delete_row_count
        return not more and kept and not self.above


@dataclass(frozen=True, slots=True)
class Unit:
    """What one bucket needs: all groups of it, or none."""

    groups: tuple[Group, ...]

    @property
    def inputs(self) -> list[Entry]:
        return [entry for group in self.groups for entry in group.inputs]

    @property
    def bytes(self) -> int:
        """What has to be rewritten."""
        return sum(group.bytes for group in self.groups if not group.raises_only)


def why_not_merged(table: KeptTable) -> str | None:
    """Why the sorted runs of this table cannot be merged here; None when they can."""
    try:
        check_kind(table.table)
    except TableRefused as error:
        return f"sorted runs stay: {error.seen}"
    bad = [field.name for field in private.columns_of(table.table) if not is_storable(field.type)]
    return f"sorted runs stay: columns {', '.join(bad)} cannot be rewritten unchanged" if bad else None


def tiering_of(table: KeptTable, merge_for: MergeFor | None = None) -> Tiering:
    """As the policy says; else by the table's own options; what it leaves open is balanced.

    Paimon's defaults are 5 runs, and newer runs of twice the size of the oldest one. A read then costs up to twice as
    much as with ours, while little less is rewritten.
    """
    if merge_for is not None:
        return _TIERINGS[merge_for]
    options = table.options
    trigger = int(options.get("num-sorted-run.compaction-trigger", BALANCED.trigger))
    return Tiering(
        trigger=trigger,
        excess_percent=int(options.get("compaction.max-size-amplification-percent", BALANCED.excess_percent)),
        ratio_percent=int(options.get("compaction.size-ratio", BALANCED.ratio_percent)),
        levels=int(options.get("num-levels", max(trigger + 1, BALANCED.levels))),
    )


def plan_runs(
    table: KeptTable, live: LiveFiles, merge_for: MergeFor | None = None, *, quiet: bool = False
) -> tuple[list[Unit], list[str]]:
    """What to merge in the newest snapshot, the buckets with the most runs first, and why some buckets stay.

    When nobody commits (`quiet`), what is small becomes one run per bucket, so that readers have nothing to merge.
    """
    units, notes = _plan(table, live, tiering_of(table, merge_for))
    if units or not quiet:
        return units, notes
    smallest = sorted(_plan(table, live, READS)[0], key=lambda unit: unit.bytes)
    sums = accumulate(unit.bytes for unit in smallest)
    return [unit for unit, total in zip(smallest, sums, strict=True) if total <= QUIET_BYTES_MAX], notes


def _plan(table: KeptTable, live: LiveFiles, tiering: Tiering) -> tuple[list[Unit], list[str]]:
    kind, target = Kind.of(table.table), table.data_target_bytes(keyed=True)
    found: list[tuple[int, Unit]] = []
    notes: set[str] = set()
    for files in live.places.values():
        entries = list(files.values())
        if (reason := _why_not_these(entries, kind)) is not None:
            notes.add(reason)
            continue
        runs = sorted_runs(entries)
        unit = _due(runs, kind, tiering, target)
        if unit is not None:
            found.append((len(runs), unit))
    return [unit for _, unit in sorted(found, key=lambda pair: pair[0], reverse=True)], sorted(notes)


def sorted_runs(entries: Sequence[Entry]) -> list[tuple[Entry, ...]]:
    """The files of one bucket, run by run, the newest first."""
    new = sorted((e for e in entries if e.file.level == 0), key=_age, reverse=True)
    levels = sorted({int(entry.file.level) for entry in entries} - {0})
    return [(entry,) for entry in new] + [tuple(e for e in entries if e.file.level == level) for level in levels]


def _age(entry: Entry) -> tuple[int, int, str]:
    return int(entry.file.max_sequence_number), -int(entry.file.min_sequence_number), str(entry.file.file_name)


def _due(runs: list[tuple[Entry, ...]], kind: Kind, tiering: Tiering, target: int) -> Unit | None:
    shape = [BucketRun(int(run[0].file.level), sum(int(entry.file.file_size) for entry in run)) for run in runs]
    # Readers merge a file of level 0 even if it is alone.
    merge = runs_to_merge(shape, tiering, raise_new=kind.merge_engine == FIRST_ROW or tiering.trigger == 1)
    if merge is None:
        return None
    chosen = [entry for run in runs[: merge.count] for entry in run]
    # Readers of a first-row table do not merge: a key must be in one file only.
    staying = [entry for run in runs[merge.count :] for entry in run] if kind.merge_engine == FIRST_ROW else []
    drops = merge.count == len(runs) and not kind.options.get("sequence.field")
    sizes = [int(entry.file.file_size) for entry in chosen]
    groups = []
    for parts in rewrites(sections([keys_of(entry) for entry in chosen]), sizes, target):
        files = tuple(tuple(chosen[index] for index in part) for part in parts)
        above = tuple(entry for entry in staying if _meets(entry, files))
        groups.append(Group(files, merge.level, drops, above))
    needed = [group for group in groups if not (group.raises_only and group.inputs[0].file.level == merge.level)]
    return Unit(tuple(needed)) if needed else None


def keys_of(entry: Entry) -> KeyRange:
    return KeyRange(tuple(entry.file.min_key.values), tuple(entry.file.max_key.values))


def _meets(entry: Entry, parts: Iterable[Iterable[Entry]]) -> bool:
    keys = keys_of(entry)
    ranges: Iterator[Any] = (keys_of(other) for part in parts for other in part)
    return any(keys.low <= other.high and other.low <= keys.high for other in ranges)


def _why_not_these(entries: Sequence[Entry], kind: Kind) -> str | None:
    if not all(is_whole(entry.file) for entry in entries):
        return "some sorted runs stay: another engine wrote them in a format that is not rewritten here"
    takes_back = any(entry.file.delete_row_count != 0 for entry in entries)
    if takes_back and (kind.merge_engine != "deduplicate" or kind.ignores_deletes):
        return (
            f"some sorted runs stay: rows of another engine take others back, with merge-engine = {kind.merge_engine}"
        )
    return None
