"""The functions and operators that SQL text behind operators may use, as Arrow expressions.

They follow Spark with ANSI mode: integers that overflow and divisions by zero fail, null in gives null out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.sql.tokens import SqlError


@dataclass(frozen=True, slots=True)
class Value:
    """An expression with its type; `literal` if it is one."""

    made: pc.Expression
    kind: pa.DataType
    literal: Any = None


_Builder = Callable[..., pc.Expression]


def literal(value: object, kind: pa.DataType) -> Value:
    made = pc.scalar(pa.scalar(value, kind))
    # Arrow gives a bare number the narrowest type that holds it, and 1.5 times a bigint would be a float.
    return Value(made.cast(kind) if pt.is_integer(kind) or pt.is_floating(kind) else made, kind, value)


def arithmetic(symbol: str, left: Value, right: Value) -> pc.Expression:
    """Raises: `SqlError`."""
    a, b = left.made, right.made
    match symbol:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            if pt.is_decimal(left.kind) or pt.is_decimal(right.kind):
                return a / b
            return a.cast(pa.float64()) / b.cast(pa.float64())
        case _:
            if not (pt.is_integer(left.kind) and pt.is_integer(right.kind)):
                raise SqlError(f"{symbol} takes whole numbers, got {left.kind} and {right.kind}")
            whole = a / b  # Arrow divides integers towards zero
            return whole.cast(pa.int64()) if symbol == "DIV" else a - whole * b


def comparison(symbol: str, left: Value, right: Value) -> pc.Expression:
    """Text beside a date or a timestamp is read as one."""
    a, b = _beside(left, right).made, _beside(right, left).made
    match symbol:
        case "=" | "==":
            return a == b
        case "<>" | "!=":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case _:
            return (a.is_null() & b.is_null()) | pc.coalesce(a == b, pc.scalar(False))


def one_of(value: Value, options: Sequence[Value]) -> pc.Expression:
    """SQL's IN: null if no option is equal and some are null."""
    return reduce(lambda a, b: a | b, (comparison("=", value, option) for option in options))


def _beside(value: Value, other: Value) -> Value:
    if isinstance(value.literal, str) and pt.is_temporal(other.kind):
        return literal_of_time(value.literal, other.kind)
    return value


def literal_of_time(text: str, kind: pa.DataType) -> Value:
    """Raises: `SqlError`."""
    try:
        moment = pa.scalar(text)
        if pt.is_timestamp(kind) and kind.tz is not None:
            # Without a zone it is UTC, the time zone of our Spark jobs.
            plain = pa.timestamp("us")
            try:
                return Value(pc.scalar(moment.cast(plain).cast(kind)), kind)
            except pa.ArrowInvalid:
                pass
        return Value(pc.scalar(moment.cast(kind)), kind)
    except pa.ArrowException:
        raise SqlError(f"{text!r} is no {kind}") from None


def cast(value: Value, kind: pa.DataType) -> pc.Expression:
    """Raises: `SqlError` where Arrow's text or numbers differ from Spark's."""
    source = value.kind
    temporal, number = pt.is_temporal(source), pt.is_integer(source) or pt.is_floating(source) or pt.is_decimal(source)
    if (
        (temporal and not pt.is_temporal(kind))
        or (number and pt.is_temporal(kind))
        or (pt.is_string(kind) and pt.is_floating(source))
    ):
        raise SqlError(f"CAST of {source} as {kind} is not known")
    if pt.is_floating(source) and pt.is_integer(kind):
        return pc.trunc(value.made).cast(kind)
    if pt.is_integer(source) and pt.is_decimal(kind):
        return value.made.cast(pa.decimal128(38, kind.scale)).cast(kind)
    return value.made.cast(kind)


def called(name: str, arguments: Sequence[Value]) -> pc.Expression:
    """A function by its name. Raises: `SqlError`."""
    known = FUNCTIONS.get(name.lower())
    if known is None:
        close = get_close_matches(name.lower(), FUNCTIONS, 1, 0.75)
        hint = f"did you mean {close[0]}()?" if close else f"known are {', '.join(sorted(FUNCTIONS))}"
        if name.lower() in _OF_SEVERAL_ROWS:
            hint = f"it is about several rows: write key_by(…).aggregate(…) with pen.{name.lower()}"
        raise SqlError(f"the function {name}() is not known behind an operator; {hint}")
    least, most, build = known
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}" if most < _MANY else f"at least {least}"
        raise SqlError(f"{name}() takes {wanted} arguments, got {len(arguments)}")
    return build(*arguments)


def _plain(function: str, kind: pa.DataType | None = None, **options: Any) -> _Builder:
    def build(*arguments: Value) -> pc.Expression:
        made = getattr(pc, function)(*(value.made for value in arguments), **options)
        return made if kind is None else made.cast(kind)

    return build


def _double(function: str) -> _Builder:
    return lambda *arguments: getattr(pc, function)(*(value.made.cast(pa.float64()) for value in arguments))


def _whole(function: str) -> _Builder:
    """Of a whole number it is the number."""

    def build(value: Value) -> pc.Expression:
        return value.made if pt.is_integer(value.kind) else getattr(pc, function)(value.made).cast(pa.int64())

    return build


def _fixed(value: Value, what: str, kind: type) -> Any:
    if not isinstance(value.literal, kind) or isinstance(value.literal, bool):
        raise SqlError(f"{what} must be written out as {'text' if kind is str else 'a whole number'}")
    return value.literal


def _round(value: Value, digits: Value | None = None) -> pc.Expression:
    places = 0 if digits is None else _fixed(digits, "the digits of round()", int)
    return pc.round(value.made, places, "half_towards_infinity")


def _substring(text: Value, start: Value, length: Value | None = None) -> pc.Expression:
    first = _fixed(start, "the start of substring()", int)
    if first < 1:
        raise SqlError("substring() counts from 1")
    stop = None if length is None else first - 1 + max(0, _fixed(length, "the length of substring()", int))
    return pc.utf8_slice_codeunits(text.made, first - 1, stop)


def _replace(text: Value, old: Value, new: Value) -> pc.Expression:
    pattern, replacement = _fixed(old, "what replace() looks for", str), _fixed(new, "what replace() puts there", str)
    return pc.replace_substring(text.made, pattern=pattern, replacement=replacement)


def _matching(function: str) -> _Builder:
    return lambda text, part: getattr(pc, function)(text.made, pattern=_fixed(part, "the text to look for", str))


def _concat(*parts: Value) -> pc.Expression:
    every = [part.made if pt.is_string(part.kind) else cast(part, pa.string()) for part in parts]
    return pc.binary_join_element_wise(*every, pc.scalar(""))


def _nullif(value: Value, other: Value) -> pc.Expression:
    same = pc.coalesce(comparison("=", value, other), pc.scalar(False))
    return pc.if_else(same, pc.scalar(pa.scalar(None, value.kind)), value.made)


def _date_trunc(unit: Value, time: Value) -> pc.Expression:
    name = _fixed(unit, "the unit of date_trunc()", str).lower()
    if name not in _UNITS:
        raise SqlError(f"date_trunc() knows {', '.join(_UNITS)}; got {name!r}")
    return pc.floor_temporal(time.made, unit=name)


def _modulo(left: Value, right: Value) -> pc.Expression:
    return arithmetic("%", left, right)


def _if(condition: Value, then: Value, otherwise: Value) -> pc.Expression:
    return pc.if_else(pc.coalesce(condition.made, pc.scalar(False)), then.made, otherwise.made)


_OF_SEVERAL_ROWS = ("sum", "count", "avg", "min", "max", "first", "last")
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
_MANY = 100
_INT = pa.int32()
FUNCTIONS: dict[str, tuple[int, int, _Builder]] = {
    "abs": (1, 1, _plain("abs_checked")),
    "ceil": (1, 1, _whole("ceil")),
    "ceiling": (1, 1, _whole("ceil")),
    "floor": (1, 1, _whole("floor")),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _double("sqrt")),
    "exp": (1, 1, _double("exp")),
    "ln": (1, 1, _double("ln")),
    "log10": (1, 1, _double("log10")),
    "power": (2, 2, _double("power")),
    "pow": (2, 2, _double("power")),
    "sign": (1, 1, _double("sign")),
    "mod": (2, 2, _modulo),
    "lower": (1, 1, _plain("utf8_lower")),
    "upper": (1, 1, _plain("utf8_upper")),
    "length": (1, 1, _plain("utf8_length")),
    "char_length": (1, 1, _plain("utf8_length")),
    "reverse": (1, 1, _plain("utf8_reverse")),
    "trim": (1, 1, _plain("utf8_trim", characters=" ")),
    "ltrim": (1, 1, _plain("utf8_ltrim", characters=" ")),
    "rtrim": (1, 1, _plain("utf8_rtrim", characters=" ")),
    "substring": (2, 3, _substring),
    "substr": (2, 3, _substring),
    "replace": (3, 3, _replace),
    "concat": (1, _MANY, _concat),
    "contains": (2, 2, _matching("match_substring")),
    "startswith": (2, 2, _matching("starts_with")),
    "endswith": (2, 2, _matching("ends_with")),
    "coalesce": (1, _MANY, _plain("coalesce")),
    "ifnull": (2, 2, _plain("coalesce")),
    "nvl": (2, 2, _plain("coalesce")),
    "nullif": (2, 2, _nullif),
    "if": (3, 3, _if),
    "greatest": (2, _MANY, _plain("max_element_wise")),
    "least": (2, _MANY, _plain("min_element_wise")),
    "isnull": (1, 1, _plain("is_null")),
    "isnotnull": (1, 1, _plain("is_valid")),
    "isnan": (1, 1, lambda value: pc.coalesce(pc.is_nan(value.made), pc.scalar(False))),
    "year": (1, 1, _plain("year", _INT)),
    "quarter": (1, 1, _plain("quarter", _INT)),
    "month": (1, 1, _plain("month", _INT)),
    "day": (1, 1, _plain("day", _INT)),
    "dayofmonth": (1, 1, _plain("day", _INT)),
    "dayofyear": (1, 1, _plain("day_of_year", _INT)),
    "hour": (1, 1, _plain("hour", _INT)),
    "minute": (1, 1, _plain("minute", _INT)),
    "second": (1, 1, _plain("second", _INT)),
    "to_date": (1, 1, lambda value: cast(value, pa.date32())),
    "date_trunc": (2, 2, _date_trunc),
    "size": (1, 1, _plain("list_value_length", _INT)),
}
