"""Quantiles from a KLL sketch of Apache DataSketches: a few kilobytes per group, whatever the number of values.

The rank of an answer is off by at most 1.4 % of the values for the default size, with 99 % confidence. Nulls and NaN
do not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.accumulators import NullIsNothing, States
from penstock.operators.aggregate.reduce import as_doubles
from penstock.operators.grouping import Groups

if TYPE_CHECKING:
    from datasketches import kll_doubles_sketch

SKETCH_SIZE = 200


@dataclass(frozen=True, slots=True)
class Quantiles(NullIsNothing):
    """The values at given shares, as a list."""

    column: str
    shares: tuple[float, ...]

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"__sketch": pa.binary()}

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(pa.float64())

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        from datasketches import kll_doubles_sketch

        values = as_doubles(batch.column(self.column)).fill_null(np.nan).to_numpy()
        order = np.argsort(groups.ids, kind="stable")
        order = order[~np.isnan(values[order])]
        ids, values = groups.ids[order], values[order]
        bounds = np.searchsorted(ids, np.arange(groups.count + 1)).tolist()
        sketches: list[bytes | None] = []
        for start, stop in itertools.pairwise(bounds):
            sketch = kll_doubles_sketch(SKETCH_SIZE)
            sketch.update(values[start:stop])
            sketches.append(_stored(sketch))
        return [pa.array(sketches, pa.binary())]

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        stored = states[0].to_pylist()
        combined: list[bytes | None] = [None] * groups.count
        several: dict[int, kll_doubles_sketch] = {}
        for group, data in zip(groups.ids.tolist(), stored, strict=True):
            if data is None:
                continue
            first = combined[group]
            if first is None:
                combined[group] = data
                continue
            if group not in several:
                several[group] = _loaded(first)
            several[group].merge(_loaded(data))
        for group, sketch in several.items():
            combined[group] = _stored(sketch)
        return [pa.array(combined, pa.binary())]

    def result(self, states: States) -> pa.Array:
        return pa.array(self._answers(states[0].to_pylist()), self.result_type)

    def _answers(self, stored: Iterable[bytes | None]) -> list[list[float] | None]:
        shares = list(self.shares)
        return [None if data is None else list(_loaded(data).get_quantiles(shares, inclusive=True)) for data in stored]


def _loaded(data: bytes) -> kll_doubles_sketch:
    from datasketches import kll_doubles_sketch

    return kll_doubles_sketch.deserialize(data)


def _stored(sketch: kll_doubles_sketch) -> bytes | None:
    return None if sketch.is_empty() else bytes(sketch.serialize())
