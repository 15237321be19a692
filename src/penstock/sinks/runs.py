"""Runs of equal keys in sorted rows, by numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Index = npt.NDArray[np.int64]


def run_starts(columns: Sequence[pa.ChunkedArray]) -> Index:
    """Where a new key begins, in rows that are sorted by key; keys hold no nulls."""
    rows = len(columns[0])
    new = np.ones(rows, dtype=bool)
    if rows > 1:
        same = np.ones(rows - 1, dtype=bool)
        for column in columns:
            same &= np.asarray(pc.equal(column.slice(1), column.slice(0, rows - 1)))
        new[1:] = ~same
    return np.flatnonzero(new)


def last_rows(starts: Index, rows: int) -> Index:
    """The newest row of each run."""
    return np.append(starts[1:], rows) - 1
