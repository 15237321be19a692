"""Aggregates that keep values: lists and sets with a bound, distinct values counted exactly or by a sample of hashes.

State is one list per group. Lists are flattened, cut and put together again as whole columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.hashing import hash_columns
from penstock.operators.aggregate.accumulators import NullIsNothing, States
from penstock.operators.grouping import Groups
from penstock.state.keys import Rows, normalise

_HASHES = float(1 << 64)
_ANY = pa.null()
_INT_BITS = 32
"""Smaller integers are hashed as these."""


@dataclass(frozen=True, slots=True)
class CollectValues(NullIsNothing):
    """The first `limit` values that are not null, in the order of arrival; of a set the first different ones."""

    column: str
    value_type: pa.DataType
    limit: int | None
    distinct: bool

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": pa.list_(self.value_type)}

    @property
    def result_type(self) -> pa.DataType:
        return pa.list_(self.value_type)

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        array = batch.column(self.column)
        ids = groups.ids
        if array.null_count:
            ids = ids[array.is_valid().to_numpy(zero_copy_only=False)]
        return self._kept(array.drop_null(), ids, groups.count)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return self._kept(states[0].flatten(), owners_of(states[0], groups), groups.count)

    def result(self, states: States) -> pa.Array:
        return states[0]

    def _kept(self, values: pa.Array, ids: Rows, groups: int) -> list[pa.Array]:
        rows = np.arange(len(values))
        if self.distinct:
            values = normalise(values)
            codes = values.dictionary_encode().indices.to_numpy()
            _, rows = np.unique(ids * (int(codes.max(initial=0)) + 1) + codes, return_index=True)
            rows.sort()
        order = rows[np.argsort(ids[rows], kind="stable")]
        return [lists_of(values, order, ids[order], groups, self.limit)]


@dataclass(frozen=True, slots=True)
class CountDistinct(NullIsNothing):
    """How many different values there are, exactly: the state holds all of them."""

    values: CollectValues

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"__values": self.values.result_type}

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        return self.values.partial(batch, groups)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return self.values.combine(states, groups)

    def result(self, states: States) -> pa.Array:
        return pc.cast(states[0].value_lengths(), pa.int64())


@dataclass(frozen=True, slots=True)
class ApproximateDistinct(NullIsNothing):
    """How many different values there are, from the `size` smallest of their hashes.

    Exact below `size`; above it the k-th smallest of n even numbers between 0 and 1 lies near k / n, with a relative
    standard deviation of 1 / sqrt(size - 2).
    """

    column: str
    size: int
    value_type: pa.DataType = _ANY

    @property
    def hashed(self) -> str:
        """What the hashes are of. Those of another type are other hashes."""
        kind = self.value_type
        return str(pa.int32() if pt.is_integer(kind) and kind.bit_width < _INT_BITS else kind)

    @staticmethod
    def size_for(rsd: float) -> int:
        return math.ceil(1 / rsd**2) + 2

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"__hashes": pa.list_(pa.uint64())}

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        array = batch.column(self.column)
        ids = groups.ids
        if array.null_count:
            ids = ids[array.is_valid().to_numpy(zero_copy_only=False)]
        return self._smallest(hash_columns([normalise(array.drop_null())]).view(np.uint64), ids, groups.count)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return self._smallest(states[0].flatten().to_numpy(), owners_of(states[0], groups), groups.count)

    def _smallest(self, hashes: np.ndarray, ids: Rows, groups: int) -> list[pa.Array]:
        order = np.lexsort((hashes, ids))
        hashes, ids = hashes[order], ids[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (hashes[1:] != hashes[:-1]) | (ids[1:] != ids[:-1])
        rows = np.flatnonzero(new)
        return [lists_of(pa.array(hashes), rows, ids[rows], groups, self.size)]

    def result(self, states: States) -> pa.Array:
        counts = states[0].value_lengths().to_numpy().astype(np.int64)
        largest = np.ones(len(counts))
        full = np.flatnonzero(counts == self.size)
        if len(full):
            largest[full] = pc.list_element(states[0].take(pa.array(full)), self.size - 1).to_numpy() / _HASHES
        estimates = np.rint((self.size - 1) / largest).astype(np.int64)
        return pa.array(np.where(counts == self.size, estimates, counts))


def owners_of(lists: pa.Array, groups: Groups) -> Rows:
    """The group of each item of the lists."""
    return np.repeat(groups.ids, lists.value_lengths().to_numpy())


def lists_of(values: pa.Array, rows: Rows, ids: Rows, groups: int, limit: int | None) -> pa.Array:
    """One list per group, of the values in `rows`, which are ordered by their group `ids`, and at most `limit`."""
    starts = np.searchsorted(ids, np.arange(groups))
    if limit is not None:
        kept = np.flatnonzero(np.arange(len(ids)) - starts[ids] < limit)
        rows, ids = rows[kept], ids[kept]
        starts = np.searchsorted(ids, np.arange(groups))
    offsets = pa.array(np.append(starts, len(ids)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values.take(pa.array(rows)))
