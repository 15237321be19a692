"""Slices of narrow rows, kept together until they are worth grouping.

Grouping costs the same per row in small and in large slices, but combining the results of small slices costs nearly as
much again. Rows are copied, because the memory of a slice may be reused after its step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

ROWS_MAX = 1 << 18
"""Grouping this many takes about 10 ms, in one step."""
ROW_BYTES_MAX = 64
_WORDS = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


class GatheredSlices:
    """Room for `ROWS_MAX` rows of some columns of fixed width."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._words = [_WORDS[field.type.bit_width] for field in schema]
        self._hashes = np.empty(ROWS_MAX, np.int64)
        self._columns = [np.empty(ROWS_MAX, word.to_pandas_dtype()) for word in self._words]
        self._rows = 0

    @classmethod
    def of(cls, schema: pa.Schema, columns: Iterable[str]) -> GatheredSlices | None:
        """Room for these columns; None if rows are not narrow, or not of fixed width."""
        fields = [schema.field(name) for name in dict.fromkeys(columns)]
        if not all(pt.is_primitive(field.type) and field.type.bit_width in _WORDS for field in fields):
            return None
        if sum(field.type.bit_width for field in fields) > 8 * ROW_BYTES_MAX:
            return None
        return cls(pa.schema(fields))

    def add(self, hashes: npt.NDArray[np.int64], batch: pa.RecordBatch) -> bool:
        """Copies the rows; False if they do not fit, or have nulls."""
        start, stop = self._rows, self._rows + batch.num_rows
        columns = [batch.column(field.name) for field in self._schema]
        if stop > ROWS_MAX or any(column.null_count for column in columns):
            return False
        self._hashes[start:stop] = hashes
        for kept, word, column in zip(self._columns, self._words, columns, strict=True):
            kept[start:stop] = column.view(word).to_numpy()
        self._rows = stop
        return True

    def take(self) -> tuple[npt.NDArray[np.int64], pa.RecordBatch] | None:
        """Returns all rows, if there are any, and empties the room. They are valid until the next `add`."""
        if not self._rows:
            return None
        rows, self._rows = self._rows, 0
        columns = [
            pa.array(kept[:rows], word).view(field.type)
            for kept, word, field in zip(self._columns, self._words, self._schema, strict=True)
        ]
        return self._hashes[:rows], pa.RecordBatch.from_arrays(columns, schema=self._schema)
