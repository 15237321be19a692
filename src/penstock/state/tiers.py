"""Which state files a flush rewrites: pure decisions.

An older file joins a merge while it is at most twice as large as all that joined before, so every row is rewritten a
logarithmic number of times. A large state is decided by *sections*, runs of key groups, and one flush merges only some
of them deeply. So the time of a flush depends on what changed, not on the size of the state.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.protocol.keygroups import KeyGroupRange

MERGE_RATIO = 2
FILES_MAX = 8
"""The most files with rows of one section. A section that waits for its turn may have twice as many."""
SECTION_BYTES = 16 << 20
MERGE_BYTES = 32 << 20
"""How much one flush may always rewrite; it takes a fraction of a second."""
MERGE_PER_CHANGE = 16
"""And this many times the changes: tiers rewrite a row about ten times until it is in the largest file."""

Sizes = npt.NDArray[np.int64]


def tiers_to_merge(sizes: Sequence[int], size: int, *, floor: int = 0) -> int:
    """How many of the newest `sizes` (oldest first) something new of `size` is merged with.

    Below `floor` an older one always joins.

    >>> tiers_to_merge([500, 40, 10], 15), tiers_to_merge([500, 40, 10], 3)
    (2, 0)
    """
    joined = 0
    for older in reversed(sizes):
        if older > max(MERGE_RATIO * size, floor):
            break
        size += older
        joined += 1
    return joined


def sections(groups: KeyGroupRange, rows: int, row_bytes: int) -> tuple[KeyGroupRange, ...]:
    """Cuts key groups into parts of equal width. When the state doubles, each part is cut into halves.

    >>> len(sections(KeyGroupRange(0, 64), rows=1_000_000, row_bytes=40))
    2
    """
    count = 1
    while 2 * count <= len(groups) and rows * row_bytes >= 2 * count * SECTION_BYTES:
        count *= 2
    bounds = [groups.lo + len(groups) * number // count for number in range(count + 1)]
    return tuple(KeyGroupRange(lo, hi) for lo, hi in itertools.pairwise(bounds))


@dataclass(frozen=True, slots=True)
class SectionMerge:
    """What is written for one section: its changes, and its rows in the files from number `kept` on."""

    section: int
    kept: int
    last: bool
    """No older file has rows of this section."""


def plan_merges(sizes: Sizes, changed: Sizes, row_bytes: int) -> list[SectionMerge]:
    """For each section with changes what is merged. `sizes`: rows by file, oldest first, and section."""
    budget = max(MERGE_BYTES // row_bytes, MERGE_PER_CHANGE * int(changed.sum()))
    small = budget // len(changed)
    # Sections follow the one in the middle where files are small: a file that all of them give up can be removed.
    half = len(changed) // 2
    common = tiers_to_merge(np.sort(sizes, axis=1)[:, half].tolist(), int(np.sort(changed)[half]))
    merges = []
    spent = 0
    files = (sizes > 0).sum(axis=0)
    for number in sorted(np.flatnonzero(changed).tolist(), key=lambda number: -files[number]):
        own = sizes[:, number]
        followed = min(common, int(np.argmax(np.append(own[::-1] > small, True))))
        joined = max(followed, _due(own, int(changed[number])))
        if spent and spent + _newest(own, joined) > budget and files[number] < 2 * FILES_MAX - 1:
            joined = followed  # this section has its turn
        spent += _newest(own, joined)
        merges.append(SectionMerge(number, len(own) - joined, last=not own[: len(own) - joined].any()))
    return sorted(merges, key=lambda merge: merge.section)


def _newest(sizes: Sizes, joined: int) -> int:
    return int(sizes[len(sizes) - joined :].sum())


def _due(sizes: Sizes, changed: int) -> int:
    """How many files have to be joined because newer ones outweigh them, or because there are too many."""
    newer = changed + np.cumsum(sizes[::-1])[::-1] - sizes
    outweighed = np.flatnonzero((sizes <= newer) & (sizes > 0))
    kept = np.searchsorted(np.cumsum(sizes > 0), FILES_MAX - 1, side="right")
    return len(sizes) - min(int(kept), int(outweighed[0]) if len(outweighed) else len(sizes))
