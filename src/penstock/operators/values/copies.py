"""Copies of rows between user code and Penstock, so that neither sees later changes by the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

RowCopier: TypeAlias = Callable[[Mapping[str, Any]], dict[str, Any]]


def row_copier(schema: pa.Schema) -> RowCopier:
    """Makes copies of rows with these columns, as deep as the columns are nested.

    >>> row = {"tags": ["a"]}
    >>> kept = row_copier(pa.schema({"tags": pa.list_(pa.string())}))(row)
    >>> row["tags"].append("b")
    >>> kept
    {'tags': ['a']}
    """
    depths = [(field.name, depth_of(field.type)) for field in schema if pt.is_nested(field.type)]
    if not depths:
        return dict
    return lambda row: {**row, **{name: copied(row[name], depth) for name, depth in depths}}


def copied(value: Any, depth: int) -> Any:
    """The value with its lists and dicts copied, `depth` levels deep. Values below that are immutable."""
    if not depth:
        return value
    match value:
        case dict():
            return {name: copied(item, depth - 1) for name, item in value.items()}
        case list():
            return value.copy() if depth == 1 else [copied(item, depth - 1) for item in value]
        case tuple():
            return tuple([copied(item, depth - 1) for item in value])
        case np.ndarray():
            return value.copy()
    return value


def depth_of(kind: pa.DataType) -> int:
    """How many levels of lists and dicts values of this type have; a map may be a list of pairs."""
    if not pt.is_nested(kind):
        return 0
    inner = max((depth_of(kind.field(number).type) for number in range(kind.num_fields)), default=0)
    return 1 + inner
