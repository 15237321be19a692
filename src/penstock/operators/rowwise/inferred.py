"""The columns that a function over batches makes, found by calling it: with no rows, and if that does not tell, with
two rows that are made up.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.display import text_of
from penstock.errors import PipelineError
from penstock.operators.columns import describe
from penstock.operators.failures.failing import BadOutput, location
from penstock.operators.values.convert import batches_of

_MOMENT = datetime(2024, 1, 1, tzinfo=UTC)


def inferred_schema(operator: str, function: Callable[[pa.RecordBatch], Any], given: pa.Schema) -> pa.Schema:
    """Raises: `PipelineError` if the function does not tell its columns."""
    problem = ""
    for sample in (empty_batch, sample_batch):
        try:
            made = _schema_of(function(sample(given)))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            if isinstance(error, BadOutput):
                raise operator_refused(operator, error) from None
            where = location(error)
            problem = f"{type(error).__name__}: {text_of(error)}" + (f" (at {where})" if where else "")
            continue
        if made is None or not made.names:
            problem = "it returns no batch" if made is None else "it returns no columns"
            continue
        fitted = _fitted(made, given)
        untyped = [field.name for field in fitted if pt.is_null(field.type)]
        if not untyped:
            return fitted
        problem = f"the type of {', '.join(map(repr, untyped))} stays open"
    raise PipelineError(
        f"{operator}: the columns that the function makes of {describe(given)} are not known: {problem}",
        cause="without a schema, Penstock calls the function with no rows and with two rows that it makes up",
        next_step='name the columns: map_batches(fn, "user bigint, total double")',
        operator=operator,
    )


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def sample_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Two equal rows of plain values: 1, 'a', the first day of 2024."""
    return pa.RecordBatch.from_arrays(
        [pa.array([_sample(field.type)] * 2, field.type) for field in schema], schema=schema
    )


_SAMPLES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], Any]], ...] = (
    (pt.is_boolean, lambda _: True),
    (pt.is_integer, lambda _: 1),
    (pt.is_floating, lambda _: 1.0),
    (pt.is_decimal, lambda kind: Decimal(int(kind.precision > kind.scale))),
    (pt.is_date, lambda _: _MOMENT.date()),
    (pt.is_timestamp, lambda kind: _MOMENT if kind.tz is not None else _MOMENT.replace(tzinfo=None)),
    (pt.is_string, lambda _: "a"),
    (pt.is_binary, lambda _: b"a"),
    (pt.is_struct, lambda kind: {field.name: _sample(field.type) for field in kind}),
    (pt.is_map, lambda kind: [(_sample(kind.key_type), _sample(kind.item_type))]),
    (pt.is_list, lambda kind: [_sample(kind.value_type)]),
)


def _sample(kind: pa.DataType) -> Any:
    return next((value(kind) for fits, value in _SAMPLES if fits(kind)), None)


def _schema_of(result: object) -> pa.Schema | None:
    for batch in batches_of(result):
        return batch.schema
    # A table without rows has no batches, but columns.
    return result.schema if isinstance(result, pa.Table) else None


def _fitted(made: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Types as Spark has them. A column of the input keeps its type where the new values fit into it."""
    fields = []
    for field in made:
        kind = _spark_type(field.type)
        known = given.field(field.name) if given.get_all_field_indices(field.name) else None
        if known is not None and _fits(kind, known.type):
            fields.append(known)
        else:
            fields.append(pa.field(field.name, kind))
    order = {name: place for place, name in enumerate(given.names)}
    if {field.name for field in fields} == set(order):
        fields.sort(key=lambda field: order[field.name])
    return pa.schema(fields)


def _fits(kind: pa.DataType, known: pa.DataType) -> bool:
    if kind == known or pt.is_null(kind):
        return True
    if pt.is_integer(kind) and pt.is_integer(known):
        return kind.bit_width <= known.bit_width
    return bool(pt.is_floating(kind) and pt.is_floating(known) and kind.bit_width <= known.bit_width)


_UNSIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], pa.DataType]], ...] = (
    (pt.is_dictionary, lambda kind: _spark_type(kind.value_type)),
    (pt.is_large_string, lambda _: pa.string()),
    (pt.is_large_binary, lambda _: pa.binary()),
    (pt.is_large_list, lambda kind: pa.list_(_spark_type(kind.value_type))),
    (pt.is_list, lambda kind: pa.list_(_spark_type(kind.value_type))),
    (pt.is_struct, lambda kind: pa.struct([pa.field(field.name, _spark_type(field.type)) for field in kind])),
    (pt.is_timestamp, lambda kind: pa.timestamp("us", None if kind.tz is None else "UTC")),
    (pt.is_date64, lambda _: pa.date32()),
    (pt.is_float16, lambda _: pa.float32()),
)


def _spark_type(kind: pa.DataType) -> pa.DataType:
    return next((plain(kind) for fits, plain in _PLAIN if fits(kind)), _UNSIGNED.get(kind, kind))


def operator_refused(operator: str, error: BadOutput) -> PipelineError:
    return PipelineError(
        f"{operator}: {text_of(error)}", cause=error.cause, next_step=error.next_step, operator=operator
    )
