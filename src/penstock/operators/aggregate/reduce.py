"""One column reduced to one value per group, as Spark SQL defines it.

Nulls do not count; a group without any value gives null. Among floats NaN is the largest. Sums of integers and decimals
are exact: one that does not fit is an `Overflow`, never a wrapped number. Numpy reduces types that map to integers in
order; Arrow reduces strings, binaries and decimals.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from penstock.operators.grouping import Groups
from penstock.state.keys import Flags, Rows, normalise

Numbers: TypeAlias = npt.NDArray[Any]

_WIDE_DECIMAL_DIGITS = 76
_INT64_LIMIT = 1 << 63
_HALF_BITS = 32
_HALF_MASK = (1 << _HALF_BITS) - 1


class Overflow(ArithmeticError):
    """The value of a group does not fit into its type."""

    def __init__(self, group: int, kind: pa.DataType) -> None:
        super().__init__(f"the value does not fit into {kind}")
        self.group = group
        self.kind = kind


def count_valid(array: pa.Array, groups: Groups) -> Rows:
    if not array.null_count:
        return groups.sizes
    return np.bincount(groups.ids[_valid(array)], minlength=groups.count)


def sum_floats(array: pa.Array, groups: Groups) -> pa.Array:
    """Sums as double, added in the order of the rows."""
    totals = np.zeros(groups.count, np.float64)
    np.add.at(totals, groups.ids, as_doubles(_filled(array, 0)).to_numpy())
    return _with_nulls(totals, array, groups, pa.float64())


def as_doubles(array: pa.Array) -> pa.Array:
    """The nearest doubles. Arrow's safe cast would refuse a bigint beyond 2^53 that is no double."""
    return pc.cast(array, pa.float64(), safe=False)


def sum_integers(array: pa.Array, groups: Groups) -> pa.Array:
    """Sums as bigint. Raises: `Overflow`."""
    values = pc.cast(_filled(array, 0), pa.int64()).to_numpy()
    bound = max(-int(values.min(initial=0)), int(values.max(initial=0))) * len(values)
    totals = groups.totals(values) if bound < _INT64_LIMIT else _sum_exactly(values, groups)
    return _with_nulls(totals, array, groups, pa.int64())


def _sum_exactly(values: npt.NDArray[np.int64], groups: Groups) -> npt.NDArray[np.int64]:
    """Adds upper and lower halves separately. Neither overflows, and the carry shows whether the sum does."""
    upper, lower = groups.totals(values >> _HALF_BITS), groups.totals(values & _HALF_MASK)
    upper += lower >> _HALF_BITS
    half = 1 << (_HALF_BITS - 1)
    _refuse_overflow((upper < -half) | (upper >= half), pa.int64())
    return (upper << _HALF_BITS) | (lower & _HALF_MASK)


def sum_decimals(array: pa.Array, groups: Groups, kind: pa.DataType) -> pa.Array:
    """Sums as the decimal `kind`. Raises: `Overflow`."""
    wide = pc.cast(array, pa.decimal256(_WIDE_DECIMAL_DIGITS, kind.scale))
    return narrowed(_by_arrow(wide, groups, "sum"), kind)


def narrowed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A wide decimal as `kind`, which has the same scale. Raises: `Overflow`."""
    assert array.type.scale == kind.scale
    try:
        return pc.cast(array, kind)
    except pa.ArrowInvalid:
        limit = pa.scalar(10 ** (kind.precision - kind.scale), pa.decimal256(_WIDE_DECIMAL_DIGITS - kind.scale, 0))
        _refuse_overflow(pc.greater_equal(pc.abs(array), limit).fill_null(False).to_numpy(zero_copy_only=False), kind)
        raise


def smallest(array: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(array, groups, largest=False)


def largest(array: pa.Array, groups: Groups) -> pa.Array:
    return _extreme(array, groups, largest=True)


def has_order(kind: pa.DataType) -> bool:
    """Whether `smallest` and `largest` work on this type."""
    return _image_type(kind) is not None or pt.is_decimal(kind) or _is_bytes(kind)


def ordered_image(array: pa.Array) -> Numbers:
    """Integers in the order of the values, none of which may be null; equal values have equal ones."""
    assert not array.null_count
    image_type = _image_type(array.type)
    if image_type is None:
        ranks: Numbers = pc.rank(array, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
        return ranks
    if pt.is_floating(array.type):
        array = normalise(array)
    image: Numbers = _image(array, image_type).to_numpy(zero_copy_only=False).astype(np.int64)
    return image


def _extreme(array: pa.Array, groups: Groups, *, largest: bool) -> pa.Array:
    image_type = _image_type(array.type)
    if image_type is None:
        return _by_arrow(array, groups, "max" if largest else "min")
    limits = np.iinfo(image_type.to_pandas_dtype())
    worst = limits.min if largest else limits.max
    image = _filled(_image(array, image_type), worst).to_numpy()
    found = np.full(groups.count, worst, image.dtype)
    (np.maximum if largest else np.minimum).at(found, groups.ids, image)
    return _from_image(_with_nulls(found, array, groups, image_type), array.type)


def first_values(array: pa.Array, groups: Groups, *, ignore_nulls: bool) -> pa.Array:
    return _picked(array, groups, ignore_nulls=ignore_nulls, step=-1)


def last_values(array: pa.Array, groups: Groups, *, ignore_nulls: bool) -> pa.Array:
    return _picked(array, groups, ignore_nulls=ignore_nulls, step=1)


def _picked(array: pa.Array, groups: Groups, *, ignore_nulls: bool, step: int) -> pa.Array:
    """The last value of each group when going through the rows in the direction `step`."""
    rows, ids = np.arange(len(array)), groups.ids
    if ignore_nulls and array.null_count:
        valid = _valid(array)
        rows, ids = rows[valid], ids[valid]
    picked = np.full(groups.count, -1, np.int64)
    picked[ids[::step]] = rows[::step]  # of several assignments to one place the last one stays
    missing = picked < 0
    return array.take(pa.array(picked, mask=missing) if missing.any() else pa.array(picked))


def _valid(array: pa.Array) -> Flags:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _filled(array: pa.Array, value: int) -> pa.Array:
    return array.fill_null(pa.scalar(value).cast(array.type)) if array.null_count else array


def _with_nulls(values: Numbers, source: pa.Array, groups: Groups, kind: pa.DataType) -> pa.Array:
    """The result as Arrow, null for groups of which `source` holds nothing but nulls."""
    empty = count_valid(source, groups) == 0 if source.null_count else None
    return pa.array(values, kind, mask=empty, from_pandas=False)


def _refuse_overflow(overflown: Flags, kind: pa.DataType) -> None:
    if overflown.any():
        raise Overflow(int(np.argmax(overflown)), kind)


def _by_arrow(array: pa.Array, groups: Groups, function: str) -> pa.Array:
    """Reduced by Arrow; it gives the groups in the order of their first rows, so they are put in order again."""
    options = pc.ScalarAggregateOptions(skip_nulls=True, min_count=1)
    table = pa.table({"group": groups.ids, "value": array})
    reduced = table.group_by("group", use_threads=False).aggregate([("value", function, options)])
    assert reduced.num_rows == groups.count, "every group has at least one row"
    places = np.empty(groups.count, np.int64)
    places[reduced["group"].to_numpy()] = np.arange(groups.count)
    return reduced[f"value_{function}"].combine_chunks().take(pa.array(places))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind))


def _image_type(kind: pa.DataType) -> pa.DataType | None:
    """The integers that have the same order as `kind`."""
    if pt.is_integer(kind):
        return kind
    if pt.is_boolean(kind):
        return pa.int8()
    if pt.is_float32(kind) or pt.is_date32(kind) or pt.is_time32(kind):
        return pa.int32()
    if pt.is_float64(kind) or pt.is_temporal(kind):
        return pa.int64() if kind.bit_width == 64 else None
    return None


def _image(array: pa.Array, image_type: pa.DataType) -> pa.Array:
    if pt.is_boolean(array.type):
        return pc.cast(array, image_type)
    if not pt.is_floating(array.type):
        return array.view(image_type)
    holes = ~_valid(array) if array.null_count else None
    values = _filled(array, 0).to_numpy()
    one_nan = np.where(np.isnan(values), values.dtype.type(np.nan), values)
    return pa.array(_flip_negative(one_nan.view(image_type.to_pandas_dtype())), image_type, mask=holes)


def _from_image(image: pa.Array, kind: pa.DataType) -> pa.Array:
    if pt.is_boolean(kind):
        return pc.cast(image, kind)
    if not pt.is_floating(kind):
        return image.view(kind)
    holes = ~_valid(image) if image.null_count else None
    values = _flip_negative(_filled(image, 0).to_numpy()).view(kind.to_pandas_dtype())
    return pa.array(values, kind, mask=holes, from_pandas=False)


def _flip_negative(bits: Numbers) -> Numbers:
    """Maps the bits of floats to integers of the same order; its own inverse. NaN is above infinity."""
    return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
