"""Between Arrow columns and Python values, and between what user code returns and the declared columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from penstock.display import shown
from penstock.operators.columns import describe
from penstock.operators.failures.failing import BadOutput, Unreadable
from penstock.operators.values.lossless import cast_column, check_values
from penstock.operators.values.maps import with_dicts, with_pairs

FORGOT_RETURN = "a `return` is missing, or a branch has none"
# Spark's dates, and its timestamps with the session's zone, which is UTC in our jobs, and without any.
_EPOCHS: dict[pa.DataType, date] = {
    pa.date32(): date(1970, 1, 1),
    pa.timestamp("us", "UTC"): datetime(1970, 1, 1, tzinfo=UTC),
    pa.timestamp("us"): datetime(1970, 1, 1),  # noqa: DTZ001
}


def python_values(array: pa.Array) -> list[Any]:
    """The column as Python values, ten times as fast as ``to_pylist`` for the common types; maps are dicts.

    Raises: `OverflowError`, `ValueError` for what Python has no value for, such as text that is not UTF-8.
    """
    kind = array.type
    if pt.is_integer(kind) or pt.is_floating(kind):
        return _with_none(_filled(array).to_numpy().tolist(), array)
    if kind in _EPOCHS:
        since = _filled(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).to_numpy()
        unit = "m8[D]" if kind.bit_width == 32 else "m8[us]"
        return _with_none(list(map(_EPOCHS[kind].__add__, since.astype(np.int64).view(unit).tolist())), array)
    if pt.is_nested(kind) or pt.is_temporal(kind):
        return with_dicts(array.to_pylist(), kind)
    try:
        return array.to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:
        return array.to_pylist()  # `to_pylist` says what is wrong; the fast way does not


def _filled(array: pa.Array) -> pa.Array:
    return array.fill_null(0) if array.null_count else array


def _with_none(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
            values[row] = None
    return values


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts."""
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    return _row_maker(tuple(batch.schema.names))([python_values(column) for column in batch.columns])


def readable_rows(batch: pa.RecordBatch) -> list[dict[str, Any] | Unreadable]:
    """The rows as dicts, and for each unreadable row what is wrong with it."""
    try:
        return list(python_rows(batch))
    except (OverflowError, ValueError):
        return [_readable_row(batch.slice(number, 1)) for number in range(batch.num_rows)]


def first_unreadable(batch: pa.RecordBatch) -> tuple[int, Unreadable]:
    """The first row that `python_rows` cannot read."""
    rows = readable_rows(batch)
    return next((number, row) for number, row in enumerate(rows) if isinstance(row, Unreadable))


def all_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as dicts. Raises: `Unreadable` for a row that Python cannot hold."""
    try:
        return python_rows(batch)
    except (OverflowError, ValueError) as error:
        raise first_unreadable(batch)[1] from error


def _readable_row(row: pa.RecordBatch) -> dict[str, Any] | Unreadable:
    values: dict[str, Any] = {}
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            (values[name],) = python_values(column)
        except (OverflowError, ValueError) as error:
            return Unreadable(name, column.type, error)
    return values


@lru_cache(maxsize=64)
def _row_maker(names: tuple[str, ...]) -> Callable[[list[list[Any]]], list[dict[str, Any]]]:
    """Makes dicts with these keys. Compiled, as named tuples are: a third of the time of ``dict(zip(names, row))``."""
    items = ", ".join(f"{name!r}: v{i}" for i, name in enumerate(names))
    row = "".join(f"v{i}, " for i in range(len(names)))
    made: Callable[[list[list[Any]]], list[dict[str, Any]]]
    made = eval(f"lambda columns: [{{{items}}} for {row} in zip(*columns, strict=True)]")  # noqa: S307 - quoted names
    return made


def arrow_values(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Python values as a column of exactly this type, if nothing is lost.

    Raises: `pa.ArrowException`, `OverflowError`, `TypeError`, `ValueError`.
    """
    check_values(values, kind)
    return pa.array(with_pairs(values, kind), kind)


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
        raise BadOutput(f"got {type(row).__name__} {shown(row)} for a row", "give each row as a dict of its columns")
    if row.keys() != names:
        raise _wrong_columns(sorted(names), sorted(map(str, row)))


def fit_batches(result: object, schema: pa.Schema, given: pa.RecordBatch) -> list[pa.RecordBatch]:
    """The result of a function over the batch `given`, as batches of exactly this schema. Raises: `BadOutput`.

    Columns that are new are copied, because the function may reuse their memory for its next call or batch.
    """
    passed_on = {address for column in given.columns for address in _addresses(column)}
    return [fit(batch, schema, passed_on) for batch in batches_of(result) if batch.num_rows]


def in_own_memory(array: pa.Array) -> pa.Array:
    """A copy in memory of its own: the user may soon reuse the buffer behind an array."""
    return pa.concat_arrays([array])


def _addresses(array: pa.Array) -> set[int]:
    """Where the bytes of an array are."""
    return {buffer.address for buffer in array.buffers() if buffer is not None}


def batches_of(result: object) -> Iterable[pa.RecordBatch]:
    """What a function over batches returned, batch by batch. Raises: `BadOutput`."""
    match result:
        case pa.RecordBatch():
            yield result
        case pa.Table():
            yield from result.to_batches()
        # Iterating over a DataFrame gives the names of its columns.
        case Iterable() if not isinstance(result, str | bytes | Mapping) and not hasattr(result, "__dataframe__"):
            for part in result:
                if not isinstance(part, pa.RecordBatch | pa.Table):
                    raise _no_batch(part)
                yield from batches_of(part)
        case _:
            raise _no_batch(result)


def fit(batch: pa.RecordBatch, schema: pa.Schema, passed_on: set[int]) -> pa.RecordBatch:
    """The batch with exactly the columns of `schema`, cast where nothing is lost. Raises: `BadOutput`."""
    if sorted(batch.schema.names) != sorted(schema.names):
        raise _wrong_columns([describe(schema)], [describe(batch.schema)])
    columns = [_fit_column(batch.column(field.name), field) for field in schema]
    own = [column if _addresses(column) <= passed_on else in_own_memory(column) for column in columns]
    return pa.RecordBatch.from_arrays(own, schema=schema)


def _fit_column(array: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _checked(cast_column(array, field.type), field)
    except pa.ArrowException as error:
        raise _bad_value(field, error, got=str(array.type)) from error


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
    if result is None:
        return BadOutput("the function returned None", "return a record batch", FORGOT_RETURN)
    return BadOutput(
        f"wanted a pyarrow.RecordBatch, a pyarrow.Table or an iterable of them; got {type(result).__name__}",
        "return record batches, for example pa.RecordBatch.from_pandas(frame, preserve_index=False)",
    )
