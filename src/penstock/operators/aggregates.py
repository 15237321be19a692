"""The aggregate functions a user writes: `count`, `sum`, `min`, `max`, `mean`, `first`, `last`.

They mean what they mean in Spark SQL: nulls do not count for `count(column)`, `sum`, `min`, `max` and `mean`, which
are null where there is no value (`count` is 0); `first` and `last` take the row's value, null or not, unless told to
ignore nulls. A sum of integers that leaves bigint stops the query.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import PipelineError
from penstock.operators.accumulators import (
    Accumulator,
    CountRows,
    EdgeValue,
    ExtremeValue,
    MeanValue,
    SumValues,
    mean_types,
    sum_type,
)
from penstock.operators.columns import require_column
from penstock.operators.reduce import has_order


@dataclass(frozen=True, slots=True)
class Aggregate:
    """A function over a column, as the user wrote it; `bind` gives it types."""

    function: str
    column: str | None = None
    ignore_nulls: bool = False

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"

    def bind(self, operator: str, schema: pa.Schema) -> Accumulator:
        """The accumulator for an input of this schema.

        Raises: `PipelineError` for a column that is not there or has a type the function cannot take.
        """
        if self.column is None:
            assert self.function == "count"
            return CountRows(None)
        kind = require_column(operator, schema, self.column, str(self)).type
        match self.function:
            case "count":
                return CountRows(self.column)
            case "sum":
                if (total := sum_type(kind)) is not None:
                    return SumValues(self.column, total)
            case "mean":
                if (types := mean_types(kind)) is not None:
                    return MeanValue(self.column, *types)
            case "min" | "max":
                if has_order(kind):
                    return ExtremeValue(self.column, kind, largest=self.function == "max")
            case "first" | "last":
                return EdgeValue(self.column, kind, last=self.function == "last", ignore_nulls=self.ignore_nulls)
        raise self._refused(operator, kind)

    def _refused(self, operator: str, kind: pa.DataType) -> PipelineError:
        takes = "numbers" if self.function in {"sum", "mean"} else "values that have an order"
        return PipelineError(
            f"{operator}: {self} over a column of type {kind}",
            cause=f"{self.function} takes {takes}",
            next_step="cast the column before, or aggregate another one",
            operator=operator,
            column=self.column,
        )


def count(column: str | None = None) -> Aggregate:
    """Number of rows, or of values of `column` that are not null, as bigint."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:  # noqa: A001
    """Sum of integers as bigint, of floats as double, of ``decimal(p, s)`` as ``decimal(min(38, p + 10), s)``."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Smallest value: numbers, booleans, dates, timestamps, strings, binaries. NaN is larger than any number."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Largest value: numbers, booleans, dates, timestamps, strings, binaries. NaN is larger than any number."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Mean as double; of ``decimal(p, s)`` as ``decimal(p + 4, s + 4)``."""
    return Aggregate("mean", column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value of the first row of the key, or its first value that is not null."""
    return Aggregate("first", column, ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value of the newest row of the key, or its newest value that is not null."""
    return Aggregate("last", column, ignore_nulls)
