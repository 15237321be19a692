"""What the columns of a pipeline must be, checked when it is built."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.hashing import why_no_key
from penstock.operators.base import OperatorSpec
from penstock.operators.columns import is_text
from penstock.text import did_you_mean

_HIDDEN = "__penstock"


def names_of(*columns: str | Sequence[str]) -> tuple[str, ...]:
    """Names given one by one, or as a list.

    >>> names_of("a", "b"), names_of(["a", "b"])
    (('a', 'b'), ('a', 'b'))
    """
    names: list[str] = []
    for part in columns:
        # Anything but a list is checked as a name.
        names += part if isinstance(part, tuple | list) else [cast("str", part)]
    return tuple(names)


def check_keys(schema: pa.Schema, keys: Collection[str]) -> tuple[str, ...]:
    """Raises: `PipelineError` for a key that is missing or cannot be one."""
    if not keys:
        raise PipelineError("key_by() without columns", cause="no key was given", next_step="name at least one column")
    for key in keys:
        if not is_text(key) or key not in schema.names:
            raise PipelineError(
                f"key column {key!r} does not exist{did_you_mean(key, schema.names)}; columns are"
                f" {', '.join(schema.names)}",
                cause="a typo, or the column was dropped before key_by",
                next_step='name existing columns, each as an argument: key_by("a", "b")',
                column=key,
            )
        why = why_no_key(schema.field(key))
        if why is not None:
            raise PipelineError(
                f"key column {key!r} has type {schema.field(key).type}: {why}",
                cause="keys must have an order, an equality and a hash",
                next_step="select a field of it, or make a string or number of it before key_by",
                column=key,
            )
    return tuple(keys)


def check_columns(schema: pa.Schema, where: str) -> None:
    """Raises: `PipelineError` for columns that cannot travel: none at all, hidden names, one name twice, types that
    Spark does not have."""
    if not schema.names:
        raise PipelineError(
            f"{where} has no columns", cause="its schema is empty", next_step="name at least one column"
        )
    # Spark does not tell names apart by case.
    hidden = [name for name in schema.names if name.lower().startswith(_HIDDEN)]
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if hidden or doubled:
        raise PipelineError(
            f"{where} has columns {', '.join(hidden or doubled)}" + ("" if hidden else " twice"),
            cause=f"names beginning with {_HIDDEN} are used inside" if hidden else "a join or select made duplicates",
            next_step="rename these columns before they reach Penstock",
        )
    _check_types(schema, where)


def _check_types(schema: pa.Schema, where: str) -> None:
    for field in schema:
        if _unknown_to_spark(field.type):
            raise PipelineError(
                f"{where} has the column {field.name!r} of type {field.type}",
                cause="Spark has no such type, and operators do not know it",
                next_step="declare the values of a dictionary, a signed integer, or float, and cast the column to it",
                column=field.name,
            )


def _unknown_to_spark(kind: pa.DataType) -> bool:
    """Also where lists, structs and maps hold values of such a type."""
    if pt.is_dictionary(kind) or pt.is_unsigned_integer(kind) or pt.is_float16(kind):
        return True
    return pt.is_nested(kind) and any(_unknown_to_spark(kind.field(part).type) for part in range(kind.num_fields))


def check_outputs(spec: OperatorSpec) -> None:
    """`check_columns` for all outputs of an operator."""
    check_columns(spec.output_schema, f"operator {spec.name}")
    for output, schema in spec.side_outputs.items():
        check_columns(schema, f"side output {output} of {spec.name}")


def require_sink(sink: object) -> None:
    """Raises: `PipelineError` for something that is no sink."""
    if isinstance(sink, type) or not hasattr(sink, "open_writer"):
        raise PipelineError(
            f"write() got {type(sink).__name__} {sink!r:.100}",
            cause="a stream ends in a sink, which knows how to write exactly once",
            next_step='write for example write(pen.Paimon("warehouse", "shop.orders")); pen.Discard() writes nothing',
        )
