"""Refuses conversions in which pyarrow would silently lose something: Python values to a column, and casts.

Pyarrow cuts decimals and floats to integers and times to dates, drops unknown fields of structs, takes a string for a
list of characters, makes infinity of a large double. The checks go by the Python types in a column, which are few; only
values of a type that may lose something are checked one by one. Rounding to float or double is no loss here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from functools import lru_cache, partial
from itertools import chain
from numbers import Integral, Number
from types import NoneType
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Check: TypeAlias = Callable[[Sequence[Any]], None]
NO_LISTS = (str, bytes, bytearray, memoryview, Mapping)
"""Types that pyarrow or Python would split into the items of a list."""
_FLOAT_MAX = float(np.finfo(np.float32).max)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_FIRST_DAY, _LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))


# -- Python values -----------------------------------------------------------------------------------------------------


def check_values(values: Sequence[Any], kind: pa.DataType) -> None:
    """Raises: `pa.ArrowInvalid` if a column of this type would lose a part of the values."""
    check = _check_of(kind)
    if check is not None:
        check(values)


@lru_cache(maxsize=256)
def _check_of(kind: pa.DataType) -> Check | None:
    """The check for a type; None if pyarrow's own checks suffice."""
    if pt.is_map(kind):
        return partial(_check_maps, kind, _check_of(kind.key_type), _check_of(kind.item_type))
    if pt.is_struct(kind):
        return partial(_check_structs, kind, {part.name: _check_of(part.type) for part in kind})
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return partial(_check_lists, kind, _check_of(kind.value_type))
    if pt.is_float32(kind):
        return partial(_check_floats, kind)
    if pt.is_date(kind):
        return partial(_check_dates, kind)
    if pt.is_timestamp(kind):
        return partial(_check_moments, kind)
    return partial(_check_whole, kind) if pt.is_integer(kind) else None


def _check_whole(kind: pa.DataType, values: Iterable[Any]) -> None:
    for found in set(map(type, values)):
        if issubclass(found, Number) and not issubclass(found, Integral):
            raise pa.ArrowInvalid(f"got a {found.__name__} for {kind}")


def _check_floats(kind: pa.DataType, values: Sequence[Any]) -> None:
    wide = np.abs(pa.array(values, pa.float64()).to_numpy(zero_copy_only=False))
    if ((wide > _FLOAT_MAX) & (wide < np.inf)).any():
        raise pa.ArrowInvalid(f"a number is too large for {kind}")


def _check_dates(kind: pa.DataType, values: Sequence[Any]) -> None:
    if set(map(type, values)) <= {date, NoneType}:
        return
    _check_whole(kind, values)
    for value in values:
        if isinstance(value, int | np.integer) and not _FIRST_DAY <= value <= _LAST_DAY:
            raise pa.ArrowInvalid(f"{value} days since 1970 are no date that Python can hold")
        if isinstance(value, datetime) and value.time() != time.min:
            raise pa.ArrowInvalid(f"got a time of day, {value}, for {kind}")


def _check_moments(kind: pa.DataType, values: Sequence[Any]) -> None:
    tick = max(1, 1_000_000 // _PER_SECOND[kind.unit])  # in microseconds
    if tick == 1 and set(map(type, values)) <= {datetime, NoneType}:
        return
    _check_whole(kind, values)
    for value in values:
        if (
            isinstance(value, int | np.integer)
            and not _FIRST_DAY <= value // (86_400 * _PER_SECOND[kind.unit]) <= _LAST_DAY
        ):
            raise pa.ArrowInvalid(f"{value} since 1970 is no {kind} that Python can hold")
        finer = getattr(value, "nanosecond", 0) if kind.unit != "ns" else 0  # of pandas
        if isinstance(value, datetime) and (value.microsecond % tick or finer):
            raise pa.ArrowInvalid(f"{value} is too fine for {kind}")


def _check_lists(kind: pa.DataType, check: Check | None, values: Sequence[Any]) -> None:
    for found in set(map(type, values)):
        if issubclass(found, NO_LISTS):
            raise pa.ArrowInvalid(f"got a {found.__name__} for {kind}")
    if check is not None:
        check(list(chain.from_iterable(value for value in values if value is not None)))


def _check_structs(kind: pa.DataType, checks: Mapping[str, Check | None], values: Sequence[Any]) -> None:
    parts = [_as_struct(value, checks) for value in values if value is not None]
    for part in parts:
        if unknown := part.keys() - checks.keys():
            raise pa.ArrowInvalid(f"got the unknown fields {sorted(map(str, unknown))} for {kind}")
    for name, check in checks.items():
        if check is not None:
            check([part.get(name) for part in parts])


def _as_struct(value: Any, names: Iterable[str]) -> Mapping[Any, Any]:
    """A struct may be given as a mapping, as a tuple of all its fields, or as pairs."""
    if isinstance(value, Mapping):
        return value
    return dict(zip(names, value, strict=True)) if isinstance(value, tuple) else dict(value)


def _check_maps(kind: pa.DataType, key_check: Check | None, item_check: Check | None, values: Sequence[Any]) -> None:
    keys: list[Any] = []
    items: list[Any] = []
    for value in values:
        if isinstance(value, Mapping):
            keys.extend(value)
            items.extend(value.values())
        elif value is not None:
            pairs = _checked_pairs(value, kind)
            keys += [key for key, _ in pairs]
            items += [item for _, item in pairs]
    if None in keys:  # pyarrow would end the process on it
        raise pa.ArrowInvalid(f"got a null key for {kind}")
    if key_check is not None:
        key_check(keys)
    if item_check is not None:
        item_check(items)


def _checked_pairs(value: Any, kind: pa.DataType) -> list[tuple[Any, Any]]:
    pairs = list(value)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise pa.ArrowInvalid(f"got {value!r:.100} for {kind}: wanted a dict, or pairs")
    if not pt.is_nested(kind.key_type) and len({key for key, _ in pairs}) < len(pairs):
        raise pa.ArrowInvalid(f"got a key twice for {kind}")
    return pairs


# -- columns -----------------------------------------------------------------------------------------------------------


def cast_column(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column as this type. Raises: `pa.ArrowException` where a part of it would be lost."""
    if array.type == kind:
        return array
    cast = array.cast(kind, safe=True)
    _check_cast(array, cast)
    return cast


def _check_cast(old: pa.Array, new: pa.Array) -> None:
    given, kind = old.type, new.type
    if given == kind:
        return
    if pt.is_dictionary(given):
        _check_cast(old.dictionary_decode(), new)
    elif pt.is_struct(given) and pt.is_struct(kind):
        if unknown := {part.name for part in given} - {part.name for part in kind}:
            raise pa.ArrowInvalid(f"the fields {sorted(unknown)} are not declared")
        parts = {part.name: column for part, column in zip(kind, new.flatten(), strict=True)}
        for part, column in zip(given, old.flatten(), strict=True):
            _check_cast(column, parts[part.name])
    elif pt.is_map(given) and pt.is_map(kind):
        for before, after in zip(_keys_and_items(old), _keys_and_items(new), strict=True):
            _check_cast(before, after)
    elif pt.is_nested(given) and pt.is_nested(kind):
        if hasattr(given, "value_type") and hasattr(kind, "value_type"):
            _check_cast(old.flatten(), new.flatten())
    elif pc.any(_lost(old, new)).as_py():
        example = old.filter(_lost(old, new))[0].as_py()
        raise pa.ArrowInvalid(f"{kind} cannot hold {example}")


def _keys_and_items(maps: pa.Array) -> tuple[pa.Array, pa.Array]:
    whole = maps.take(pa.array(np.arange(len(maps))))  # of a slice, keys and items are those of all
    return whole.keys, whole.items


def _lost(old: pa.Array, new: pa.Array) -> pa.Array:
    """Where a cast changed a value of a type that is not nested."""
    given, kind = old.type, new.type
    if pt.is_floating(kind):
        return pc.and_(pc.is_inf(new.cast(pa.float64())), pc.is_finite(old.cast(pa.float64())))
    number = pt.is_integer(given) or pt.is_floating(given)
    if (pt.is_boolean(kind) and number) or (pt.is_decimal(kind) and pt.is_floating(given)):
        return pc.not_equal(new.cast(given), old)
    if pt.is_date(kind) and pt.is_timestamp(given):
        local = old if given.tz is None else pc.local_timestamp(old)
        return pc.not_equal(new.cast(local.type), local)
    if pt.is_time(kind) and pt.is_timestamp(given):
        return old.is_valid()
    return pa.array(np.zeros(len(old), np.bool_))
