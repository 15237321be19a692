"""Places entries of state, each of a key and a pane of time, so that a pane is read in one go.

The hash of an entry holds the pane's number above the bits of the key's hash, and keeps the key's key group. State is
sorted by key group, then by hash: all entries of a key group and of neighbouring panes lie side by side. So finding
what a watermark has passed does not depend on the size of the state. Numbers are cut to `_PANE_BITS`: panes that are
that far apart share a place. That costs only time, because readers compare the pane itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.protocol.keygroups import MAX_PARALLELISM_LIMIT, groups_of, order_bits
from penstock.state.ranges import KeySpans

Hashes = npt.NDArray[np.int64]

PANE_FIELD = pa.field("__pane", pa.int64())
"""The last key column of such state: the pane's number."""

_PANE_BITS = 20
# The lowest bits of a hash are chosen so that it falls into its key group.
_GROUP_BITS = (MAX_PARALLELISM_LIMIT - 1).bit_length()
_PLACE_BITS = 64 - _PANE_BITS - _GROUP_BITS
PLACES = 1 << _PLACE_BITS
"""The number of places in a pane. A key has the same place in all panes."""


class Stretch(NamedTuple):
    """Entries of one key group: panes `first` to `last`, places `start` to `stop` - 1."""

    group: int
    first: int
    last: int
    start: int = 0
    stop: int = PLACES


class PaneIndex:
    """Between hashes, panes and orders for one number of key groups."""

    def __init__(self, max_parallelism: int) -> None:
        self._max_parallelism = max_parallelism
        self._bits = order_bits(max_parallelism)

    def places(self, hashes: Hashes) -> Hashes:
        """Where in a pane keys of these hashes stand."""
        return (hashes >> np.int64(_GROUP_BITS)) & np.int64(PLACES - 1)

    def hashes(self, hashes: Hashes, panes: Hashes) -> Hashes:
        """The hashes of entries for keys of these hashes in these panes."""
        base = (panes << np.int64(64 - _PANE_BITS)) | (self.places(hashes) << np.int64(_GROUP_BITS))
        groups = groups_of(hashes, self._max_parallelism)
        # 0 <= the difference < max_parallelism, so it fits into the bits left free.
        return base + np.mod(groups - np.mod(base, self._max_parallelism), self._max_parallelism)

    def key_hashes(self, orders: npt.NDArray[np.uint64]) -> Hashes:
        """For entries with these orders a hash of their keys alone, not the original one."""
        mask = ~(np.uint64((1 << _PANE_BITS) - 1) << np.uint64(64 - _PANE_BITS - self._bits))
        places = (orders & mask) >> np.uint64(max(0, _GROUP_BITS - self._bits))
        return places.view(np.int64)

    def spans(self, stretches: Iterable[Stretch]) -> KeySpans:
        """The spans of orders that hold some stretches; they may hold panes far away, too."""
        spans: list[tuple[int, int]] = []
        for first, last in sorted(span for stretch in stretches for span in self._spans_of(stretch)):
            if spans and first <= spans[-1][1]:
                spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
            else:
                spans.append((first, last))
        firsts = np.array([first for first, _ in spans], np.uint64)
        return KeySpans(firsts, np.array([last for _, last in spans], np.uint64))

    def _spans_of(self, stretch: Stretch) -> list[tuple[int, int]]:
        if stretch.last < stretch.first:
            return []
        if (stretch.start, stretch.stop) != (0, PLACES):
            panes = range(stretch.first, min(stretch.last, stretch.first + (1 << _PANE_BITS) - 1) + 1)
            return [self._span(stretch, _cut(pane), _cut(pane)) for pane in panes]
        if stretch.last - stretch.first + 1 >= 1 << _PANE_BITS:
            return [self._span(stretch, 0, (1 << _PANE_BITS) - 1)]
        first, last = _cut(stretch.first), _cut(stretch.last)
        if first <= last:
            return [self._span(stretch, first, last)]
        return [self._span(stretch, first, (1 << _PANE_BITS) - 1), self._span(stretch, 0, last)]

    def _span(self, stretch: Stretch, first: int, last: int) -> tuple[int, int]:
        group = stretch.group << (64 - self._bits)
        low = (first << (64 - _PANE_BITS)) | (stretch.start << _GROUP_BITS)
        high = (last << (64 - _PANE_BITS)) | (stretch.stop << _GROUP_BITS) - 1
        return group | low >> self._bits, group | high >> self._bits


def _cut(pane: int) -> int:
    return pane & ((1 << _PANE_BITS) - 1)
