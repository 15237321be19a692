"""Output rows of windows, made of aggregated parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.aggregate.parts import Part, Reducer
from penstock.operators.window.windows import Micros

if TYPE_CHECKING:
    from penstock.operators.window.window_aggregate import WindowAggregate


class Results:
    """Makes output rows of parts."""

    def __init__(self, spec: WindowAggregate, reducer: Reducer) -> None:
        self._schema = spec.output_schema
        self._time_type = spec.time_type
        self._key_count = len(spec.keys)
        self._reducer = reducer
        self.nothing = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in self._schema], schema=self._schema
        )

    def of(self, part: Part, starts: Micros, ends: Micros) -> pa.RecordBatch:
        """`part` has the key columns first; each row has a window."""
        if not part.rows:
            return self.nothing
        bounds = [pa.array(np.ascontiguousarray(times)).view(self._time_type) for times in (starts, ends)]
        arrays = [*part.keys.columns[: self._key_count], *bounds, *self._reducer.results(part)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)
