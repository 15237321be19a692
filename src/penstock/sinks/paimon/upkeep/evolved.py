"""Rows of files that were written under an older schema, as the table's newest schema shows them.

A column, and a field of a struct at any depth, is known by its number, not by its name: names may have been given to
other fields since.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pypaimon.schema.data_types import ArrayType, DataField, MapType, RowType

from penstock.errors import TableMismatch
from penstock.sinks.paimon.upkeep.files import Entry, KeptTable

Origins = Mapping[str, "tuple[DataField, DataField] | None"]
"""By column of the table: what it was when a file was written, and what it is now; None where the file has none."""


def origins_of(table: KeptTable, entry: Entry) -> Origins:
    now = table.table.table_schema
    if entry.file.schema_id == now.id:
        return {field.name: (field, field) for field in now.fields}
    then = {field.id: field for field in table.table.schema_manager.get_schema(entry.file.schema_id).fields}
    return {field.name: (then[field.id], field) if field.id in then else None for field in now.fields}


def as_now(values: pa.ChunkedArray, then: DataField, now: DataField, field: pa.Field) -> pa.ChunkedArray:
    """A column of a file, as `field`. Raises: `TableMismatch` for a change of types that is not converted here."""
    try:
        if then.type == now.type:
            return values if values.type == field.type else values.cast(field.type)
        return pa.chunked_array([_aligned(part, then.type, now.type, field.type) for part in values.chunks], field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TableMismatch(
            f"column {field.name} is {values.type} in an older file and {field.type} in the table: {error}",
            cause="the table's column was altered in a way that is not converted here",
            next_step="let Paimon's own engine compact the table; give upkeep=pen.Upkeep(small_files=None)",
        ) from error


def _aligned(values: pa.Array, then: Any, now: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(then, RowType) and isinstance(now, RowType):
        there = {field.id: field for field in then.fields}
        parts = [
            _aligned(values.field(there[field.id].name), there[field.id].type, field.type, part.type)
            if field.id in there
            else pa.nulls(len(values), part.type)
            for field, part in zip(now.fields, kind, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=values.is_null())
    if isinstance(then, ArrayType) and isinstance(now, ArrayType):
        values = _from_zero(values)
        items = _aligned(values.values, then.element, now.element, kind.value_type)
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], values.null_count, children=[items])
    if isinstance(then, MapType) and isinstance(now, MapType):
        values = _from_zero(values)
        keys = _aligned(values.keys, then.key, now.key, kind.key_type)
        items = _aligned(values.items, then.value, now.value, kind.item_type)
        pairs = pa.StructArray.from_arrays([keys, items], fields=[kind.key_field, kind.item_field])
        return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], values.null_count, children=[pairs])
    return values if values.type == kind else pc.cast(values, kind)


def _from_zero(values: pa.Array) -> pa.Array:
    """The same lists; their buffers begin with the first one."""
    return values if not values.offset else values.take(pa.array(np.arange(len(values))))
