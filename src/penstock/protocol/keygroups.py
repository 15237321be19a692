"""Key groups: the unit in which records, state and cursors move between subtasks.

A record's key group is ``pmod(hash, max_parallelism)``; its subtask is ``key_group * parallelism // max_parallelism``.
Each subtask therefore owns one contiguous range, and rescaling only re-cuts ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

MAX_PARALLELISM_LIMIT = 1 << 15
DEFAULT_MAX_PARALLELISM = 128

Bound = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARALLELISM_LIMIT)]


class KeyGroupRange(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """The key groups `lo` to `hi` - 1."""

    lo: Bound
    hi: Bound

    def __len__(self) -> int:
        return max(0, self.hi - self.lo)

    def intersect(self, other: KeyGroupRange) -> KeyGroupRange | None:
        if other.lo <= self.lo and self.hi <= other.hi:
            return self if self.lo < self.hi else None
        lo, hi = max(self.lo, other.lo), min(self.hi, other.hi)
        return KeyGroupRange(lo, hi) if lo < hi else None

    def subtract(self, other: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        if self.intersect(other) is None:
            return (self,)
        parts = (KeyGroupRange(self.lo, other.lo), KeyGroupRange(other.hi, self.hi))
        return tuple(part for part in parts if len(part) > 0)


@lru_cache(maxsize=2 * MAX_PARALLELISM_LIMIT)
def shared(ranges: tuple[KeyGroupRange, ...]) -> tuple[KeyGroupRange, ...]:
    """The same ranges, as the value that others have too.

    All files of a subtask have the same key groups. A manifest of thousands of subtasks is larger than the caches of a
    processor, and equal values that are one object take a third off it.

    >>> shared((KeyGroupRange(0, 300),)) is shared((KeyGroupRange(0, 300),))
    True
    """
    return ranges


def joined(ranges: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """Ascending ranges, neighbours as one.

    >>> joined([KeyGroupRange(0, 2), KeyGroupRange(2, 3), KeyGroupRange(5, 8)])
    (KeyGroupRange(lo=0, hi=3), KeyGroupRange(lo=5, hi=8))
    """
    result: list[KeyGroupRange] = []
    for part in ranges:
        if result and result[-1].hi == part.lo:
            result[-1] = KeyGroupRange(result[-1].lo, part.hi)
        else:
            result.append(part)
    return tuple(result)


def union(ranges: Iterable[KeyGroupRange]) -> tuple[KeyGroupRange, ...]:
    """The key groups of all ranges, ascending, in as few ranges as possible.

    >>> union([KeyGroupRange(4, 8), KeyGroupRange(0, 2), KeyGroupRange(1, 3)])
    (KeyGroupRange(lo=0, hi=3), KeyGroupRange(lo=4, hi=8))
    """
    result: list[KeyGroupRange] = []
    for part in sorted(ranges):
        if result and part.lo <= result[-1].hi:
            if part.hi > result[-1].hi:
                result[-1] = KeyGroupRange(result[-1].lo, part.hi)
        else:
            result.append(part)
    return tuple(result)


def subtract_all(part: KeyGroupRange, taken: Sequence[KeyGroupRange]) -> Iterator[KeyGroupRange]:
    """What is left of a range; `taken` is a `union`, of which only what overlaps is looked at.

    >>> list(subtract_all(KeyGroupRange(0, 9), [KeyGroupRange(1, 3), KeyGroupRange(8, 12)]))
    [KeyGroupRange(lo=0, hi=1), KeyGroupRange(lo=3, hi=8)]
    """
    lo = part.lo
    for index in range(bisect_right(taken, lo, key=_end), len(taken)):
        other = taken[index]
        if other.lo >= part.hi:
            break
        if other.lo > lo:
            yield KeyGroupRange(lo, other.lo)
        lo = other.hi
    if lo < part.hi:
        yield KeyGroupRange(lo, part.hi)


def _end(part: KeyGroupRange) -> int:
    return part.hi


def range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups of one subtask.

    >>> [range_of(k, 3, 8) for k in range(3)]
    [KeyGroupRange(lo=0, hi=3), KeyGroupRange(lo=3, hi=6), KeyGroupRange(lo=6, hi=8)]
    """
    assert 0 <= subtask < parallelism <= max_parallelism
    return KeyGroupRange(
        -(-subtask * max_parallelism // parallelism), -(-(subtask + 1) * max_parallelism // parallelism)
    )


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    assert 0 <= key_group < max_parallelism
    return key_group * parallelism // max_parallelism


def subtasks_of(part: KeyGroupRange, parallelism: int, max_parallelism: int) -> range:
    """The subtasks that own some of a range's key groups; a range is never empty.

    >>> subtasks_of(KeyGroupRange(2, 7), 3, 8)
    range(0, 3)
    """
    return range(part.lo * parallelism // max_parallelism, (part.hi - 1) * parallelism // max_parallelism + 1)


def groups_of(hashes: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.int64]:
    """Key group of each hash; numpy's ``mod`` is floored, as ``pmod`` is.

    Masking gives the same for a power of two, the usual case, twenty times faster.
    """
    if max_parallelism & (max_parallelism - 1) == 0:
        return hashes & np.int64(max_parallelism - 1)
    return np.mod(hashes, max_parallelism)


def order_bits(max_parallelism: int) -> int:
    return (max_parallelism - 1).bit_length()


def order_of(hashes: npt.NDArray[np.int64], max_parallelism: int) -> npt.NDArray[np.uint64]:
    """One sortable number per hash: the key group in the high bits, the rest of the hash below.

    Sorting by it sorts by key group first, so any range of key groups is one contiguous slice of a sorted file.
    Where `max_parallelism` is a power of two nothing of the hash is lost; otherwise a few bits are, which costs
    only an extra key comparison now and then: equality is always decided by comparing keys.
    """
    bits = order_bits(max_parallelism)
    unsigned = hashes.view(np.uint64)
    if bits == 0:
        return unsigned.copy()
    # The key group of a power of two is the hash's low bits: shifted up, nothing else of the hash is left.
    groups = unsigned if max_parallelism == 1 << bits else groups_of(hashes, max_parallelism).view(np.uint64)
    orders = groups << np.uint64(64 - bits)
    orders |= unsigned >> np.uint64(bits)
    return orders


def order_bound(key_group: int, max_parallelism: int) -> np.uint64 | None:
    """The smallest order of `key_group`; None stands for 'beyond every order'."""
    bits = order_bits(max_parallelism)
    value = key_group << (64 - bits)
    return np.uint64(value) if value < 1 << 64 else None


def regrouped(
    hashes: npt.NDArray[np.int64], like: npt.NDArray[np.int64], max_parallelism: int
) -> npt.NDArray[np.int64]:
    """Hashes with the key groups of other hashes: for entries that belong to a key but have a place of their own.

    >>> groups_of(regrouped(np.array([7, 80]), np.array([3, -1]), 10), 10).tolist()
    [3, 9]
    """
    halved = hashes >> 1  # room for the correction
    return halved - groups_of(halved, max_parallelism) + groups_of(like, max_parallelism)
