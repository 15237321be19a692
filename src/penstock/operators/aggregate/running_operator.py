"""Keeps running aggregates per key: one updated row per touched key and epoch.

The operator reduces slices to one row per key, one by one or several together. It does not look at the state for that,
and does not keep the memory of the slice. At the end of the epoch the parts are combined, the state of all touched keys
is looked up in one go, and written back in one go.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregate.accumulators import read_quickly
from penstock.operators.aggregate.gathered import GatheredSlices
from penstock.operators.aggregate.parts import Pending, Reducer
from penstock.operators.base import OperatorContext, OperatorDefaults
from penstock.records import Records
from penstock.state.keys import normalise_keys

if TYPE_CHECKING:
    from penstock.operators.aggregate.running import RunningAggregate


def gathering_for(spec: RunningAggregate) -> GatheredSlices | None:
    """Room to gather slices; None if an aggregate is expensive, or reads wide rows."""
    reads = [read_quickly(accumulator) for accumulator in spec.accumulators.values()]
    if any(columns is None for columns in reads):
        return None
    return GatheredSlices.of(
        spec.input_schema, [*spec.keys, *(name for columns in reads if columns for name in columns)]
    )


class RunningAggregateOperator(OperatorDefaults):
    """Keeps the epoch's parts until `finish`."""

    def __init__(self, spec: RunningAggregate, context: OperatorContext) -> None:
        self._keys = list(spec.keys)
        self._state = context.state
        self._values_schema = spec.state_schema.values
        self._output_schema = spec.output_schema
        self._reducer = Reducer(spec.name, spec.aggregates, spec.accumulators, context.max_parallelism)
        self._gathered = gathering_for(spec)
        self._pending = Pending(self._reducer)

    def process(self, records: Records) -> Iterator[pa.RecordBatch]:
        if records.rows and not self._hold(records):
            self._reduce_gathered()
            if not self._hold(records):
                self._reduce(records.hashes, records.batch)
        return iter(())

    def _hold(self, records: Records) -> bool:
        return self._gathered is not None and self._gathered.add(records.hashes, records.batch)

    def _reduce_gathered(self) -> None:
        gathered = None if self._gathered is None else self._gathered.take()
        if gathered is not None:
            self._reduce(*gathered)

    def _reduce(self, hashes: npt.NDArray[np.int64], batch: pa.RecordBatch) -> None:
        keys = normalise_keys(batch.select(self._keys), self._keys)
        self._pending.add(self._reducer.reduce(hashes, keys, batch))

    def finish(self) -> Iterator[pa.RecordBatch]:
        self._reduce_gathered()
        part = self._pending.take()
        if part is None:
            return iter(())
        found = self._state.lookup(part.hashes, part.keys)
        part = self._reducer.behind(found.values, found.found, part)
        values = pa.RecordBatch.from_arrays(part.columns(), schema=self._values_schema)
        self._state.update(part.hashes, part.keys, values)
        arrays = [*part.keys.columns, *self._reducer.results(part)]
        return iter((pa.RecordBatch.from_arrays(arrays, schema=self._output_schema),))
