"""Variance and standard deviation per group, as Spark SQL defines them: doubles, nulls do not count, NaN spreads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.accumulators import NullIsNothing, States
from penstock.operators.aggregate.reduce import as_doubles
from penstock.operators.grouping import Groups


@dataclass(frozen=True, slots=True)
class Spread(NullIsNothing):
    """Kept as count, mean and sum of squared distances from the mean, which can be combined without cancellation.

    Of a sample: divided by one less than the count, and null for a single value.
    """

    column: str
    sample: bool
    root: bool

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"__count": pa.int64(), "__mean": pa.float64(), "__squares": pa.float64()}

    @property
    def result_type(self) -> pa.DataType:
        return pa.float64()

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        array = batch.column(self.column)
        ids = groups.ids
        if array.null_count:
            ids = ids[array.is_valid().to_numpy(zero_copy_only=False)]
        values = as_doubles(array.drop_null()).to_numpy()
        return _combined(ids, groups.count, np.ones(len(values), np.int64), values, np.zeros(len(values)))

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        counts, means, squares = (state.to_numpy() for state in states)
        return _combined(groups.ids, groups.count, counts, means, squares)

    def result(self, states: States) -> pa.Array:
        count, squares = states[0].to_numpy(), states[2].to_numpy()
        divisor = count - 1 if self.sample else count
        values = squares / np.maximum(divisor, 1)
        return pa.array(np.sqrt(values) if self.root else values, pa.float64(), mask=divisor < 1, from_pandas=False)


def _combined(
    ids: np.ndarray, groups: int, counts: np.ndarray, means: np.ndarray, squares: np.ndarray
) -> list[pa.Array]:
    """Count, mean and squares of groups of parts that have these; a part may be a single value."""
    with np.errstate(invalid="ignore", over="ignore"):
        total = np.bincount(ids, counts, groups).astype(np.int64)
        # Distances from one of the means: sums of them stay small where values are large and close to each other.
        near = np.zeros(groups)
        filled = np.flatnonzero(counts)
        near[ids[filled]] = means[filled]
        near[~np.isfinite(near)] = 0.0
        mean = near + np.bincount(ids, counts * (means - near[ids]), groups) / np.maximum(total, 1)
        distances = np.where(counts > 0, means - mean[ids], 0.0)
        around = np.bincount(ids, squares + counts * distances * distances, groups)
    # Without any row numpy gives integers.
    floats = [pa.array(values.astype(np.float64), from_pandas=False) for values in (mean, around)]
    return [pa.array(total), *floats]
