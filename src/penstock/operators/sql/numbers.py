"""Numbers in SQL text: the types they meet in, casts, rounding and quotients of decimals, as in Spark's ANSI mode.

Arrow would compare and divide decimals of one precision by their digits alone, refuse large integers beside doubles,
and round the bits of a double where Spark rounds the number that people read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.sql.tokens import SqlError

_DIGITS_MAX, _WIDE_DIGITS_MAX = 38, 76
_SCALE_MIN = 6
"""The digits behind the point that a quotient of decimals keeps, whatever its size."""
_DIGITS_OF = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}
_EXACT = float(1 << 52)
"""Doubles from here on have no digits behind the point."""
_PLACES_MAX = 300
_DAY_ONLY = r"^\s*\d{4}-\d{2}-\d{2}\s*$"
_WITH_ZONE = r":\d{2}(\.\d*)?(Z|[+-]\d{2}(:?\d{2})?)$"


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with its type; `literal` if it is one."""

    made: pc.Expression
    kind: pa.DataType
    literal: Any = None


def alike(*values: Value) -> list[pc.Expression]:
    """Numbers of several types in the type they meet in; anything else as it is.

    Beside a floating number every other number becomes a double, rounded to it where it is large. Decimals get the
    digits of each other.
    """
    kinds = {value.kind for value in values if _is_number(value.kind)}
    if len(kinds) < 2:
        return [value.made for value in values]
    if any(pt.is_floating(kind) for kind in kinds):
        return [in_double(value) if _is_number(value.kind) else value.made for value in values]
    if any(pt.is_decimal(kind) for kind in kinds):
        common = _common_decimal([_as_decimal(value) for value in values if _is_number(value.kind)])
        return [_in_decimal(value, common) if _is_number(value.kind) else value.made for value in values]
    return [value.made for value in values]


def in_double(value: Value) -> pc.Expression:
    return value.made if pt.is_float64(value.kind) else value.made.cast(pa.float64(), safe=False)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


# -- decimals ----------------------------------------------------------------------------------------------------


def is_divided_as_decimal(left: pa.DataType, right: pa.DataType) -> bool:
    if pt.is_floating(left) or pt.is_floating(right):
        return False
    return bool(pt.is_decimal(left) or pt.is_decimal(right))


def divided(left: Value, right: Value) -> pc.Expression:
    """A quotient of which one part is a decimal, rounded half up, in Spark's type.

    Arrow gives the difference of both scales to a quotient: 5.00 / 2.00 would be 2.
    """
    a, b = _as_decimal(left), _as_decimal(right)
    before = a.precision - a.scale + b.scale
    scale = max(_SCALE_MIN, a.scale + b.precision + 1)
    if before + scale > _DIGITS_MAX:
        scale = max(_DIGITS_MAX - before, min(scale, _SCALE_MIN))
    # One digit more than is kept decides about rounding.
    wide = pa.decimal256(min(_WIDE_DIGITS_MAX, before + scale + 1 + b.scale), scale + 1 + b.scale)
    quotient = _in_decimal(left, wide) / _in_decimal(right, pa.decimal256(b.precision, b.scale))
    kind = pa.decimal128(min(_DIGITS_MAX, before + scale), scale)
    return pc.round(quotient, scale, "half_towards_infinity").cast(kind)


def _as_decimal(value: Value) -> pa.DataType:
    """The decimal that holds a decimal or a whole number; of a literal just its digits."""
    if pt.is_decimal(value.kind):
        return value.kind
    if pt.is_null(value.kind):
        return pa.decimal128(1, 0)
    if isinstance(value.literal, int):
        return pa.decimal128(len(str(abs(value.literal))), 0)
    if value.kind not in _DIGITS_OF:
        raise SqlError(f"{value.kind} beside a decimal is not known")
    return pa.decimal128(_DIGITS_OF[value.kind], 0)


def _common_decimal(kinds: list[pa.DataType]) -> pa.DataType:
    scale = max(kind.scale for kind in kinds)
    digits = max(kind.precision - kind.scale for kind in kinds) + scale
    return pa.decimal128(digits, scale) if digits <= _DIGITS_MAX else pa.decimal256(digits, scale)


def _in_decimal(value: Value, kind: pa.DataType) -> pc.Expression:
    if value.kind == kind:
        return value.made
    if pt.is_integer(value.kind):
        # Arrow wants room for every number of the type, whatever is there.
        return value.made.cast(pa.decimal256(_WIDE_DIGITS_MAX, kind.scale)).cast(kind)
    return value.made.cast(kind)


# -- rounding ----------------------------------------------------------------------------------------------------


def rounded(made: pc.Expression, kind: pa.DataType, places: int) -> pc.Expression:
    """Rounded half up. Of a double, the number with the fewest digits that stands for it is rounded, as it is printed:
    1.005 becomes 1.01, although its bits are a little less. Of a float, its bits count: 2.675 becomes 2.67."""
    if not pt.is_floating(kind):
        return pc.round(made, places, "half_towards_infinity")
    places = max(-_PLACES_MAX, min(_PLACES_MAX, places))
    power = pc.scalar(10.0 ** abs(places))
    double = pc.abs(made.cast(pa.float64()))
    units = double * power if places > 0 else double / power
    below = pc.floor(units)
    middle = _in_units(below + pc.scalar(0.5), power, places)
    size = pc.abs(made)
    up = double >= middle
    nearest = _in_units(pc.if_else(up, below + pc.scalar(1.0), below), power, places)
    signed = pc.if_else(made < pc.scalar(pa.scalar(0.0, kind)), pc.negate(nearest), nearest)
    # A long number that has no more digits stays as it is: a product of 16 digits may be one off.
    same = _in_units(pc.round(units), power, places).cast(kind, safe=False) == size
    return pc.if_else(same | (units >= pc.scalar(_EXACT)), made, signed.cast(kind, safe=False))


def _in_units(units: pc.Expression, power: pc.Expression, places: int) -> pc.Expression:
    return units / power if places > 0 else units * power


# -- casts -------------------------------------------------------------------------------------------------------


def cast(value: Value, kind: pa.DataType) -> pc.Expression:
    """Raises: `SqlError` where Arrow's text or numbers differ from Spark's."""
    source, made = value.kind, value.made
    temporal, number = pt.is_temporal(source), _is_number(source)
    if (
        (temporal and not pt.is_temporal(kind))
        or (number and pt.is_temporal(kind))
        or (pt.is_string(kind) and (pt.is_floating(source) or (pt.is_decimal(source) and source.scale > _SCALE_MIN)))
    ):
        raise SqlError(f"CAST of {source} as {kind} is not known")
    if pt.is_string(source):
        return _of_text(made, kind)
    if pt.is_integer(kind) and (pt.is_floating(source) or pt.is_decimal(source)):
        return pc.trunc(made).cast(kind)
    if pt.is_floating(kind) and number:
        return made.cast(kind, safe=False)
    if pt.is_decimal(kind) and pt.is_floating(source):
        return rounded(made, source, kind.scale).cast(kind)
    if pt.is_decimal(kind) and pt.is_decimal(source):
        return (pc.round(made, kind.scale, "half_towards_infinity") if kind.scale < source.scale else made).cast(kind)
    if pt.is_decimal(kind) and pt.is_integer(source):
        return made.cast(pa.decimal128(_DIGITS_MAX, kind.scale)).cast(kind)
    return made.cast(kind)


def _of_text(text: pc.Expression, kind: pa.DataType) -> pc.Expression:
    """Spaces around numbers and times do not matter; a time without a zone is in UTC, as in our Spark jobs."""
    if pt.is_integer(kind):
        # Arrow knows no plus, and reads numbers to the base of 16.
        plain = pc.replace_substring_regex(pc.utf8_trim_whitespace(text), pattern=r"^\+(\d+)$", replacement=r"\1")
        plain = pc.replace_substring_regex(plain, pattern="[xX]", replacement="no number: x")
        return plain.cast(kind)
    if pt.is_decimal(kind):
        fine = pc.utf8_trim_whitespace(text).cast(pa.decimal256(_WIDE_DIGITS_MAX, _DIGITS_MAX))
        return pc.round(fine, kind.scale, "half_towards_infinity").cast(kind)
    if pt.is_floating(kind) or pt.is_boolean(kind) or pt.is_date(kind):
        return pc.utf8_trim_whitespace(text).cast(kind)
    if pt.is_timestamp(kind) and kind.tz is not None:
        plain = pc.utf8_trim_whitespace(text)
        day, zone = pc.match_substring_regex(plain, _DAY_ONLY), pc.match_substring_regex(plain, _WITH_ZONE)
        whole = pc.binary_join_element_wise(plain, pc.scalar(" 00:00"), pc.scalar(""))
        plain = pc.if_else(day, whole, plain)
        return pc.if_else(zone, plain, pc.binary_join_element_wise(plain, pc.scalar("Z"), pc.scalar(""))).cast(kind)
    return text.cast(kind)
