"""Between Arrow columns and Python values, and between what user code returns and the declared columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.operators.columns import describe
from penstock.operators.failing import BadOutput


def python_values(array: pa.Array) -> list[Any]:
    """The column as Python values, many times as fast as ``to_pylist`` for numbers and strings."""
    if pt.is_integer(array.type) or pt.is_floating(array.type):
        values: list[Any] = (array.fill_null(0) if array.null_count else array).to_numpy().tolist()
        if array.null_count:
            for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
                values[row] = None
        return values
    if pt.is_string(array.type) or pt.is_large_string(array.type) or pt.is_boolean(array.type):
        return array.to_numpy(zero_copy_only=False).tolist()
    return array.to_pylist()


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts."""
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def arrow_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column of exactly this type; a float is never cut to an integer."""
    if pt.is_integer(kind) and not {float, np.float64, np.float32}.isdisjoint(map(type, values)):
        raise pa.ArrowInvalid(f"got a float for {kind}")
    return pa.array(values, kind)


def batch_of_rows(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    """Rows that have exactly the columns of `schema` as a batch. Raises: `BadOutput`."""
    arrays = []
    for field in schema:
        values = [row[field.name] for row in rows]
        try:
            array = arrow_values(values, field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _bad_value(field, error) from error
        arrays.append(_checked(array, field))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def first_misfit(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> int:
    """The first of some rows that `batch_of_rows` refuses."""
    for number, row in enumerate(rows):
        try:
            batch_of_rows([row], schema)
        except BadOutput:
            return number
    raise AssertionError("rows that fit one by one fit together")


def check_row(row: object, names: frozenset[str]) -> None:
    """Raises: `BadOutput` unless `row` is a mapping with exactly these columns."""
    if not isinstance(row, Mapping):
        raise BadOutput(f"got {type(row).__name__} {row!r:.100} for a row", "give each row as a dict of its columns")
    if row.keys() != names:
        raise _wrong_columns(sorted(names), sorted(map(str, row)))


def fit_batches(result: object, schema: pa.Schema) -> list[pa.RecordBatch]:
    """What a function over batches returned, as batches of exactly this schema. Raises: `BadOutput`."""
    return [fit(batch, schema) for batch in _batches(result) if batch.num_rows]


def _batches(result: object) -> Iterable[pa.RecordBatch]:
    match result:
        case pa.RecordBatch():
            yield result
        case pa.Table():
            yield from result.to_batches()
        case Iterable() if not isinstance(result, str | bytes | Mapping):
            for part in result:
                if not isinstance(part, pa.RecordBatch | pa.Table):
                    raise _no_batch(part)
                yield from _batches(part)
        case _:
            raise _no_batch(result)


def fit(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with exactly the columns of `schema`, cast where nothing is lost. Raises: `BadOutput`."""
    if sorted(batch.schema.names) != sorted(schema.names):
        raise _wrong_columns([describe(schema)], [describe(batch.schema)])
    return pa.RecordBatch.from_arrays([_fit_column(batch.column(field.name), field) for field in schema], schema=schema)


def _fit_column(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type != field.type:
        try:
            array = array.cast(field.type, safe=True)
        except pa.ArrowException as error:
            raise _bad_value(field, error, got=str(array.type)) from error
    return _checked(array, field)


def _checked(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.null_count and not field.nullable:
        raise BadOutput(f"the column {field.name!r} is declared NOT NULL and got null", "declare it without NOT NULL")
    return array


def _bad_value(field: pa.Field, error: Exception, *, got: str = "") -> BadOutput:
    source = f", got {got}" if got else ""
    return BadOutput(
        f"the column {field.name!r} is declared as {field.type}{source}: {error}",
        "return values of the declared type, or declare another one",
    )


def _wrong_columns(wanted: Sequence[str], got: Sequence[str]) -> BadOutput:
    return BadOutput(
        f"wanted the columns {', '.join(wanted)}; got {', '.join(got)}",
        "return exactly the declared columns, or change the declared schema",
    )


def _no_batch(result: object) -> BadOutput:
    return BadOutput(
        f"wanted a pyarrow.RecordBatch, a pyarrow.Table or an iterable of them; got {type(result).__name__}",
        "return record batches, for example pa.RecordBatch.from_pandas(frame)",
    )
