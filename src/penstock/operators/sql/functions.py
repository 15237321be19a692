"""The functions and operators that SQL text behind operators may use, as Arrow expressions.

They follow Spark with ANSI mode: integers that overflow and divisions by zero fail, null in gives null out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.sql.numbers import (
    Value,
    alike,
    cast,
    divided,
    in_double,
    is_divided_as_decimal,
    rounded,
)
from penstock.operators.sql.tokens import SqlError

MOMENT = pa.timestamp("us", "UTC")


class Days(timedelta):
    """An interval of whole days: added to a date it gives a date."""


_OF_PATTERN = re.compile(r"\\.?|.", re.DOTALL)
_SPECIAL = re.compile(r"[\\.^$|?*+()\[\]{}]")
_Builder = Callable[..., pc.Expression]


def literal(value: object, kind: pa.DataType) -> Value:
    made = pc.scalar(pa.scalar(value, kind))
    # Arrow gives a bare number the narrowest type that holds it, and 1.5 times a bigint would be a float.
    return Value(made.cast(kind) if pt.is_integer(kind) or pt.is_floating(kind) else made, kind, value)


def arithmetic(symbol: str, left: Value, right: Value) -> pc.Expression:
    """Raises: `SqlError`."""
    if pt.is_date(left.kind) or pt.is_date(right.kind):
        return _with_date(symbol, left, right)
    if symbol == "/":
        if is_divided_as_decimal(left.kind, right.kind):
            return divided(left, right)
        return in_double(left) / in_double(right)
    # Decimals that Arrow multiplies keep their own scales.
    a, b = (left.made, right.made) if symbol == "*" and not _has_double(left, right) else alike(left, right)
    match symbol:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case _:
            if not (pt.is_integer(left.kind) and pt.is_integer(right.kind)):
                raise SqlError(f"{symbol} takes whole numbers, got {left.kind} and {right.kind}")
            return _whole_quotient(left, right) if symbol == "DIV" else _remainder(left, right)


def _whole_quotient(left: Value, right: Value) -> pc.Expression:
    return (left.made / right.made).cast(pa.int64())  # Arrow divides integers towards zero


def _remainder(left: Value, right: Value) -> pc.Expression:
    divisor = right.made
    if right.literal in (None, -1):
        # The smallest number divided by -1 would overflow. Nothing is left of it, as of a division by 1.
        minus, one = (pc.scalar(pa.scalar(number, right.kind)) for number in (-1, 1))
        divisor = pc.if_else(divisor == minus, one, divisor)
    return left.made - left.made / divisor * divisor


def _has_double(*values: Value) -> bool:
    return any(pt.is_floating(value.kind) for value in values)


def _with_date(symbol: str, left: Value, right: Value) -> pc.Expression:
    """Days between dates, and a date some days or a moment after another."""
    if symbol == "-" and pt.is_date(left.kind) and pt.is_date(right.kind):
        return (left.made - right.made).cast(pa.duration("us"))
    date, span = (left, right) if pt.is_date(left.kind) else (right, left)
    if symbol not in ("+", "-") or not pt.is_duration(span.kind) or (symbol == "-" and span is left):
        raise SqlError(f"{left.kind} {symbol} {right.kind} is not known; add an INTERVAL to a date")
    midnight = date.made.cast(MOMENT)
    moment = midnight + span.made if symbol == "+" else midnight - span.made
    return moment.cast(pa.date32()) if isinstance(span.literal, Days) else moment


def comparison(symbol: str, left: Value, right: Value) -> pc.Expression:
    """Text beside a date or a timestamp is read as one."""
    a, b = alike(_beside(left, right), _beside(right, left))
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
    """SQL's IN: null if no option is equal and some are null. Raises: `SqlError`."""
    if not options:
        raise SqlError("IN () has no values")
    return reduce(lambda a, b: a | b, (comparison("=", value, option) for option in options))


def like(made: pc.Expression, pattern: str) -> pc.Expression:
    """Raises: `SqlError` for an escape that Spark does not know."""
    parts = _OF_PATTERN.findall(pattern)
    if wrong := next((part for part in parts if part[0] == "\\" and part[1:] not in ("%", "_", "\\")), None):
        raise SqlError(f"a backslash in LIKE stands before %, _ or another one, found {wrong!r}")
    if "\\\\" not in parts:
        return pc.match_like(made, pattern)
    # Arrow takes both backslashes literally where it looks for a beginning or an end.
    regex = "".join({"%": ".*", "_": "."}.get(part) or _SPECIAL.sub(r"\\\g<0>", part[-1]) for part in parts)
    return pc.match_substring_regex(made, rf"(?s)\A{regex}\z")


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


def guarded(name: str, guard: pc.Expression, arguments: Sequence[Value]) -> list[Value]:
    """The arguments of a function that is only called where `guard` is true: elsewhere, nothing that it cannot take."""
    if name.lower() not in _MAY_FAIL or not arguments:
        return list(arguments)
    return [only_where(guard, arguments[0]), *arguments[1:]]


def only_where(guard: pc.Expression, value: Value) -> Value:
    """Null where `guard` is not true: what is computed of it cannot fail there."""
    return Value(pc.if_else(guard, value.made, pc.scalar(pa.scalar(None, value.kind))), value.kind)


def guard_of(name: str) -> Callable[[Sequence[Value]], pc.Expression | None] | None:
    """For a function that looks at an argument only where earlier ones ask for it: given those, where that is."""
    return _GUARDS.get(name.lower())


def _chosen(earlier: Sequence[Value]) -> pc.Expression | None:
    if len(earlier) not in (1, 2):
        return None
    condition = is_true(earlier[0].made)
    return condition if len(earlier) == 1 else ~condition


def _missing(earlier: Sequence[Value]) -> pc.Expression | None:
    return reduce(lambda a, b: a & b, (value.made.is_null() for value in earlier)) if earlier else None


def is_true(condition: pc.Expression) -> pc.Expression:
    return pc.coalesce(condition, pc.scalar(False))


def _alike(function: str, **options: Any) -> _Builder:
    return lambda *values: getattr(pc, function)(*alike(*values), **options)


def _plain(function: str, kind: pa.DataType | None = None, **options: Any) -> _Builder:
    def build(*arguments: Value) -> pc.Expression:
        made = getattr(pc, function)(*(value.made for value in arguments), **options)
        return made if kind is None else made.cast(kind)

    return build


def _double(function: str) -> _Builder:
    return lambda *arguments: getattr(pc, function)(*map(in_double, arguments))


def _logarithm(function: str) -> _Builder:
    """Null of numbers that are not above 0."""

    def build(value: Value) -> pc.Expression:
        made = in_double(value)
        return pc.if_else(made <= pc.scalar(0.0), pc.scalar(pa.scalar(None, pa.float64())), getattr(pc, function)(made))

    return build


def _whole(function: str) -> _Builder:
    """Of a whole number it is the number."""

    def build(value: Value) -> pc.Expression:
        return (value.made if pt.is_integer(value.kind) else getattr(pc, function)(value.made)).cast(pa.int64())

    return build


def _fixed(value: Value, what: str, kind: type) -> Any:
    if not isinstance(value.literal, kind) or isinstance(value.literal, bool):
        raise SqlError(f"{what} must be written out as {'text' if kind is str else 'a whole number'}")
    return value.literal


def _round(value: Value, digits: Value | None = None) -> pc.Expression:
    places = 0 if digits is None else _fixed(digits, "the digits of round()", int)
    return rounded(value.made, value.kind, places)


def _substring(text: Value, start: Value, length: Value | None = None) -> pc.Expression:
    first = _fixed(start, "the start of substring()", int)
    if first < 1:
        raise SqlError("substring() counts from 1")
    stop = None if length is None else first - 1 + max(0, _fixed(length, "the length of substring()", int))
    return pc.utf8_slice_codeunits(text.made, first - 1, stop)


def _replace(text: Value, old: Value, new: Value) -> pc.Expression:
    pattern, replacement = _fixed(old, "what replace() looks for", str), _fixed(new, "what replace() puts there", str)
    if not pattern:
        return text.made
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
    made = time.made.cast(MOMENT) if pt.is_date(time.kind) else time.made
    return pc.floor_temporal(made, unit=name)


def _modulo(left: Value, right: Value) -> pc.Expression:
    return arithmetic("%", left, right)


def _if(condition: Value, then: Value, otherwise: Value) -> pc.Expression:
    return pc.if_else(is_true(condition.made), *alike(then, otherwise))


_OF_SEVERAL_ROWS = ("sum", "count", "avg", "min", "max", "first", "last")
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
_MANY = 100
_MAY_FAIL = frozenset({"abs", "ceil", "ceiling", "floor", "round", "mod", "to_date"})
_GUARDS = {"if": _chosen, "coalesce": _missing, "ifnull": _missing, "nvl": _missing}
_INT = pa.int32()
FUNCTIONS: dict[str, tuple[int, int, _Builder]] = {
    "abs": (1, 1, _plain("abs_checked")),
    "ceil": (1, 1, _whole("ceil")),
    "ceiling": (1, 1, _whole("ceil")),
    "floor": (1, 1, _whole("floor")),
    "round": (1, 2, _round),
    "sqrt": (1, 1, _double("sqrt")),
    "exp": (1, 1, _double("exp")),
    "ln": (1, 1, _logarithm("ln")),
    "log10": (1, 1, _logarithm("log10")),
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
    "coalesce": (1, _MANY, _alike("coalesce")),
    "ifnull": (2, 2, _alike("coalesce")),
    "nvl": (2, 2, _alike("coalesce")),
    "nullif": (2, 2, _nullif),
    "if": (3, 3, _if),
    "greatest": (2, _MANY, _alike("max_element_wise")),
    "least": (2, _MANY, _alike("min_element_wise")),
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
