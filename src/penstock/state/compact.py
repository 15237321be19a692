"""Merging many sorted runs in chunks: bounded memory, one written record batch per chunk.

A chunk is a span of orders, so rows of equal order never fall into two chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from penstock.state.layout import FIRST_ORDER, LAST_ORDER
from penstock.state.runs import Orders, SortedRun, merge

CHUNK_ROWS_MAX = 1 << 20
CHUNK_BYTES_MAX = 32 << 20
# Chunks are cut from samples; with 64 per chunk and run they come out within a few percent of the wanted size.
_SAMPLES_PER_CHUNK = 64


class Level(Protocol):
    """A run in memory, or a file, that can be searched and merged."""

    @property
    def may_hold_deleted(self) -> bool: ...
    @property
    def rows(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    def overlapping(self, orders: Orders) -> list[tuple[SortedRun, int, int]]: ...
    def between(self, first: np.uint64, last: np.uint64) -> list[SortedRun]: ...
    def sample(self, step: int) -> Orders: ...


def merged_chunks(levels: Sequence[Level], *, drop_deleted: bool) -> Iterator[SortedRun]:
    """The merge of `levels`, newest first, as runs one after the other; none of them is empty."""
    for first, last in _cut(levels):
        parts = [part for level in levels for part in level.between(first, last)]
        if not parts:
            continue
        merged = merge(parts, drop_deleted=drop_deleted)
        if merged.rows:
            yield merged


def _cut(levels: Sequence[Level]) -> Iterator[tuple[np.uint64, np.uint64]]:
    """Spans of orders, first to last, with about one chunk of rows each."""
    rows = sum(level.rows for level in levels)
    row_bytes = max(1, sum(level.bytes for level in levels) // max(1, rows))
    wanted = max(1, min(CHUNK_ROWS_MAX, CHUNK_BYTES_MAX // row_bytes))
    first = FIRST_ORDER
    if rows > wanted:
        step = max(1, wanted // _SAMPLES_PER_CHUNK)
        samples = np.sort(np.concatenate([level.sample(step) for level in levels]))
        for start in samples[wanted // step :: wanted // step]:
            if start > first:
                yield first, start - np.uint64(1)
                first = start
    yield first, LAST_ORDER
