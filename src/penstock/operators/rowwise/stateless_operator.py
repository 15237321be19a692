"""Runs functions over batches and over rows, slice by slice.

A slice goes through user code as a whole. If it fails, nothing of it is emitted. The operator then runs functions over
batches again on parts of the slice, to find the failing record.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.display import record_of
from penstock.operators.base import OperatorDefaults
from penstock.operators.failures.deadletters import Letters
from penstock.operators.failures.failing import BadOutput, batch_failed, operator_failed, run_passing
from penstock.operators.values.convert import FORGOT_RETURN, batch_of_rows, check_row, first_misfit, readable_rows
from penstock.operators.values.copies import row_copier
from penstock.records import Emitted, Records

if TYPE_CHECKING:
    from penstock.operators.rowwise.stateless import FlatMap


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
        if result is None:
            raise BadOutput("the function returned None", "yield rows, or return a list; [] for no row", FORGOT_RETURN)
        if not isinstance(result, Iterable) or isinstance(result, str | bytes | Mapping):
            raise BadOutput(f"wanted an iterable of rows, got {type(result).__name__}", "yield rows or return a list")
        produced = []
        for output in result:
            check_row(output, self._names)
            produced.append(self._copy(output))  # copied now: the next yield may reuse the same dict
        return produced
