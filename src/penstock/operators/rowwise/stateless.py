"""Operators without state: functions over batches, filters, functions over rows.

A slice goes through user code as a whole; if it fails, nothing of it is emitted, and functions over batches are run
again on parts of it to find the record to blame.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.display import record_of
from penstock.errors import PipelineError
from penstock.operators.base import Operator, OperatorContext, OperatorDefaults
from penstock.operators.columns import describe
from penstock.operators.failures.deadletters import CarefulSpec, Letters
from penstock.operators.failures.failing import BadOutput, batch_failed, operator_failed, run_passing
from penstock.operators.values.convert import batch_of_rows, check_row, first_misfit, fit_batches, readable_rows
from penstock.operators.values.copies import row_copier
from penstock.records import Emitted, Records

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


class BatchOperator(OperatorDefaults):
    """Runs a function over batches, slice by slice."""

    def __init__(
        self, name: str, apply: Callable[[pa.RecordBatch], list[pa.RecordBatch]], letters: Letters | None = None
    ) -> None:
        self._name, self._apply, self._letters = name, apply, letters

    def process(self, records: Records) -> Iterator[Emitted]:
        if self._letters is not None:
            return self._passing(records.batch, self._letters)
        try:
            outputs = self._apply(records.batch)
        except Exception as error:
            raise batch_failed(self._name, records.batch, self._apply, error) from error
        return iter(outputs)

    def counters(self) -> Mapping[str, int]:
        return {} if self._letters is None else self._letters.counters()

    def _passing(self, batch: pa.RecordBatch, letters: Letters) -> Iterator[Emitted]:
        letters.tried += batch.num_rows
        outputs, failed = run_passing(batch, self._apply)
        for row, error in failed:
            letters.add(batch, row, error)
        yield from outputs
        yield from letters.take()


class RowOperator(OperatorDefaults):
    """Runs a `FlatMap` row by row."""

    def __init__(self, spec: FlatMap, letters: Letters | None = None) -> None:
        self._spec, self._letters = spec, letters
        self._names, self._copy = frozenset(spec.output_schema.names), row_copier(spec.output_schema)

    def process(self, records: Records) -> Iterator[Emitted]:
        outputs: list[Mapping[str, Any]] = []
        ends: list[int] = []
        for number, row in enumerate(readable_rows(records.batch)):
            try:
                if isinstance(row, Exception):
                    raise row
                outputs.extend(self._call(row))
            except Exception as error:  # noqa: BLE001 - user code may raise anything
                self._failed(records.batch, number, error)
            ends.append(len(outputs))
        if outputs:
            yield self._fit(records.batch, outputs, ends)
        if self._letters is not None:
            self._letters.tried += records.rows
            yield from self._letters.take()

    def counters(self) -> Mapping[str, int]:
        return {} if self._letters is None else self._letters.counters()

    def _fit(self, batch: pa.RecordBatch, outputs: list[Mapping[str, Any]], ends: list[int]) -> pa.RecordBatch:
        """The output as columns; of input row k it is the part that ends before ``ends[k]``."""
        schema = self._spec.output_schema
        try:
            return batch_of_rows(outputs, schema)
        except BadOutput as error:
            if self._letters is None:
                culprit = bisect_right(ends, first_misfit(outputs, schema))
                raise operator_failed(self._spec.name, error, record_of(batch, culprit)) from error
        fitting: list[Mapping[str, Any]] = []
        for row, (start, stop) in enumerate(pairwise((0, *ends))):
            try:
                batch_of_rows(outputs[start:stop], schema)
            except BadOutput as error:
                self._failed(batch, row, error)
            else:
                fitting += outputs[start:stop]
        return batch_of_rows(fitting, schema)

    def _failed(self, batch: pa.RecordBatch, row: int, error: Exception) -> None:
        if self._letters is None:
            raise operator_failed(self._spec.name, error, record_of(batch, row)) from error
        self._letters.add(batch, row, error)

    def _call(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        result: object = self._spec.function(row)
        if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping):
            raise BadOutput(f"wanted an iterable of rows, got {type(result).__name__}", "yield rows or return a list")
        produced = []
        for output in result:
            check_row(output, self._names)
            produced.append(self._copy(output))  # now: the next yield may be of the same dict
        return produced


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
