"""Sorting, searching and merging of sorted runs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.state import compact, tiers
from penstock.state.keys import KeyColumn
from penstock.state.runs import Hits, SortedRun, find, gather, merge, sort_orders

Entry = tuple[int, str, int | None]  # order, key, value; a value of None is a tombstone


def run_of(entries: list[Entry]) -> SortedRun:
    entries = sorted(entries, key=lambda entry: entry[0])
    deleted = np.array([value is None for *_, value in entries])
    return SortedRun(
        np.array([order for order, *_ in entries], np.uint64),
        [pa.array([key for _, key, _ in entries], pa.string()), pa.array([v for *_, v in entries], pa.int64())],
        key_count=1,
        deleted=deleted if deleted.any() else None,
    )


def entries_of(run: SortedRun) -> set[Entry]:
    keys, values = (column.to_pylist() for column in run.columns)
    deleted = run.deleted if run.deleted is not None else np.zeros(run.rows, np.bool_)
    rows = zip(run.orders.tolist(), keys, values, deleted.tolist(), strict=True)
    return {(order, key, None if gone else value) for order, key, value, gone in rows}


# Few orders and few keys, so that most stretches hold several keys of one order.
IDENTITIES = st.tuples(st.integers(0, 3).map(lambda order: order * (2**62)), st.sampled_from("abcd"))
RUNS = st.dictionaries(IDENTITIES, st.none() | st.integers(0, 9), min_size=1).map(
    lambda rows: [(order, key, value) for (order, key), value in rows.items()]
)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40), max_size=40))
def test_sorting_orders_gives_them_ascending_with_the_place_of_each(orders: list[int]) -> None:
    given_orders = np.array(orders, np.uint64)
    ordered, moved = sort_orders(given_orders)
    assert ordered.tolist() == sorted(orders)
    assert (moved is None) == (orders == sorted(orders))
    if moved is not None:
        assert given_orders[moved].tolist() == ordered.tolist()
        assert sorted(moved.tolist()) == list(range(len(orders)))


@given(RUNS, st.lists(IDENTITIES, max_size=20))
def test_find_tells_keys_of_equal_order_apart(entries: list[Entry], wanted: list[tuple[int, str]]) -> None:
    run = run_of(entries)
    ordered, moved = sort_orders(np.array([order for order, _ in wanted], np.uint64))
    rows = np.arange(len(wanted)) if moved is None else moved
    keys = (KeyColumn(pa.array([key for _, key in wanted], pa.string())),)
    probes, hits = find(run, ordered, keys, rows)
    answers = {
        int(rows[probe]): (int(run.orders[row]), run.columns[0][row].as_py())
        for probe, row in zip(probes, hits, strict=True)
    }
    present = {(order, key) for order, key, _ in entries}
    assert answers == {i: identity for i, identity in enumerate(wanted) if identity in present}


@given(st.lists(RUNS, min_size=1, max_size=5), st.booleans())
def test_a_merge_keeps_the_newest_row_of_each_key(newest_first: list[list[Entry]], drop: bool) -> None:
    merged = merge([run_of(entries) for entries in newest_first], drop_deleted=drop)
    newest: dict[tuple[int, str], int | None] = {}
    for entries in newest_first:
        for order, key, value in entries:
            newest.setdefault((order, key), value)
    expected = {(*identity, value) for identity, value in newest.items() if not (drop and value is None)}
    assert entries_of(merged) == expected
    assert merged.rows == len(expected)
    assert (merged.orders[1:] >= merged.orders[:-1]).all()


@given(st.lists(RUNS, min_size=1, max_size=4))
def test_chunks_put_together_are_the_whole_merge(newest_first: list[list[Entry]]) -> None:
    runs = [run_of(entries) for entries in newest_first]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact, "CHUNK_ROWS_MAX", 2)
        chunks = list(compact.merged_chunks(runs, drop_deleted=False))
    whole = merge(runs, drop_deleted=False)
    assert np.concatenate([chunk.orders for chunk in chunks]).tolist() == whole.orders.tolist()
    assert set().union(*map(entries_of, chunks)) == entries_of(whole)
    assert all(chunk.rows for chunk in chunks)


def test_chunks_of_a_large_merge_are_about_as_large_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact, "CHUNK_ROWS_MAX", 5_000)
    rng = np.random.default_rng(7)
    runs = []
    for rows in (40_000, 9_000, 500):
        orders = np.sort(rng.integers(0, 2**64, rows, dtype=np.uint64))
        runs.append(SortedRun(orders, [pa.array(orders)], key_count=1))
    sizes = [chunk.rows for chunk in compact.merged_chunks(runs, drop_deleted=False)]
    assert sum(sizes) == 49_500
    assert max(sizes) <= 5_500
    assert len(sizes) <= 12


def test_gathered_values_are_null_where_nothing_or_a_tombstone_answers() -> None:
    old, new = run_of([(1, "a", 10), (2, "b", 20)]), run_of([(2, "b", None)])
    hits = [Hits(new, np.array([0]), np.array([2])), Hits(old, np.array([0, 0]), np.array([0, 3]))]
    (values,), found = gather(hits, 4, [pa.int64()])
    assert values.to_pylist() == [10, None, None, 10]
    assert found.tolist() == [True, False, False, True]


def test_values_of_several_runs_come_in_the_order_of_the_probes() -> None:
    old, new = run_of([(1, "a", 10), (2, "b", 20)]), run_of([(3, "c", 30)])
    hits = [Hits(new, np.array([0]), np.array([1])), Hits(old, np.array([0, 1]), np.array([2, 0]))]
    (values,), found = gather(hits, 3, [pa.int64()])
    assert values.to_pylist() == [20, 30, 10]
    assert found.all()


def test_a_row_is_rewritten_a_logarithmic_number_of_times() -> None:
    sizes: list[int] = []
    written = 0
    for _ in range(1_000):
        joined = tiers.tiers_to_merge(sizes, 1)
        sizes[len(sizes) - joined :] = [1 + sum(sizes[len(sizes) - joined :])]
        written += sizes[-1]
    assert len(sizes) <= 10
    assert written <= 10 * 1_000
