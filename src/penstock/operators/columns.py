"""What an operator demands of its input columns, checked when the pipeline is built, and how it reads times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import PipelineError
from penstock.hashing import why_unsupported
from penstock.text import did_you_mean


def describe(schema: pa.Schema) -> str:
    """Columns for people.

    >>> describe(pa.schema({"user": pa.int64(), "name": pa.string()}))
    'user int64, name string'
    """
    return ", ".join(f"{field.name} {field.type}" for field in schema) or "no columns"


def require_column(operator: str, schema: pa.Schema, name: str, wanted_by: str) -> pa.Field:
    """The column's field. Raises: `PipelineError` if there is not exactly one of that name."""
    found = schema.get_all_field_indices(name)
    if len(found) == 1:
        return schema.field(found[0])
    seen = f"{wanted_by} needs the column {name!r}, which is " + (
        "there more than once" if found else f"not there{did_you_mean(name, schema.names)}"
    )
    raise PipelineError(
        f"{operator}: {seen}",
        cause="a misspelled name, or a step before that renames or drops the column",
        next_step=f"use one of the input's columns: {describe(schema)}",
        operator=operator,
        column=name,
    )


def key_schema(operator: str, schema: pa.Schema, keys: Sequence[str]) -> pa.Schema:
    """The key columns, which must be there, differ and have a type that can be a key. Raises: `PipelineError`."""
    if not keys:
        raise PipelineError(
            f"{operator}: no key columns",
            cause="key_by() was called without columns",
            next_step=f"name at least one of: {describe(schema)}",
            operator=operator,
        )
    refuse_doubles(operator, keys, "a key column")
    fields = [require_column(operator, schema, name, "its key") for name in keys]
    for field in fields:
        if (why := why_unsupported(field.type)) is not None:
            raise PipelineError(
                f"{operator}: the key column {field.name!r} has type {field.type}",
                cause=why,
                next_step="cast the column before key_by, or use another key",
                operator=operator,
                column=field.name,
            )
    return pa.schema(fields)


def refuse_doubles(operator: str, names: Iterable[str], what: str) -> None:
    """Raises: `PipelineError` for the first name that comes twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PipelineError(
                f"{operator}: {name!r} is {what} twice",
                cause="two columns of one name cannot be told apart",
                next_step="give one of them another name",
                operator=operator,
                column=name,
            )
        seen.add(name)


def is_text(value: object) -> bool:
    """Whether an argument is text. Annotations are not checked when a program runs."""
    return isinstance(value, str)


def is_whole(value: object) -> bool:
    """Whether an argument is a whole number. A boolean is an integer to Python, but a mistake here."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, float) or is_whole(value)


def micros(column: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """A timestamp column as microseconds since 1970, finer parts cut off; and which rows have one."""
    kind = column.type
    if kind.unit != "us":
        column = column.cast(pa.timestamp("us", kind.tz), safe=kind.unit != "ns")
    known = ~column.is_null().to_numpy(zero_copy_only=False)
    numbers = column.view(pa.int64())
    return (numbers.fill_null(0) if column.null_count else numbers).to_numpy(), known
