"""Aggregates with their types: how the rows of a group are reduced, and how parts of a group are combined.

An accumulator reduces a slice to one row of state columns per group (`partial`), and such rows to one again
(`combine`). Rows come oldest first, so looked-up state is the oldest part. `result` computes the answer from the state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.aggregate import reduce
from penstock.operators.grouping import Groups

States: TypeAlias = Sequence[pa.Array]

_DECIMAL_DIGITS_MAX = 38
# As in Spark: room for ten billion values of full size.
_SUM_DIGITS_MORE = 10
_MEAN_DIGITS_MORE = 4
_COUNT_TYPE = pa.decimal256(19, 0)
_DIGITS_OF_32_BITS = 9


class Accumulator(Protocol):
    """One aggregate over a column of known type."""

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        """State columns by the suffix of their names; the empty suffix is the aggregate's own name."""
        ...

    @property
    def result_type(self) -> pa.DataType: ...
    @property
    def null_is_nothing(self) -> bool:
        """Whether a state of nulls is that of no rows: then the aggregate may begin with keys that are there."""
        ...

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]: ...
    def combine(self, states: States, groups: Groups) -> list[pa.Array]: ...
    def result(self, states: States) -> pa.Array: ...


class NullIsNothing:
    """An aggregate whose state of no rows may be null."""

    __slots__ = ()

    @property
    def null_is_nothing(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class CountRows(NullIsNothing):
    """Rows, or values that are not null where a column is given."""

    column: str | None

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": pa.int64()}

    @property
    def result_type(self) -> pa.DataType:
        return pa.int64()

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        if self.column is None:
            return [pa.array(groups.sizes)]
        return [pa.array(reduce.count_valid(batch.column(self.column), groups))]

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return [reduce.sum_integers(states[0], groups)]

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class SumValues(NullIsNothing):
    """Sum as bigint, double or a decimal with ten digits more."""

    column: str
    result_type: pa.DataType

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": self.result_type}

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        return [_sum(batch.column(self.column), groups, self.result_type)]

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return [_sum(states[0], groups, self.result_type)]

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class ExtremeValue(NullIsNothing):
    """Smallest or largest value."""

    column: str
    result_type: pa.DataType
    largest: bool

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": self.result_type}

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        return self.combine([batch.column(self.column)], groups)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return [(reduce.largest if self.largest else reduce.smallest)(states[0], groups)]

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class EdgeValue:
    """First or last value in the order of arrival."""

    column: str
    result_type: pa.DataType
    last: bool
    ignore_nulls: bool

    @property
    def null_is_nothing(self) -> bool:
        return self.ignore_nulls

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"": self.result_type}

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        return self.combine([batch.column(self.column)], groups)

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        pick = reduce.last_values if self.last else reduce.first_values
        return [pick(states[0], groups, ignore_nulls=self.ignore_nulls)]

    def result(self, states: States) -> pa.Array:
        return states[0]


@dataclass(frozen=True, slots=True)
class MeanValue(NullIsNothing):
    """Mean as double; of decimals a decimal with four digits more behind the point, rounded half up."""

    column: str
    sum_type: pa.DataType
    result_type: pa.DataType

    @property
    def state_types(self) -> dict[str, pa.DataType]:
        return {"__sum": self.sum_type, "__count": pa.int64()}

    def partial(self, batch: pa.RecordBatch, groups: Groups) -> list[pa.Array]:
        values = batch.column(self.column)
        return [_sum(values, groups, self.sum_type), pa.array(reduce.count_valid(values, groups))]

    def combine(self, states: States, groups: Groups) -> list[pa.Array]:
        return [_sum(states[0], groups, self.sum_type), reduce.sum_integers(states[1], groups)]

    def result(self, states: States) -> pa.Array:
        total, count = states
        # Without values the sum is null, and null divided by anything is null.
        count = pc.max_element_wise(count, pa.scalar(1, pa.int64()))
        if not pt.is_decimal(self.result_type):
            return pc.divide(total, pc.cast(count, pa.float64()))
        wide = pc.cast(total, pa.decimal256(_DECIMAL_DIGITS_MAX, self.sum_type.scale))
        quotient = pc.divide(wide, pc.cast(count, _COUNT_TYPE))
        return reduce.narrowed(_rounded_half_up(quotient, self.result_type.scale), self.result_type)


def _rounded_half_up(array: pa.Array, scale: int) -> pa.Array:
    """A wide decimal with fewer digits behind the point."""
    half = pa.scalar(Decimal(5).scaleb(-scale - 1), pa.decimal256(scale + 1, scale + 1))
    away = pc.if_else(pc.less(array, pa.scalar(Decimal(0), half.type)), pc.negate(half), half)
    moved = pc.add(array, away)
    # Nine digits at a time: when 18 to 20 are dropped at once, cast and round of Arrow 19 were seen to give a last
    # digit that is one too small. Powers of ten below 32 bits were always right.
    while moved.type.scale > scale:
        fewer = max(scale, moved.type.scale - _DIGITS_OF_32_BITS)
        moved = pc.cast(moved, pa.decimal256(moved.type.precision, fewer), safe=False)
    return moved


def _sum(array: pa.Array, groups: Groups, kind: pa.DataType) -> pa.Array:
    if pt.is_decimal(kind):
        return reduce.sum_decimals(array, groups, kind)
    return reduce.sum_floats(array, groups) if pt.is_floating(kind) else reduce.sum_integers(array, groups)


def read_quickly(accumulator: Accumulator) -> tuple[str, ...] | None:
    """The columns that `partial` reads, if it takes only some dozens of nanoseconds per row; else None."""
    match accumulator:
        case CountRows(column=None):
            return ()
        case CountRows(column=str(column)):
            return (column,)
        case SumValues() | ExtremeValue() | EdgeValue() | MeanValue():
            return (accumulator.column,)
    return None


def sum_type(kind: pa.DataType) -> pa.DataType | None:
    """The type of a sum, None where there is none."""
    if pt.is_signed_integer(kind):
        return pa.int64()
    if pt.is_float32(kind) or pt.is_float64(kind):
        return pa.float64()
    if pt.is_decimal128(kind):
        return pa.decimal128(min(_DECIMAL_DIGITS_MAX, kind.precision + _SUM_DIGITS_MORE), kind.scale)
    return None


def mean_types(kind: pa.DataType) -> tuple[pa.DataType, pa.DataType] | None:
    """The types of the sum behind a mean and of the mean, None where there is none."""
    total = sum_type(kind)
    if total is None or not pt.is_decimal(total):
        return None if total is None else (pa.float64(), pa.float64())
    precision = min(_DECIMAL_DIGITS_MAX, kind.precision + _MEAN_DIGITS_MORE)
    return total, pa.decimal128(precision, min(_DECIMAL_DIGITS_MAX, kind.scale + _MEAN_DIGITS_MORE))
