"""Expressions over one column, each as Arrow, as Python over a row, and as SQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tests.generated.kinds import (
    BOOL,
    CENTS,
    DAY,
    INT,
    LINE,
    LIST,
    NUMBER,
    PAIR,
    QUARTER,
    SMALL,
    TEXT,
    TIME,
    WHEN,
    Columns,
    Kind,
    sql_name,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Form:
    """What is done with a column."""

    takes: tuple[Kind, ...]
    gives: Kind | None
    """None: what it takes."""
    arrow: Callable[[Any], Any]
    row: Callable[[Any], Any]
    sql: str


def _null_safe(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else change(value)


def _long(array: Any) -> Any:
    return array.cast(pa.int64())


NUMBERS = (SMALL, NUMBER)
FORMS: dict[str, Form] = {
    "same": Form((), None, lambda a: a, lambda v: v, "{}"),
    "negative": Form(NUMBERS, None, pc.negate, _null_safe(lambda v: -v), "-{}"),
    "plus": Form(NUMBERS, SMALL, lambda a: pc.add(a, 3), _null_safe(lambda v: v + 3), "{} + 3"),
    "or_zero": Form(NUMBERS, None, lambda a: pc.fill_null(a, 0), lambda v: v or 0, "coalesce({}, 0)"),
    "wide": Form((INT,), SMALL, _long, lambda v: v, "CAST({} AS BIGINT)"),
    "twice": Form((QUARTER,), None, lambda a: pc.multiply(a, 2.0), _null_safe(lambda v: v * 2), "{} * 2"),
    "exclaimed": Form(
        (TEXT,), None, lambda a: pc.binary_join_element_wise(a, "!é", ""), _null_safe(lambda v: v + "!é"), "{} || '!é'"
    ),
    "length": Form((TEXT,), NUMBER, lambda a: _long(pc.utf8_length(a)), _null_safe(len), "length({})"),
    "or_empty": Form((TEXT,), None, lambda a: pc.fill_null(a, ""), lambda v: v or "", "coalesce({}, '')"),
    "not": Form((BOOL,), None, pc.invert, _null_safe(lambda v: not v), "NOT {}"),
    "count": Form((LIST,), NUMBER, lambda a: _long(pc.list_value_length(a)), _null_safe(len), "len({})"),
    "field": Form(
        (PAIR,), TEXT, lambda a: pc.struct_field(a, [1]), _null_safe(lambda v: v["b"]), "struct_extract({}, 'b')"
    ),
    "is_null": Form(
        (DAY, WHEN, CENTS, TEXT, LIST), BOOL, pc.is_null, lambda v: v is None, "({} IS NULL)"
    ),
}  # fmt: skip

IN_ARROW = {
    "same", "negative", "plus", "or_zero", "wide", "twice", "exclaimed", "or_empty", "not", "is_null",
}  # fmt: skip
"""Forms whose SQL Arrow computes behind an operator, with the type that the other ways give."""


@dataclass(frozen=True, slots=True)
class Expr:
    """A form of a column."""

    column: str
    form: str = "same"

    def kind(self, columns: Columns) -> Kind:
        return FORMS[self.form].gives or columns[self.column]

    def arrow(self, batch: pa.RecordBatch) -> Any:
        return FORMS[self.form].arrow(batch.column(self.column))

    def row(self, row: dict[str, Any]) -> Any:
        return FORMS[self.form].row(row[self.column])

    @property
    def sql(self) -> str:
        return FORMS[self.form].sql.format(sql_name(self.column))

    def __repr__(self) -> str:
        return self.column if self.form == "same" else f"{self.form}({self.column})"


def draw_expr(chance: Random, columns: Columns, column: str) -> Expr:
    fitting = [form for form, what in FORMS.items() if columns[column] in what.takes]
    return Expr(column, chance.choice(fitting) if fitting and chance.random() < 0.5 else "same")


@dataclass(frozen=True, slots=True)
class Condition:
    """Of a row: whether a number is above another, what rest the row's number has, or whether there is a value."""

    column: str
    form: str
    number: int = 0

    def arrow(self, batch: pa.RecordBatch) -> Any:
        array = batch.column(self.column)
        match self.form:
            case "above":
                return pc.greater(array, self.number)
            case "known":
                return pc.is_valid(array)
        values = array.to_numpy(zero_copy_only=False)
        # Outer joins make rows without a number, for which SQL's comparison is not true.
        return pc.and_(pc.is_valid(array), pa.array(values % 5 != self.number))

    @property
    def expression(self) -> Any:
        """As an expression of ``pyarrow.compute``; None where it has none."""
        match self.form:
            case "above":
                return pc.field(self.column) > self.number
            case "known":
                return pc.field(self.column).is_valid()
        return None

    @property
    def sql(self) -> str:
        name = sql_name(self.column)
        return {"above": f"{name} > {self.number}", "known": f"{name} IS NOT NULL"}.get(
            self.form, f"{name} % 5 <> {self.number}"
        )


def spark_text(sql: str) -> str:
    """Spark has its names in other quotes."""
    return sql.replace('"', "`")


def draw_condition(chance: Random, columns: Columns) -> Condition | None:
    options = [Condition(name, "above", chance.randint(-50, 50)) for name, kind in columns.items() if kind in NUMBERS]
    options += [Condition(name, "known") for name, kind in columns.items() if kind not in (LINE, TIME)]
    options += [Condition("n", "rest", chance.randint(0, 4))] * (2 * (columns.get("n") == LINE))
    return chance.choice(options) if options else None
