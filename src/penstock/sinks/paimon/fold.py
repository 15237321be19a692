"""Rows of one key become one row before they are written: no file of a table with a primary key holds a key twice.

Rows come sorted by key and, within a key, from the oldest to the newest; runs of one key are folded at once by numpy.
What a fold keeps is what readers would keep of the single rows: folding never changes what a table shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from penstock.sinks.runs import Index, last_rows

_VECTORISED = frozenset(
    {"primary_key", "last_value", "last_non_null_value", "first_value", "first_non_null_value", "sum", "max", "min"}
)
SEQUENCE, KIND = "_SEQUENCE_NUMBER", "_VALUE_KIND"


def keep_last(data: pa.Table, starts: Index) -> pa.Table:
    """Of each key the newest row, a deletion included: it must win over older files."""
    return data.take(pa.array(last_rows(starts, data.num_rows)))


def keep_first(data: pa.Table, starts: Index) -> pa.Table:
    """Of each key the oldest row."""
    return data.take(pa.array(starts))


def fold_columns(data: pa.Table, starts: Index, functions: Sequence[str]) -> pa.Table:
    """Each column by its own function; sequence number and key are those of the newest row."""
    last = last_rows(starts, data.num_rows)
    columns = []
    for name, function in zip(data.column_names, functions, strict=True):
        column = data.column(name)
        columns.append(_fold_column(column, starts, last, function))
    return pa.Table.from_arrays(columns, schema=data.schema)


def can_fold(kind: pa.DataType, function: str) -> bool:
    """Whether `fold_columns` knows this function of this type."""
    if function in {"sum", "max", "min"}:
        whole = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
        return whole or (function != "sum" and (pa.types.is_date(kind) or pa.types.is_timestamp(kind)))
    return function in _VECTORISED


def _fold_column(column: pa.ChunkedArray, starts: Index, last: Index, function: str) -> pa.ChunkedArray:
    match function:
        case "primary_key" | "last_value":
            return column.take(pa.array(last))
        case "first_value":
            return column.take(pa.array(starts))
        case "last_non_null_value":
            places = np.where(np.asarray(column.is_valid()), np.arange(len(column)), -1)
            return column.take(_found(np.maximum.reduceat(places, starts), -1))
        case "first_non_null_value":
            none = len(column)
            places = np.where(np.asarray(column.is_valid()), np.arange(none), none)
            return column.take(_found(np.minimum.reduceat(places, starts), none))
        case _:
            return _aggregated(column, starts, function)


def _found(places: Index, nowhere: int) -> pa.Array:
    return pa.array(places, mask=places == nowhere)


def _aggregated(column: pa.ChunkedArray, starts: Index, function: str) -> pa.ChunkedArray:
    """Nulls are skipped; a sum that does not fit its column raises `pyarrow.ArrowInvalid`."""
    runs = np.zeros(len(column), dtype=np.int64)
    runs[starts[1:]] = 1
    grouped = pa.table({"run": np.cumsum(runs), "value": column}).group_by("run", use_threads=False)
    return grouped.aggregate([("value", function)]).sort_by("run").column(f"value_{function}").cast(column.type)
