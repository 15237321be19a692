"""The aggregate functions a user writes.

They mean what they mean in Spark SQL: nulls do not count, except for `count()`, and for `first` and `last`, which take
the row's value, null or not, unless told to ignore nulls. Without any value counts are 0, lists empty, everything else
is null. A sum of integers that leaves bigint stops the query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec

import pyarrow as pa
import pyarrow.types as pt

from penstock.errors import PipelineError
from penstock.hashing import why_unsupported
from penstock.operators.aggregate.accumulators import (
    Accumulator,
    CountRows,
    EdgeValue,
    ExtremeValue,
    MeanValue,
    SumValues,
    mean_types,
    sum_type,
)
from penstock.operators.aggregate.base import Aggregate
from penstock.operators.aggregate.collecting import ApproximateDistinct, CollectValues, CountDistinct
from penstock.operators.aggregate.quantiles import Quantiles
from penstock.operators.aggregate.reduce import has_order
from penstock.operators.aggregate.spread import Spread
from penstock.operators.columns import is_number, is_text, is_whole, require_column

_SPREADS = {
    "variance": (True, False),
    "var_pop": (False, False),
    "stddev": (True, True),
    "stddev_pop": (False, True),
}
_TAKES = {
    **dict.fromkeys(("sum", "mean", "quantiles", *_SPREADS), "numbers"),
    **dict.fromkeys(("min", "max"), "values that have an order"),
    **dict.fromkeys(("count_distinct", "approx_count_distinct", "collect_set"), "values that can be keys"),
    "collect_list": "values of types that Spark has",
}


@dataclass(frozen=True, slots=True)
class ColumnAggregate(Aggregate):
    """A function over a column."""

    function: str
    column: str | None = None
    ignore_nulls: bool = False
    limit: int | None = None
    rsd: float = 0.0
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises: `PipelineError`."""
        if not is_text(self.column) and (self.column is not None or self.function != "count"):
            raise _refused_argument(
                self.function, f"column={self.column!r:.100}", "name a column, or write an expression, as a string"
            )

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"

    @property
    def meaning(self) -> str:
        """Leaves `shares` out: the state does not depend on them."""
        options = {"ignore_nulls": self.ignore_nulls, "limit": self.limit, "rsd": self.rsd}
        given = [self.column or "", *(f"{name}={value}" for name, value in options.items() if value)]
        return f"{self.function}({', '.join(given)})"

    def bind(self, operator: str, schema: pa.Schema) -> Accumulator:
        if self.column is None:
            assert self.function == "count"
            return CountRows(None)
        kind = require_column(operator, schema, self.column, str(self)).type
        bound = self._over_numbers(self.column, kind) or self._over_anything(self.column, kind)
        if bound is None:
            raise self._refused(operator, kind)
        return bound

    def _over_numbers(self, column: str, kind: pa.DataType) -> Accumulator | None:
        total, means = sum_type(kind), mean_types(kind)
        if total is None or means is None:
            return None
        match self.function:
            case "sum":
                return SumValues(column, total)
            case "mean":
                return MeanValue(column, *means)
            case "variance" | "var_pop" | "stddev" | "stddev_pop":
                return Spread(column, *_SPREADS[self.function])
            case "quantiles":
                return Quantiles(column, self.shares)
        return None

    def _over_anything(self, column: str, kind: pa.DataType) -> Accumulator | None:
        hashed = why_unsupported(kind) is None
        match self.function:
            case "count":
                return CountRows(column)
            case "min" | "max" if has_order(kind):
                return ExtremeValue(column, kind, largest=self.function == "max")
            case "first" | "last":
                return EdgeValue(column, kind, last=self.function == "last", ignore_nulls=self.ignore_nulls)
            case "collect_list" if not pt.is_unsigned_integer(kind):
                return CollectValues(column, kind, self.limit, distinct=False)
            case "collect_set" if hashed:
                return CollectValues(column, kind, self.limit, distinct=True)
            case "count_distinct" if hashed:
                return CountDistinct(CollectValues(column, kind, None, distinct=True))
            case "approx_count_distinct" if hashed:
                return ApproximateDistinct(column, ApproximateDistinct.size_for(self.rsd), kind)
        return None

    def _refused(self, operator: str, kind: pa.DataType) -> PipelineError:
        return PipelineError(
            f"{operator}: {self} over a column of type {kind}",
            cause=f"{self.function} takes {_TAKES[self.function]}",
            next_step="cast the column before, or aggregate another one",
            operator=operator,
            column=self.column,
        )


def count(column: str | None = None) -> Aggregate:
    """Number of rows, or of values of `column` that are not null, as bigint; ``"*"`` means rows, as in SQL."""
    return ColumnAggregate("count", None if column == "*" else column)


def count_distinct(column: str) -> Aggregate:
    """Number of different values, exactly, as bigint. The state holds each of them."""
    return ColumnAggregate("count_distinct", column)


def approx_count_distinct(column: str, rsd: float = 0.05) -> Aggregate:
    """Number of different values, with the relative standard deviation `rsd`, as bigint.

    The state holds at most ``1 / rsd²`` hashes of 8 bytes. Up to that many values the result is exact.

    Raises: `PipelineError`.
    """
    if not is_number(rsd) or not 0.001 <= rsd <= 0.5:
        raise _refused_argument("approx_count_distinct", f"rsd={rsd!r:.100}", "rsd is between 0.001 and 0.5")
    return ColumnAggregate("approx_count_distinct", column, rsd=rsd)


def sum(column: str) -> Aggregate:  # noqa: A001
    """Sum of integers as bigint, of floats as double, of ``decimal(p, s)`` as ``decimal(min(38, p + 10), s)``."""
    return ColumnAggregate("sum", column)


def min(column: str) -> Aggregate:  # noqa: A001
    """Smallest value: numbers, booleans, dates, timestamps, strings, binaries. NaN is larger than any number."""
    return ColumnAggregate("min", column)


def max(column: str) -> Aggregate:  # noqa: A001
    """Largest value: numbers, booleans, dates, timestamps, strings, binaries. NaN is larger than any number."""
    return ColumnAggregate("max", column)


def mean(column: str) -> Aggregate:
    """Mean as double; of ``decimal(p, s)`` as ``decimal(p + 4, s + 4)``."""
    return ColumnAggregate("mean", column)


def variance(column: str) -> Aggregate:
    """Variance of a sample, as double; null for a single value."""
    return ColumnAggregate("variance", column)


def var_pop(column: str) -> Aggregate:
    """Variance of a population, as double."""
    return ColumnAggregate("var_pop", column)


def stddev(column: str) -> Aggregate:
    """Standard deviation of a sample, as double; null for a single value."""
    return ColumnAggregate("stddev", column)


def stddev_pop(column: str) -> Aggregate:
    """Standard deviation of a population, as double."""
    return ColumnAggregate("stddev_pop", column)


def first(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value of the first row of the key, or its first value that is not null."""
    return ColumnAggregate("first", column, ignore_nulls)


def last(column: str, *, ignore_nulls: bool = False) -> Aggregate:
    """Value of the newest row of the key, or its newest value that is not null."""
    return ColumnAggregate("last", column, ignore_nulls)


def collect_list(column: str, limit: int) -> Aggregate:
    """The first `limit` values, in the order of arrival.

    Raises: `PipelineError`.
    """
    return ColumnAggregate("collect_list", column, limit=_at_least_one("collect_list", limit))


def collect_set(column: str, limit: int) -> Aggregate:
    """The first `limit` different values, in the order of arrival.

    Raises: `PipelineError`.
    """
    return ColumnAggregate("collect_set", column, limit=_at_least_one("collect_set", limit))


def quantiles(column: str, shares: Iterable[float]) -> Aggregate:
    """For each share, such as ``[0.5, 0.99]``, the value below which that share of all values lies. NaN does not count.

    From a sketch: the share is off by at most 1.4 %, with 99 % confidence. Needs ``pip install penstock[sketches]``.

    Raises: `PipelineError`.
    """
    try:
        wanted = tuple(float(share) for share in shares)
    except (TypeError, ValueError):
        wanted = ()
    if not wanted or not all(0 <= share <= 1 for share in wanted):
        allowed = "shares are a list of numbers between 0 and 1"
        raise _refused_argument("quantiles", f"shares={shares!r:.100}", allowed)
    if find_spec("datasketches") is None:
        raise PipelineError(
            "quantiles: the package datasketches is not installed",
            cause="it is an extra",
            next_step="pip install 'penstock[sketches]', here and where Spark's workers run",
        )
    return ColumnAggregate("quantiles", column, shares=wanted)


def _at_least_one(function: str, limit: int) -> int:
    if not is_whole(limit) or limit < 1:
        raise _refused_argument(function, f"limit={limit!r:.100}", "limit is a number of values, at least 1")
    return limit


def _refused_argument(function: str, seen: str, allowed: str) -> PipelineError:
    return PipelineError(f"{function}: {seen}", cause="the value lies outside of what is allowed", next_step=allowed)
