"""Upkeep's decisions, without a table: what is merged, rewritten and let go, and how often."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.upkeep import (
    SMALL_SHARE,
    Kept,
    ManifestSize,
    Retention,
    SnapshotAge,
    files_to_compact,
    first_kept,
    manifests_to_merge,
)

TARGET = 8_000
MANIFESTS = st.lists(
    st.builds(ManifestSize, st.integers(1, 2 * TARGET), st.integers(0, 50), st.integers(0, 5)), max_size=80
)
SIZES = st.lists(st.integers(1, 2 * TARGET), max_size=80)


def merged(manifests: list[ManifestSize], chosen: range) -> list[ManifestSize]:
    """The list after a merge: what was chosen becomes manifests of the target size and a rest."""
    part = [manifests[i] for i in chosen]
    size, added, deleted = (sum(getattr(m, name) for m in part) for name in ("bytes", "added", "deleted"))
    full = len(chosen) == len(manifests)
    left = deleted if not full else 0
    count, rest = divmod(size, TARGET)
    new = [ManifestSize(TARGET, 0, 0)] * count + [ManifestSize(max(1, rest), max(0, added - (deleted - left)), left)]
    return manifests[: chosen.start] + new + manifests[chosen.stop :]


@given(MANIFESTS, st.integers(2, 40))
def test_a_merge_takes_neighbours_and_leaves_fewer(manifests: list[ManifestSize], count_max: int) -> None:
    chosen = manifests_to_merge(manifests, count_max=count_max, target_bytes=TARGET)
    assert chosen.step == 1
    assert 0 <= chosen.start <= chosen.stop <= len(manifests)
    assert len(chosen) != 1


@given(MANIFESTS, st.integers(2, 40))
def test_merging_comes_to_an_end_with_few_small_manifests(manifests: list[ManifestSize], count_max: int) -> None:
    for _ in range(2 * len(manifests) + 2):
        chosen = manifests_to_merge(manifests, count_max=count_max, target_bytes=TARGET)
        if not chosen:
            break
        manifests = merged(manifests, chosen)
    else:
        raise AssertionError("merges go on for ever")
    run = longest = 0
    for manifest in manifests:
        run = run + 1 if manifest.bytes < TARGET else 0
        longest = max(longest, run)
    assert longest <= count_max


def test_an_entry_is_rewritten_a_logarithmic_number_of_times() -> None:
    commits, entry, rewritten = 20_000, 10, 0
    manifests: list[ManifestSize] = []
    for _ in range(commits):
        manifests.append(ManifestSize(entry, 1, 0))
        chosen = manifests_to_merge(manifests, count_max=30, target_bytes=10**9)
        if chosen:
            size = sum(manifests[i].bytes for i in chosen)
            rewritten += size
            manifests[chosen.start : chosen.stop] = [ManifestSize(size, size // entry, 0)]
    assert len(manifests) <= 30
    assert rewritten <= commits * entry * math.log2(commits)


def test_entries_of_removed_files_never_outnumber_the_others_for_long() -> None:
    lists = [ManifestSize(100, 40, 0), ManifestSize(10, 1, 20)]
    assert manifests_to_merge(lists, count_max=30, target_bytes=TARGET) == range(0)
    lists.append(ManifestSize(10, 1, 20))
    assert manifests_to_merge(lists, count_max=30, target_bytes=TARGET) == range(3)


@given(SIZES, st.integers(2, 12))
def test_groups_of_files_are_disjoint_and_fit_into_one_file(sizes: list[int], files_min: int) -> None:
    groups = files_to_compact(sizes, files_min=files_min, target_bytes=TARGET)
    chosen = [index for group in groups for index in group]
    assert len(chosen) == len(set(chosen))
    for group in groups:
        assert len(group) >= files_min
        assert sum(sizes[index] for index in group) <= TARGET
        assert all(sizes[index] < SMALL_SHARE * TARGET for index in group)


@given(SIZES, st.integers(2, 12))
def test_compaction_comes_to_an_end(sizes: list[int], files_min: int) -> None:
    for _ in range(len(sizes) + 1):
        groups = files_to_compact(sizes, files_min=files_min, target_bytes=TARGET)
        if not groups:
            return
        gone = {index for group in groups for index in group}
        new = [sum(sizes[index] for index in group) for group in groups]
        sizes = [size for index, size in enumerate(sizes) if index not in gone] + new
    raise AssertionError("compaction goes on for ever")


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    """A stream of small files, one step per commit: the worst case for amplification."""
    commits, rewritten = 5_000, 0
    sizes: list[int] = []
    for _ in range(commits):
        sizes.append(10)
        for group in files_to_compact(sizes, files_min=10, target_bytes=10**9):
            total = sum(sizes[index] for index in group)
            rewritten += total
            sizes = [size for index, size in enumerate(sizes) if index not in group] + [total]
    assert len(sizes) <= 10 * math.log2(commits)
    assert rewritten <= commits * 10 * math.log2(commits)


USERS = st.sampled_from(["me", "you", "upkeep"])
HISTORY = st.lists(st.tuples(USERS, st.integers(0, 50)), min_size=1, max_size=30)


@given(
    HISTORY, st.integers(1, 10), st.none() | st.integers(1, 10), st.integers(0, 2_000), st.none() | st.integers(1, 40)
)
def test_what_is_kept_obeys_every_rule(
    history: list[tuple[str, int]], least: int, most: int | None, age_s: int, wanted: int | None
) -> None:
    """C4: the newest snapshot of a protected user stays, with all that follow; so does what a consumer wants."""
    at_ms = 0
    snapshots = []
    for number, (user, pause_s) in enumerate(history, 5):
        at_ms += pause_s * 1000
        snapshots.append(SnapshotAge(number, user, at_ms))
    now_ms = at_ms + 1000
    consumers = {} if wanted is None else {"report": wanted}
    kept = first_kept(snapshots, Retention(least, most, age_s), now_ms=now_ms, users={"me", "you"}, consumers=consumers)
    assert kept is not None
    stay = [snapshot for snapshot in snapshots if snapshot.id >= kept.first]
    assert stay, "the newest snapshot always stays"
    assert stay[0].id == kept.first
    for user in ("me", "you"):
        newest = [snapshot for snapshot in snapshots if snapshot.user == user][-1:]
        assert all(snapshot in stay for snapshot in newest)
    if wanted is not None:
        assert all(snapshot in stay for snapshot in snapshots if snapshot.id >= wanted)
    if kept.held_by is None:
        assert len(stay) >= min(least if most is None else min(least, most), len(snapshots))
        if most is not None:
            assert len(stay) <= max(1, most)
        else:
            assert all(snapshot in stay for snapshot in snapshots if now_ms - snapshot.at_ms < age_s * 1000)


def test_a_table_without_snapshots_has_nothing_to_keep() -> None:
    assert first_kept([], Retention(1, None, 0.0), now_ms=0, users=set(), consumers={}) is None


def test_whoever_needs_the_oldest_snapshot_is_named() -> None:
    snapshots = [SnapshotAge(1, "me", 0), SnapshotAge(2, "x", 0), SnapshotAge(3, "x", 0)]
    retention = Retention(1, None, 0.0)
    assert first_kept(snapshots, retention, now_ms=9, users={"me"}, consumers={"c": 2}) == Kept(1, "me")
    assert first_kept(snapshots, retention, now_ms=9, users=set(), consumers={"c": 2}) == Kept(2, "consumer c")
