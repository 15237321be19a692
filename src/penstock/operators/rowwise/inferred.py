"""The columns that a function over batches makes, found by calling it once, with a batch that has no rows.

The function gets no values but those of the stream: nothing here makes up a row. What it does besides returning a batch
(it loads a model, it hangs, it ends the process) happens in the process that builds the pipeline, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from penstock.display import text_of
from penstock.errors import PipelineError
from penstock.operators.columns import describe
from penstock.operators.failures.failing import BadOutput, location
from penstock.operators.values.convert import batches_of


def inferred_schema(operator: str, function: Callable[[pa.RecordBatch], Any], given: pa.Schema) -> pa.Schema:
    """Raises: `PipelineError` if the function does not tell its columns."""
    try:
        made = _schema_of(function(pa.RecordBatch.from_pylist([], schema=given)))
    except BadOutput as error:
        raise operator_refused(operator, error) from None
    except (Exception, SystemExit) as error:  # user code may raise anything, and sys.exit() would end the driver
        if isinstance(error, SystemExit) and type(error) is not SystemExit:
            raise  # SIGTERM ends the program by a kind of its own, and so may the program itself
        where = location(error)
        problem = f"{type(error).__name__}: {text_of(error)}" + (f" (at {where})" if where else "")
        raise _unknown(operator, given, f"with no rows it raises {problem}") from error
    if made is None:
        raise _unknown(operator, given, "with no rows it returns no batch")
    if not made.names:
        raise _unknown(operator, given, "with no rows it returns no columns")
    fitted = _fitted(made, given)
    untyped = [repr(field.name) for field in fitted if pt.is_null(field.type)]
    if untyped:
        raise _unknown(operator, given, f"with no rows the type of {', '.join(untyped)} stays open")
    return fitted


def _unknown(operator: str, given: pa.Schema, problem: str) -> PipelineError:
    return PipelineError(
        f"{operator}: the columns that the function makes of {describe(given)} are not known: {problem}",
        cause="without a schema, Penstock calls the function once, with an empty batch, and takes its columns",
        next_step='name the columns, then it is not called here: map_batches(fn, schema="user bigint, total double")',
        operator=operator,
    )


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
