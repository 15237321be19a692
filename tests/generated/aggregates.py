"""Every aggregate, with the SQL that must give the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

import penstock as pen
from tests.generated.kinds import (
    ABOUT,
    BIG,
    CENTS,
    INT,
    LINE,
    NUMBER,
    QUARTER,
    SMALL,
    TEXT,
    TINY,
    Columns,
    Kind,
    sql_name,
)  # fmt: skip

WHOLE = (SMALL, NUMBER, INT, TINY)
DECIMAL_SUM = Kind("decimal_sum", pa.decimal128(19, 2), lambda _: None)
_LISTABLE = (SMALL, NUMBER, INT, TEXT, CENTS)


def _lists(name: str, *, bag: bool) -> dict[Kind, Kind]:
    return {
        kind: Kind(f"{name}_of_{kind}", pa.list_(kind.arrow), lambda _: None, key=False, ordered=False, bag=bag)
        for kind in _LISTABLE
    }


LISTED, BAGS = _lists("list", bag=False), _lists("bag", bag=True)
FEW = 3
MANY = 100_000


class Range(pen.UserAggregate):
    """Largest minus smallest value of a column, null as 0."""

    state: ClassVar = {"low": pa.int64(), "high": pa.int64()}
    output = pa.int64()

    def __init__(self, column: str) -> None:
        self.column = column

    def update(self, rows: pa.RecordBatch, groups: Any) -> dict[str, Any]:
        values = rows[self.column].cast(pa.int64()).fill_null(0).to_numpy()
        return self.ends(values, values, groups)

    def merge(self, states: pa.RecordBatch, groups: Any) -> dict[str, Any]:
        return self.ends(states["low"].to_numpy(), states["high"].to_numpy(), groups)

    def result(self, states: pa.RecordBatch) -> Any:
        return states["high"].to_numpy() - states["low"].to_numpy()

    def ends(self, lows: np.ndarray, highs: np.ndarray, groups: Any) -> dict[str, Any]:
        low, high = np.full(groups.count, 2**40), np.full(groups.count, -(2**40))
        np.minimum.at(low, groups.ids, lows)
        np.maximum.at(high, groups.ids, highs)
        return {"low": low, "high": high}


@dataclass(frozen=True, slots=True)
class Function:
    """An aggregate: what it takes, what it gives, how it is written, and its SQL; `{o}` is the order of arrival."""

    takes: Callable[[Kind], bool]
    gives: Callable[[Kind], Kind]
    ours: Callable[[str], Any]
    sql: str
    by_arrival: bool = False


def _whole(kind: Kind) -> bool:
    return kind in WHOLE


def _sum_kind(kind: Kind) -> Kind:
    return {CENTS: DECIMAL_SUM, QUARTER: QUARTER}.get(kind, BIG)


def _same(kind: Kind) -> Kind:
    return kind


def _always(kind: Kind) -> Callable[[Kind], Kind]:
    return lambda _: kind


_DOUBLES = Kind("doubles", pa.list_(pa.float64()), lambda _: None, key=False, ordered=False)
_VALUES = "list({c}{o}) FILTER (WHERE {c} IS NOT NULL)"

FUNCTIONS: dict[str, Function] = {
    "count": Function(lambda _: True, _always(BIG), pen.count, "count({c})"),
    "sum": Function(
        lambda kind: kind.adds, _sum_kind, pen.sum, "sum({c})"),
    "min": Function(lambda kind: kind.ordered, _same, pen.min, "min({c})"),
    "max": Function(lambda kind: kind.ordered, _same, pen.max, "max({c})"),
    "mean": Function(_whole, _always(QUARTER), pen.mean, "avg({c})"),
    "variance": Function(_whole, _always(ABOUT), pen.variance, "var_samp({c})"),
    "var_pop": Function(_whole, _always(ABOUT), pen.var_pop, "var_pop({c})"),
    "stddev": Function(_whole, _always(ABOUT), pen.stddev, "stddev_samp({c})"),
    "stddev_pop": Function(_whole, _always(ABOUT), pen.stddev_pop, "stddev_pop({c})"),
    "count_distinct": Function(lambda kind: kind.key, _always(BIG), pen.count_distinct, "count(DISTINCT {c})"),
    "approx_count_distinct": Function(
        lambda kind: kind.key, _always(BIG), pen.approx_count_distinct, "count(DISTINCT {c})"
    ),
    "quantiles": Function(
        _whole,
        _always(_DOUBLES),
        lambda column: pen.quantiles(column, [0.5, 1.0]),
        "CASE WHEN count({c}) > 0 THEN [CAST(quantile_disc({c}, 0.5) AS DOUBLE), CAST(max({c}) AS DOUBLE)] END",
    ),
    "collect_list": Function(
        lambda kind: kind in LISTED,
        lambda kind: BAGS[kind],
        lambda column: pen.collect_list(column, MANY),
        f"coalesce({_VALUES}, [])",
    ),
    "collect_set": Function(
        lambda kind: kind in LISTED,
        lambda kind: BAGS[kind],
        lambda column: pen.collect_set(column, MANY),
        "coalesce(list(DISTINCT {c}) FILTER (WHERE {c} IS NOT NULL), [])",
    ),
    "range": Function(_whole, _always(BIG), Range, "CAST(max(coalesce({c}, 0)) AS BIGINT) - min(coalesce({c}, 0))"),
    "first": Function(lambda _: True, _same, pen.first, "first({c}{o})", by_arrival=True),
    "last": Function(lambda _: True, _same, pen.last, "last({c}{o})", by_arrival=True),
    "first_known": Function(
        lambda _: True,
        _same,
        lambda column: pen.first(column, ignore_nulls=True),
        "first({c}{o}) FILTER (WHERE {c} IS NOT NULL)",
        by_arrival=True,
    ),
    "last_known": Function(
        lambda _: True,
        _same,
        lambda column: pen.last(column, ignore_nulls=True),
        "last({c}{o}) FILTER (WHERE {c} IS NOT NULL)",
        by_arrival=True,
    ),
    "some": Function(
        lambda kind: kind in LISTED,
        lambda kind: LISTED[kind],
        lambda column: pen.collect_list(column, FEW),
        f"coalesce(({_VALUES})[1:{FEW}], [])",
        by_arrival=True,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Aggregates:
    """Columns that an aggregation gives, by name: function and column. All have the number of rows, too."""

    parts: tuple[tuple[str, str, str], ...]
    order: tuple[str, ...] = ()

    def ours(self) -> dict[str, Any]:
        return {"rows": pen.count(), **{name: FUNCTIONS[f].ours(column) for name, f, column in self.parts}}

    @property
    def sql(self) -> str:
        order = f" ORDER BY {', '.join(map(sql_name, self.order))}" if self.order else ""
        every = [f"{FUNCTIONS[f].sql.format(c=sql_name(column), o=order)} AS {name}" for name, f, column in self.parts]
        return ", ".join(["count(*) AS rows", *every])

    def columns(self, taken: Columns) -> Columns:
        return {"rows": LINE, **{name: FUNCTIONS[f].gives(taken[column]) for name, f, column in self.parts}}


def draw_aggregates(chance: Random, columns: Columns, order: tuple[str, ...]) -> Aggregates:
    parts = []
    for number in range(chance.randint(0, 4)):
        function = chance.choice([f for f, what in FUNCTIONS.items() if order or not what.by_arrival])
        fitting = [name for name, kind in columns.items() if FUNCTIONS[function].takes(kind)]
        if fitting:
            parts.append((f"a{number}", function, chance.choice(fitting)))
    return Aggregates(tuple(parts), order)
