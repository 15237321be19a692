"""Rows as they were written, as an edge has them now: a pipeline may have got more, fewer or wider columns since."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from penstock.protocol.columns import is_wider


class Fitting(NamedTuple):
    """For each column of the edge its place in the file; None for one that was added since, which is null then."""

    places: tuple[int | None, ...]
    schema: pa.Schema

    def fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [
            pa.nulls(batch.num_rows, field.type) if place is None else _cast(batch.column(place), field.type)
            for place, field in zip(self.places, self.schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def fitting(found: pa.Schema, wanted: pa.Schema) -> Fitting | None:
    """How rows of a file become rows of the edge; None if a column has a type that does not fit, or is there twice.

    The last column of both is the hidden hash.
    """
    if len(set(found.names)) < len(found.names):
        return None
    places: list[int | None] = []
    for field in wanted:
        place = found.get_field_index(field.name)
        if place >= 0:
            there = found.field(place).type
            if there != field.type and not is_wider(str(there), str(field.type)):
                return None
        places.append(place if place >= 0 else None)
    return Fitting(tuple(places), wanted)
