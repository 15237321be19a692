"""Upkeep decisions: which manifests to merge, which files to rewrite, which snapshots to let go.

All rules are size-tiered where something is rewritten: a file is rewritten only together with at least half its size
of smaller ones, so each row and each manifest entry is rewritten a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

SMALL_SHARE = 0.7
"""A data file below this share of the target size is small; one above is never rewritten."""


LEAVE_TO_OTHERS_S = 3600.0
"""After another engine compacted a table, compaction is left to it for so long."""


def left_to_others(foreign_at_ms: int | None, now_ms: int) -> bool:
    """Whether another engine compacts the table: two that rewrite the same files undo each other's work."""
    return foreign_at_ms is not None and now_ms - foreign_at_ms < LEAVE_TO_OTHERS_S * 1000


PAUSE_S_MIN = 0.25
"""Commits of a stream come at most about four times a second."""


def pause_until_due(commits: int, elapsed_s: float, *, trigger: int, longest_s: float) -> float:
    """How long to wait until about `trigger` more commits were made, each of which is a run that readers merge.

    >>> pause_until_due(20, 10.0, trigger=5, longest_s=30.0), pause_until_due(1, 30.0, trigger=5, longest_s=30.0)
    (2.5, 30.0)
    """
    if commits <= 0 or elapsed_s <= 0:
        return longest_s
    return min(longest_s, max(PAUSE_S_MIN, trigger * elapsed_s / commits))


@dataclass(frozen=True, slots=True)
class ManifestSize:
    """One manifest of a snapshot, in the order of its list."""

    bytes: int
    added: int
    deleted: int


def manifests_to_merge(manifests: Sequence[ManifestSize], *, count_max: int, target_bytes: int) -> range:
    """Neighbours to write as one; an empty range when there is nothing to do.

    Neighbours only: an entry that removes a file must stay behind the one that added it. All are merged when the
    entries of removed files outnumber those of files that are there.
    """
    deleted = sum(manifest.deleted for manifest in manifests)
    added = sum(manifest.added for manifest in manifests)
    if deleted >= max(count_max, added - deleted) and len(manifests) > 1:
        return range(len(manifests))
    run = _longest_run([manifest.bytes < target_bytes for manifest in manifests])
    if len(run) <= count_max:
        return range(0)
    absorbed, start = 0, run.stop
    while start > run.start:
        older = manifests[start - 1].bytes
        if run.stop - start >= max(2, count_max // 2) and older > 2 * absorbed:
            break
        absorbed += older
        start -= 1
    return range(start, run.stop)


def _longest_run(flags: Sequence[bool]) -> range:
    """The longest stretch of true flags, the last one of equals."""
    best, start = range(0), 0
    for index in range(len(flags) + 1):
        if index == len(flags) or not flags[index]:
            if index - start >= len(best):
                best = range(start, index)
            start = index + 1
    return best


def files_to_compact(sizes: Sequence[int], *, files_min: int, target_bytes: int) -> list[list[int]]:
    """Groups of small files, as indices, each to be rewritten as one file of at most about the target size.

    A group has at least `files_min` files, so each rewrite leaves fewer files than before. Files of about one size are
    taken in their order: neighbours often hold neighbouring values, by which readers skip files.
    """
    small = [index for index, size in enumerate(sizes) if size < SMALL_SHARE * target_bytes]
    small.sort(key=lambda index: sizes[index].bit_length() // 2)
    groups: list[list[int]] = []
    group: list[int] = []
    total = 0
    for index in small:
        size = sizes[index]
        if group and (total + size > target_bytes or size > 2 * total):
            groups.append(group)
            group, total = [], 0
        group.append(index)
        total += size
    groups.append(group)
    return [sorted(group) for group in groups if len(group) >= max(2, files_min)]


@dataclass(frozen=True, slots=True)
class SnapshotAge:
    """What decides about a snapshot's life."""

    id: int
    user: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Retention:
    """How many snapshots to keep: always `count_min`, never more than `count_max`, between them by age."""

    count_min: int
    count_max: int | None
    age_s: float


@dataclass(frozen=True, slots=True)
class Kept:
    """The oldest snapshot to keep; `held_by` says who needs it, if it would otherwise go."""

    first: int
    held_by: str | None = None


def first_kept(
    snapshots: Sequence[SnapshotAge],
    retention: Retention,
    *,
    now_ms: int,
    users: Collection[str],
    consumers: dict[str, int],
) -> Kept | None:
    """Everything below the answer may go; None when the table has no snapshots.

    `snapshots` ascend by id. Of each commit user in `users` the newest snapshot stays, with all that follow: together
    they prove what that user committed. A consumer keeps the next snapshot that it wants to read.
    """
    if not snapshots:
        return None
    count = len(snapshots)
    by_age = next((i for i, s in enumerate(snapshots) if now_ms - s.at_ms < retention.age_s * 1000), count)
    index = min(by_age, max(0, count - max(1, retention.count_min)))
    if retention.count_max is not None:
        index = max(index, count - max(1, retention.count_max))
    kept = Kept(snapshots[index].id)
    holders = {snapshot.user: snapshot.id for snapshot in snapshots if snapshot.user in users}
    holders |= {f"consumer {name}": wanted for name, wanted in consumers.items()}
    for holder, needed in sorted(holders.items(), key=lambda item: item[1]):
        if needed < kept.first:
            return Kept(max(needed, snapshots[0].id), holder)
    return kept
