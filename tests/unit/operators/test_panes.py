"""State by key and pane: where entries stand, and reading it by spans (D6)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.operators.window.panes import PLACES, PaneIndex, Stretch
from penstock.protocol.keygroups import groups_of, order_of
from penstock.records import StateSchema
from penstock.store.memory import MemoryStore
from tests.support.state_checkpoint import Checkpoint

PARALLELISMS = [1, 2, 7, 128, 1000, 32768]
SCHEMA = StateSchema(pa.schema([("k", pa.int64()), ("__pane", pa.int64())]), pa.schema([("v", pa.int64())]))


@pytest.mark.parametrize("max_parallelism", PARALLELISMS)
def test_an_entry_keeps_the_key_group_and_has_the_same_place_in_every_pane(max_parallelism: int) -> None:
    """B3"""
    random = np.random.default_rng(7)
    hashes = random.integers(-(2**63), 2**63 - 1, 1000)
    panes = random.integers(-(2**40), 2**40, 1000)
    index = PaneIndex(max_parallelism)
    mixed = index.hashes(hashes, panes)
    assert (groups_of(mixed, max_parallelism) == groups_of(hashes, max_parallelism)).all()
    assert (index.places(mixed) == index.places(hashes)).all()
    assert (index.hashes(mixed, panes + 1) == index.hashes(hashes, panes + 1)).all()
    here, there = (index.key_hashes(order_of(index.hashes(hashes, p), max_parallelism)) for p in (panes, panes - 9))
    assert (here == there).all()
    assert len(np.unique(here)) > 990, "different keys have different ones, but for chance"


@settings(deadline=None, max_examples=60)
@given(
    max_parallelism=st.sampled_from(PARALLELISMS),
    seed=st.integers(0, 2**32 - 1),
    first=st.integers(-20, 20),
    panes=st.integers(0, 12),
    start=st.sampled_from([0, PLACES // 4]),
    stop=st.sampled_from([PLACES // 2, PLACES]),
)
def test_the_entries_of_a_stretch_are_read_and_deleted_without_the_others(
    max_parallelism: int, seed: int, first: int, panes: int, start: int, stop: int
) -> None:
    """From files, from memory, superseded or deleted, around a wrap of the pane's number."""
    random = np.random.default_rng(seed)
    index = PaneIndex(max_parallelism)
    last = first + panes
    model: dict[tuple[int, int], int] = {}
    with closing(Checkpoint(MemoryStore(), SCHEMA, max_parallelism)) as checkpoint:
        for epoch in range(3):
            state = checkpoint.open()
            pairs = sorted({(int(k), int(p)) for k, p in zip(*random.integers(-15, 15, (2, 40)), strict=True)})
            update(state, index, pairs, epoch, random.random(len(pairs)) < 0.3, model)
            if epoch < 2:
                checkpoint.finish(state)
        group = int(groups_of(index.hashes(key_hashes([pairs[0][0]]), np.zeros(1, np.int64)), max_parallelism)[0])
        spans = index.spans([Stretch(group, first, last, start, stop)])
        wanted = {
            pair: value
            for pair, value in model.items()
            if first <= pair[1] <= last and in_stretch(index, pair[0], group, start, stop, max_parallelism)
        }
        entries = state.within(spans)
        got = {} if entries is None else as_dict(entries.keys, entries.values)
        assert got == wanted
        assert int(state.count_within(spans).sum()) >= len(wanted)
        if entries is not None:
            assert (np.diff(entries.orders.astype(object)) >= 0).all()
            state.delete(entries)
        assert state.within(spans) is None
        checkpoint.finish(state)
        left: dict[Any, Any] = {}
        for batch in checkpoint.open().scan():
            left |= as_dict(batch.select(["k", "__pane"]), batch.select(["v"]))
        assert left == {pair: value for pair, value in model.items() if pair not in wanted}


def key_hashes(keys: list[int]) -> np.ndarray:
    """Any hash will do; this one spreads small numbers."""
    with np.errstate(over="ignore"):
        return np.array(keys, np.int64) * np.int64(-7046029254386353131)


def in_stretch(index: PaneIndex, key: int, group: int, start: int, stop: int, max_parallelism: int) -> bool:
    hashes = key_hashes([key])
    return bool(groups_of(hashes, max_parallelism)[0] == group and start <= index.places(hashes)[0] < stop)


def update(state: Any, index: PaneIndex, pairs: Any, value: int, deleted: Any, model: dict[Any, int]) -> None:
    keys, panes = [key for key, _ in pairs], np.array([pane for _, pane in pairs], np.int64)
    batch = pa.record_batch([pa.array(keys, pa.int64()), pa.array(panes)], schema=SCHEMA.keys)
    values = pa.record_batch([pa.array([value] * len(pairs), pa.int64())], schema=SCHEMA.values)
    state.update(index.hashes(key_hashes(keys), panes), batch, values, deleted)
    for pair, gone in zip(pairs, deleted, strict=True):
        model.pop(pair, None)
        if not gone:
            model[pair] = value


def as_dict(keys: pa.RecordBatch, values: pa.RecordBatch) -> dict[Any, Any]:
    pairs = zip(keys.column(0).to_pylist(), keys.column(1).to_pylist(), strict=True)
    return dict(zip(pairs, values.column(0).to_pylist(), strict=True))
