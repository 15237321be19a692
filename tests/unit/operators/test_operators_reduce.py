"""Sums, extremes and edges per group, as Spark SQL defines them (D2)."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.operators.aggregate import reduce
from penstock.operators.aggregate.accumulators import MeanValue, SumValues, mean_types, sum_type
from penstock.operators.grouping import Groups, Numbered
from tests.support.operator_harness import plain

LONG = st.integers(-(2**63), 2**63 - 1)
UTC = dt.UTC


def groups_of(ids: list[int]) -> Groups:
    return Numbered(np.array(ids, np.int64), max(ids) + 1)


@settings(deadline=None)
@given(values=st.lists(st.tuples(st.integers(0, 2), LONG), min_size=1))
@example(values=[(0, 2**63 - 1), (0, 1), (0, -1)])
@example(values=[(0, -(2**63))])
@example(values=[(0, 2**62), (0, 2**62)])
def test_a_sum_of_integers_is_exact_or_an_overflow(values: list[tuple[int, int]]) -> None:
    present = sorted({group for group, _ in values})
    wanted = [sum(value for group, value in values if group == wanted) for wanted in present]
    groups = groups_of([present.index(group) for group, _ in values])
    array = pa.array([value for _, value in values], pa.int64())
    too_large = [not -(2**63) <= total < 2**63 for total in wanted]
    if any(too_large):
        with pytest.raises(reduce.Overflow) as caught:
            reduce.sum_integers(array, groups)
        assert too_large[caught.value.group]
    else:
        assert reduce.sum_integers(array, groups).to_pylist() == wanted


def test_small_integers_are_summed_as_bigint() -> None:
    assert reduce.sum_integers(pa.array([127, 127], pa.int8()), groups_of([0, 0])).to_pylist() == [254]


def test_nulls_do_not_count_and_a_group_of_nulls_has_no_sum() -> None:
    array = pa.array([1, None, None, 2], pa.int64())
    groups = groups_of([0, 0, 1, 0])
    assert reduce.sum_integers(array, groups).to_pylist() == [3, None]
    assert reduce.sum_floats(array.cast(pa.float32()), groups).to_pylist() == [3.0, None]
    assert reduce.count_valid(array, groups).tolist() == [2, 0]
    assert groups.sizes.tolist() == [3, 1]


def test_a_sum_of_decimals_has_ten_digits_more() -> None:
    kind = sum_type(pa.decimal128(5, 2))
    assert kind == pa.decimal128(15, 2)
    array = pa.array([Decimal("999.99"), Decimal("999.99"), None], pa.decimal128(5, 2))
    assert reduce.sum_decimals(array, groups_of([1, 1, 0]), kind).to_pylist() == [None, Decimal("1999.98")]


def test_a_sum_of_decimals_that_needs_more_than_38_digits_is_an_overflow() -> None:
    kind = pa.decimal128(38, 0)
    array = pa.array([Decimal(1), Decimal("9" * 38), Decimal("9" * 38)], kind)
    with pytest.raises(reduce.Overflow) as caught:
        reduce.sum_decimals(array, groups_of([0, 1, 1]), kind)
    assert caught.value.group == 1


def test_an_overflow_of_decimals_with_a_fraction_names_its_group() -> None:
    kind = pa.decimal128(38, 37)
    array = pa.array([Decimal("9.5"), Decimal("1.5"), Decimal("-9.5"), Decimal("-9.5")], kind)
    with pytest.raises(reduce.Overflow) as caught:
        reduce.sum_decimals(array, groups_of([0, 1, 2, 2]), kind)
    assert caught.value.group == 2


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([3, 1, None, 2], pa.int16()),
        ([-3, 1, None, 2**63 - 1, -(2**63)], pa.int64()),
        ([b"b", b"", None, b"\xff", b"a"], pa.binary()),
        (["b", "", None, "é", "a", "Z"], pa.string()),
        (["b", None, "a"], pa.large_string()),
        ([True, None, False], pa.bool_()),
        ([Decimal("1.5"), None, Decimal("-2.5")], pa.decimal128(4, 1)),
        ([dt.date(1969, 1, 1), None, dt.date(2026, 1, 1)], pa.date32()),
        ([dt.datetime(1969, 1, 1, tzinfo=UTC), None, dt.datetime(2026, 1, 1, tzinfo=UTC)],
         pa.timestamp("us", "UTC")),
    ],
)  # fmt: skip
def test_smallest_and_largest_ignore_nulls_for_every_type_with_an_order(values: list[Any], kind: pa.DataType) -> None:
    assert reduce.has_order(kind)
    array = pa.array([*values, None], kind)
    groups = groups_of([1] * len(values) + [0])
    present = sorted(value for value in values if value is not None)
    assert reduce.smallest(array, groups).to_pylist() == [None, present[0]]
    assert reduce.largest(array, groups).to_pylist() == [None, present[-1]]
    assert reduce.smallest(array, groups).type == kind


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@settings(deadline=None)
@given(values=st.lists(st.none() | st.floats(width=32), min_size=1))
@example(values=[math.nan, -math.inf, 1.0])
@example(values=[-math.nan, None])
def test_nan_is_the_largest_float(kind: pa.DataType, values: list[float | None]) -> None:
    array, groups = pa.array(values, kind), groups_of([0] * len(values))
    present = sorted((value for value in values if value is not None), key=lambda x: (math.isnan(x), x))
    wanted = (present[0], present[-1]) if present else (None, None)
    got = (reduce.smallest(array, groups)[0].as_py(), reduce.largest(array, groups)[0].as_py())
    assert tuple(map(plain, got)) == tuple(map(plain, wanted))


def test_the_first_and_last_value_may_be_null_unless_nulls_are_ignored() -> None:
    array = pa.array([None, {"a": 1}, {"a": 2}, None, None], pa.struct([("a", pa.int64())]))
    groups = groups_of([0, 0, 0, 0, 1])
    assert reduce.first_values(array, groups, ignore_nulls=False).to_pylist() == [None, None]
    assert reduce.last_values(array, groups, ignore_nulls=False).to_pylist() == [None, None]
    assert reduce.first_values(array, groups, ignore_nulls=True).to_pylist() == [{"a": 1}, None]
    assert reduce.last_values(array, groups, ignore_nulls=True).to_pylist() == [{"a": 2}, None]


@pytest.mark.parametrize(("precision", "scale"), [(5, 2), (18, 0), (38, 0), (38, 18), (38, 34), (38, 38)])
@settings(deadline=None)
@given(data=st.data())
def test_a_mean_of_decimals_is_exact_to_four_digits_more_rounded_half_up(
    data: st.DataObject, precision: int, scale: int
) -> None:
    """As Spark's decimal(p + 4, s + 4), within 38 digits."""
    limit = 10**precision // 100
    unscaled = data.draw(st.lists(st.integers(-limit, limit), min_size=1, max_size=8))
    kind, types = pa.decimal128(precision, scale), mean_types(pa.decimal128(precision, scale))
    assert types is not None
    digits = min(38, scale + 4)
    assert types[1] == pa.decimal128(min(38, precision + 4), digits)
    mean = MeanValue("x", *types)
    with localcontext(prec=100):
        values = [Decimal(value).scaleb(-scale) for value in unscaled]
        wanted = (sum(values) / len(values)).quantize(Decimal(1).scaleb(-digits), "ROUND_HALF_UP")
        batch, groups = pa.record_batch({"x": pa.array(values, kind)}), groups_of([0] * len(values))
        if abs(wanted) < Decimal(10) ** (types[1].precision - digits):
            assert mean.result(mean.partial(batch, groups)).to_pylist() == [wanted]
        else:
            with pytest.raises(reduce.Overflow):
                mean.result(mean.partial(batch, groups))


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        (["-0." + "9" * 38, "0"], "-0.5"),  # half of the last digit goes away from zero
        (["4294967295e-38"], "4294967295e-38"),  # Arrow's rounding makes 4294967294 of it
        (["4294967295e-38", "4294967296e-38"], "4294967296e-38"),
    ],
)
def test_a_mean_is_exact_where_arrow_rounds_wrongly(values: list[str], mean: str) -> None:
    kind, types = pa.decimal128(38, 38), mean_types(pa.decimal128(38, 38))
    assert types == (kind, kind)
    batch = pa.record_batch({"x": pa.array(list(map(Decimal, values)), kind)})
    accumulator = MeanValue("x", *types)
    assert accumulator.result(accumulator.partial(batch, groups_of([0] * len(values)))).to_pylist() == [Decimal(mean)]


def test_a_mean_without_values_is_null() -> None:
    mean = MeanValue("x", pa.float64(), pa.float64())
    states = mean.partial(pa.record_batch({"x": pa.array([None, 1, 2], pa.int64())}), groups_of([0, 1, 1]))
    assert mean.result(states).to_pylist() == [None, 1.5]


def test_floats_are_added_in_the_order_of_the_rows() -> None:
    values = [1e16, 1.0, -1e16, 1.0]
    total = SumValues("x", pa.float64()).partial(pa.record_batch({"x": values}), groups_of([0, 0, 0, 0]))
    assert total[0].to_pylist() == [((1e16 + 1.0) - 1e16) + 1.0]
