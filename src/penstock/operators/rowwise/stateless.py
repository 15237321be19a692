"""Operators without state, as the graph knows them: functions over batches and over rows, filters, columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PipelineError
from penstock.operators.base import Operator, OperatorContext
from penstock.operators.columns import describe
from penstock.operators.failures.careful import CarefulSpec
from penstock.operators.failures.failing import BadOutput
from penstock.operators.rowwise.stateless_operator import BatchOperator, RowOperator
from penstock.operators.sql.parser import computed
from penstock.operators.values.convert import fit_batches

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]"]
Predicate: TypeAlias = "Callable[[pa.RecordBatch], pa.Array] | pc.Expression"
RowFunction: TypeAlias = Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]


@dataclass(frozen=True)
class MapBatches(CarefulSpec):
    """A function from batches to batches; its output is cast to `output_schema` where nothing is lost."""

    name: str
    function: BatchFunction
    input_schema: pa.Schema
    output_schema: pa.Schema

    def __post_init__(self) -> None:
        require_callable(self.name, self.function, "map_batches")
        super().__post_init__()

    @property
    def kind(self) -> str:
        return "map_batches"

    def build(self, context: OperatorContext) -> Operator:
        return BatchOperator(self.name, self._apply, self.letters(self.name, context))

    def _apply(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return fit_batches(self.function(batch), self.output_schema, batch)


@dataclass(frozen=True, eq=False)  # comparing two expressions makes a third one
class Filter(CarefulSpec):
    """Keeps the rows for which the predicate is true; null counts as false, as in SQL."""

    name: str
    predicate: Predicate
    input_schema: pa.Schema

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.predicate, pc.Expression):
            require_callable(self.name, self.predicate, "filter")
            return
        try:
            self.input_schema.empty_table().filter(self.predicate)
        except (pa.ArrowException, TypeError) as error:
            raise PipelineError(
                f"{self.name}: the expression {self.predicate} cannot be evaluated: {error}",
                cause="it names a column that is not there, or is no condition",
                next_step=f"write a condition over the input's columns: {describe(self.input_schema)}",
                operator=self.name,
            ) from error

    @property
    def kind(self) -> str:
        return "filter"

    @property
    def hands_on(self) -> bool:
        return True

    @property
    def output_schema(self) -> pa.Schema:
        return self.input_schema

    def build(self, context: OperatorContext) -> Operator:
        return BatchOperator(self.name, self._apply, self.letters(self.name, context))

    def _apply(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        if isinstance(self.predicate, pc.Expression):
            # As a table: a record batch of which nothing is left raises IndexError in pyarrow 19.
            kept = pa.Table.from_batches([batch]).filter(self.predicate).to_batches()
        else:
            kept = [batch.filter(_mask(self.predicate(batch), batch.num_rows))]
        return [part for part in kept if part.num_rows]


@dataclass(frozen=True)
class FlatMap(CarefulSpec):
    """A function from one row to any number of rows, both as dicts."""

    name: str
    function: RowFunction
    input_schema: pa.Schema
    output_schema: pa.Schema

    def __post_init__(self) -> None:
        require_callable(self.name, self.function, "flat_map")
        super().__post_init__()

    @property
    def kind(self) -> str:
        return "flat_map"

    def build(self, context: OperatorContext) -> Operator:
        return RowOperator(self, self.letters(self.name, context))


@dataclass(frozen=True, eq=False)  # comparing two expressions makes a third one
class Projection(CarefulSpec):
    """One output column for each Arrow expression, in this order. Arrow tells the types."""

    name: str
    input_schema: pa.Schema
    expressions: Mapping[str, pc.Expression]

    def __post_init__(self) -> None:
        super().__post_init__()
        for column, expression in self.expressions.items():
            self._check(column, expression)

    def _check(self, column: str, expression: object) -> None:
        if not isinstance(expression, pc.Expression):
            raise PipelineError(
                f"{self.name}: the column {column!r} is {type(expression).__name__} {expression!r:.100}",
                cause="a column is an Arrow expression, or SQL text",
                next_step=f'write for example pc.field("{self.input_schema.names[0]}"), with pyarrow.compute as pc',
                operator=self.name,
                column=column,
            )
        try:
            made = computed(self.input_schema.empty_table(), {column: expression}).schema.field(0)
        except (pa.ArrowException, TypeError) as error:
            raise PipelineError(
                f"{self.name}: the column {column!r} cannot be computed by {expression}: {error}",
                cause="the expression names a column that is not there, or a function does not take its type",
                next_step=f"write an expression over the input's columns: {describe(self.input_schema)}",
                operator=self.name,
                column=column,
            ) from error
        if pa.types.is_null(made.type):
            raise PipelineError(
                f"{self.name}: the column {column!r} has no type",
                cause="pc.scalar(None) says no type",
                next_step="say one: pc.scalar(pa.scalar(None, pa.string()))",
                operator=self.name,
                column=column,
            )

    @property
    def kind(self) -> str:
        return "columns"

    @cached_property
    def output_schema(self) -> pa.Schema:
        return computed(self.input_schema.empty_table(), self.expressions).schema

    def build(self, context: OperatorContext) -> Operator:
        return BatchOperator(self.name, self._apply, self.letters(self.name, context))

    def _apply(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return computed(pa.Table.from_batches([batch]), self.expressions).to_batches()


def _mask(result: object, rows: int) -> pa.Array:
    advice = "return one true or false per row"
    try:
        mask = result if isinstance(result, pa.Array | pa.ChunkedArray) else pa.array(result)
    except (pa.ArrowException, TypeError) as error:
        raise BadOutput(f"wanted a boolean array, got {type(result).__name__}", advice) from error
    if not pa.types.is_boolean(mask.type) or len(mask) != rows:
        raise BadOutput(f"wanted a boolean array of {rows} rows, got {len(mask)} of type {mask.type}", advice)
    return mask


def require_callable(operator: str, function: object, method: str) -> None:
    if not callable(function):
        raise PipelineError(
            f"{operator}: {method} got {type(function).__name__} {function!r:.100}",
            cause="the argument is not a function",
            next_step=f"pass a function to {method}, without calling it",
            operator=operator,
        )
