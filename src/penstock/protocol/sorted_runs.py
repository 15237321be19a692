"""Which files of a bucket to merge: the universal compaction that Paimon's own engines do, as pure functions.

A bucket of a table with a primary key is a list of *sorted runs*, the newest first. Each file of level 0 is one, the
newest by sequence number first; then each higher level is one, whose files do not overlap. Only the newest runs are
merged, all of them up to some run, and the result gets a level below that of the next run. So runs stay in the order of
their age, and no two files of a level above 0 overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BucketRun:
    """One sorted run."""

    level: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Tiering:
    """When runs are merged, by Paimon's options and with its defaults.

    `trigger`: runs that are allowed. `excess_percent`: bytes above the oldest run, in percent of it, beyond which all
    are merged. `ratio_percent`: a run joins those above it if it is at most so much larger than all of them together.
    """

    trigger: int = 5
    excess_percent: int = 200
    ratio_percent: int = 1
    levels: int = 6

    @property
    def top(self) -> int:
        return self.levels - 1


READS = Tiering(trigger=1, excess_percent=0)
"""All runs of a bucket become one whenever upkeep looks: readers have nothing to merge until the next commit."""
BALANCED = Tiering(trigger=4, excess_percent=25)
WRITES = Tiering(trigger=8, excess_percent=100, levels=9)
"""Each row is rewritten a few times only; readers merge more."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The newest `count` runs become one on `level`."""

    count: int
    level: int


def runs_to_merge(runs: Sequence[BucketRun], tiering: Tiering, *, raise_new: bool = False) -> Merge | None:
    """What to merge next; None when the bucket is in shape.

    With `raise_new` no file stays on level 0, however few there are: readers of some tables do not look at them.

    >>> runs_to_merge([BucketRun(0, 1)] * 5 + [BucketRun(5, 100)], Tiering())
    Merge(count=5, level=4)
    """
    if len(runs) >= tiering.trigger:
        newer = sum(run.bytes for run in runs[:-1])
        if newer * 100 > tiering.excess_percent * runs[-1].bytes:
            return _useful(runs, Merge(len(runs), max(tiering.top, runs[-1].level)))
        merge = _by_ratio(runs, tiering, 1)
        if merge is not None:
            return _useful(runs, merge)
    if len(runs) > tiering.trigger:
        return _useful(runs, _by_ratio(runs, tiering, len(runs) - tiering.trigger + 1))
    new = sum(run.level == 0 for run in runs)
    if raise_new and new:
        return _useful(runs, _by_ratio(runs, tiering, new, forced=True))
    return None


def _by_ratio(runs: Sequence[BucketRun], tiering: Tiering, count: int, *, forced: bool = False) -> Merge | None:
    """Lets older runs join as long as they are not larger than those before, beginning with `count` of them."""
    size = sum(run.bytes for run in runs[:count])
    found = forced or count > 1
    for run in runs[count:]:
        larger = size * (100 + tiering.ratio_percent) < run.bytes * 100
        if larger and (not found or run.level > 1):
            break
        size, count, found = size + run.bytes, count + 1, True
    return _placed(runs, tiering, count) if found else None


def _placed(runs: Sequence[BucketRun], tiering: Tiering, count: int) -> Merge:
    """With the level of the result: below that of the next run, and never 0."""
    top = max(tiering.top, runs[-1].level)
    level = top if count == len(runs) else max(0, runs[count].level - 1)
    while level == 0 and count < len(runs):
        level, count = runs[count].level, count + 1
    return Merge(count, top if count == len(runs) else level)


def _useful(runs: Sequence[BucketRun], merge: Merge | None) -> Merge | None:
    """A single run that is on its level already needs nothing."""
    if merge is None or (merge.count == 1 and runs[0].level == merge.level):
        return None
    return merge


@dataclass(frozen=True, slots=True)
class KeyRange:
    """The keys of one file, both ends included; keys are tuples."""

    low: Any
    high: Any


def sections(ranges: Sequence[KeyRange]) -> list[list[int]]:
    """Files, as indices, in groups whose keys do not meet, by ascending keys.

    >>> sections([KeyRange((5,), (9,)), KeyRange((0,), (3,)), KeyRange((2,), (4,))])
    [[1, 2], [0]]
    """
    found: list[list[int]] = []
    high: Any = None
    for index in sorted(range(len(ranges)), key=lambda i: ranges[i].low):
        if not found or ranges[index].low > high:
            found.append([])
            high = ranges[index].high
        found[-1].append(index)
        high = max(high, ranges[index].high)
    return found


def rewrites(groups: Sequence[Sequence[int]], sizes: Sequence[int], target_bytes: int) -> list[list[list[int]]]:
    """Sections that are written together, one list for each rewrite.

    A rewrite of one section with one file changes nothing but the file's level. So large files that meet no other are
    not copied; small ones join their neighbours.
    """
    done: list[list[list[int]]] = []
    open_: list[list[int]] = []
    for group in groups:
        if len(group) == 1 and sizes[group[0]] >= target_bytes:
            done += [open_] if open_ else []
            done.append([list(group)])
            open_ = []
        else:
            open_.append(list(group))
    return done + ([open_] if open_ else [])
