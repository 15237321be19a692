"""Rows brought together by key: any keys, any hashes, arrival order kept (A8)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.grouping import Numbered, group_rows
from penstock.state.keys import normalise_keys
from tests.support.operator_harness import Hashes, few_hashes, hashes_of, one_hash, plain

SCHEMA = pa.schema([("a", pa.string()), ("b", pa.string()), ("x", pa.float64()), ("n", pa.int32())])
TEXT = st.sampled_from(["a", "b", None])
FLOAT = st.sampled_from([0.0, -0.0, 1.5, math.nan, -math.nan, math.inf, None])
ROWS = st.lists(st.tuples(TEXT, TEXT, FLOAT, st.sampled_from([1, None])), max_size=60)


def keys_of(rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return normalise_keys(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA), ["x"])


@pytest.mark.parametrize("hashes", [hashes_of, few_hashes, one_hash])
@settings(deadline=None)
@given(rows=ROWS)
def test_each_key_is_one_group_with_its_rows_in_arrival_order(hashes: Hashes, rows: list[tuple[Any, ...]]) -> None:
    expected: dict[tuple[Any, ...], list[int]] = {}
    for number, row in enumerate(rows):
        expected.setdefault(tuple(map(plain, row)), []).append(number)
    keys = keys_of(rows)
    grouping = group_rows(hashes(keys), keys)
    groups = [part.tolist() for part in np.split(grouping.order, grouping.starts[1:])] if rows else []
    assert sorted(groups) == sorted(expected.values())


@settings(deadline=None)
@given(rows=ROWS)
def test_the_group_of_a_row_is_where_the_order_puts_it(rows: list[tuple[Any, ...]]) -> None:
    keys = keys_of(rows)
    grouping = group_rows(few_hashes(keys), keys)
    for group, part in enumerate(np.split(grouping.order, grouping.starts[1:]) if rows else []):
        assert (grouping.ids[part] == group).all()
        assert grouping.firsts[group] == part[0]


@settings(deadline=None)
@given(rows=ROWS)
def test_sizes_and_totals_do_not_depend_on_what_is_known_of_the_groups(rows: list[tuple[Any, ...]]) -> None:
    keys = keys_of(rows)
    grouping = group_rows(few_hashes(keys), keys)
    numbered = Numbered(grouping.ids, grouping.count)
    values = np.arange(len(rows)) * 7 - 3
    assert grouping.sizes.tolist() == numbered.sizes.tolist()
    assert grouping.totals(values).tolist() == numbered.totals(values).tolist()


def test_hashes_that_differ_only_in_the_bits_used_for_row_numbers_are_told_apart() -> None:
    keys = pa.record_batch({"k": [1, 2, 1, 2, 3]})
    grouping = group_rows(np.array([1, 2, 1, 2, 3]), keys)
    assert sorted(part.tolist() for part in np.split(grouping.order, grouping.starts[1:])) == [[0, 2], [1, 3], [4]]
