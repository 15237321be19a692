"""Merges manifests, so that commits and read planning stay fast after any number of commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.errors import REPORT_IT, ConservationError
from penstock.protocol.upkeep import ManifestSize, manifests_to_merge
from penstock.sinks.paimon.upkeep.files import ADD, DELETE, Entry, KeptTable, ManifestMeta, Snapshot
from penstock.sinks.paimon.upkeep.publish import Content, publish
from penstock.sinks.upkeep import UpkeepReport


def plan_merge(table: KeptTable, count_max: int) -> list[ManifestMeta]:
    """Neighbouring manifests of the newest snapshot that should become one; none when it is fine as it is."""
    latest = table.latest()
    if latest is None:
        return []
    metas = table.manifests(latest)
    sizes = [ManifestSize(int(m.file_size), int(m.num_added_files), int(m.num_deleted_files)) for m in metas]
    chosen = manifests_to_merge(sizes, count_max=count_max, target_bytes=table.manifest_target_bytes())
    return metas[chosen.start : chosen.stop]


def merge(table: KeptTable, chosen: list[ManifestMeta], now_ms: Callable[[], int]) -> UpkeepReport:
    """Writes the chosen manifests as one and publishes a snapshot with it in their place."""
    if not chosen:
        return UpkeepReport()
    entries = [entry for meta in chosen for entry in table.entries(meta, with_stats=True)]
    merged_entries = cancel(entries)
    require_same(entries, merged_entries)
    merged = table.write_manifests(merged_entries)
    names = [meta.file_name for meta in chosen]

    def content_on(latest: Snapshot) -> Content | None:
        there = table.manifests(latest)
        start = next((i for i, meta in enumerate(there) if meta.file_name == names[0]), None)
        if start is None or [meta.file_name for meta in there[start : start + len(names)]] != names:
            return None  # another process merged them
        return Content([*there[:start], *merged, *there[start + len(names) :]])

    if publish(table, content_on, now_ms, lambda: table.remove_manifests(merged)) is None:
        return UpkeepReport()
    return UpkeepReport(manifests_merged=len(chosen), manifests_written=len(merged))


def cancel(entries: list[Entry]) -> list[Entry]:
    """The entries without the files that were added and removed again.

    A removal stays if the file was added in a manifest that is not among these. A file that was added twice stays
    twice: hiding that would hide damage.
    """
    left: dict[tuple[Any, ...], list[Entry]] = {}
    for entry in entries:
        of_file = left.setdefault(identity(entry), [])
        if entry.kind == DELETE and of_file and of_file[-1].kind == ADD:
            of_file.pop()
        else:
            of_file.append(entry)
    kept = {id(entry) for of_file in left.values() for entry in of_file}
    return [entry for entry in entries if id(entry) in kept]


def require_same(before: list[Entry], after: list[Entry]) -> None:
    """A manifest that lists fewer rows would lose them for good, and nothing else counts them.

    Raises: `ConservationError`.
    """
    if listed(before) != listed(after):
        raise ConservationError(
            "merged manifests list {} files and {} rows, {} files and {} rows are in the table".format(
                *listed(after), *listed(before)
            ),
            cause="a fault in Penstock; nothing was published",
            next_step=REPORT_IT,
        )


def listed(entries: list[Entry]) -> tuple[int, int]:
    """Files and rows that entries add, less those that they remove."""
    signs = [1 if entry.kind == ADD else -1 for entry in entries]
    rows = sum(sign * int(entry.file.row_count) for sign, entry in zip(signs, entries, strict=True))
    return sum(signs), rows


def identity(entry: Entry) -> tuple[Any, ...]:
    """Paimon's identity of a file: the same file on another level is another one."""
    return tuple(entry.partition.values), entry.bucket, entry.file.level, entry.file.file_name
