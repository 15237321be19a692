"""Keyed state against a dictionary: any mix of updates, deletes, lookups, flushes and rescales (D6)."""

from __future__ import annotations

import itertools
import math
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol.keygroups import KeyGroupRange, groups_of, range_of
from penstock.records import StateSchema
from penstock.state import compact, keyed, tiers
from penstock.state.keyed import KeyedState
from penstock.state.tiers import FILES_MAX
from penstock.store.local import LocalStore
from penstock.store.memory import MemoryStore
from tests.support.state_checkpoint import Checkpoint

Key = tuple[Any, ...]
MIXED = StateSchema(
    pa.schema([("s", pa.string()), ("x", pa.float64()), ("i", pa.int32())]),
    pa.schema([("n", pa.int64()), ("items", pa.list_(pa.string()))]),
)
KEYS: list[Key] = list(
    itertools.product(["a", "", None], [0.0, -0.0, math.nan, -math.nan, 2.5, None], [1, None])
)  # fmt: skip
# Few hashes for many keys, at the ends of the range and in all key groups.
HASHES = [0, 1, -1, 2, 3, 64, -64, 2**63 - 1, -(2**63), 0x5DEECE66D]


def canonical(key: Key) -> Key:
    return tuple("NaN" if isinstance(part, float) and math.isnan(part) else part for part in key)


def model_hash(key: Key) -> int:
    distinct = sorted({repr(canonical(other)).replace("-0.0", "0.0") for other in KEYS})
    return HASHES[distinct.index(repr(canonical(key)).replace("-0.0", "0.0")) % len(HASHES)]


KEY_HASHES = [model_hash(key) for key in KEYS]

UPDATE = st.dictionaries(st.integers(0, len(KEYS) - 1), st.none() | st.integers(0, 99), max_size=12)
LOOKUP = st.lists(st.integers(0, len(KEYS) - 1), max_size=12)
STEPS = st.lists(UPDATE | LOOKUP, max_size=4)
EPOCHS = st.lists(st.tuples(st.integers(1, 4), STEPS), min_size=1, max_size=8)


class Model:
    """A dictionary beside the real state; both see every step."""

    def __init__(self, checkpoint: Checkpoint, *, sectioned: bool) -> None:
        self.checkpoint, self.sectioned = checkpoint, sectioned
        self.entries: dict[Key, tuple[int, list[str] | None]] = {}

    def run_epoch(self, parallelism: int, steps: list[dict[int, int | None] | list[int]]) -> None:
        for subtask in range(parallelism):
            groups = range_of(subtask, parallelism, self.checkpoint.max_parallelism)
            state = self.checkpoint.open(subtask, parallelism)
            for step in steps:
                if isinstance(step, dict):
                    self.update(state, {k: step[k] for k in self._own(list(step), groups)})
                else:
                    self.lookup(state, self._own(step, groups))
            change = self.checkpoint.finish(state)
            if change.added is not None:
                written = [group for part in change.added.ranges for group in range(part.lo, part.hi)]
                depths = [len(self.checkpoint.files_of(KeyGroupRange(group, group + 1))) for group in written]
                assert max(depths) <= FILES_MAX * (2 if self.sectioned else 1)

    def update(self, state: KeyedState, step: dict[int, int | None]) -> None:
        chosen = {canonical(KEYS[k]): k for k in step}  # two spellings of one key are one key
        ids = list(chosen.values())
        rows = [value_of(step[k]) for k in ids]
        values = pa.RecordBatch.from_pylist(rows, schema=MIXED.values)
        state.update(hashes(ids), key_batch(ids), values, np.array([step[k] is None for k in ids], np.bool_))
        for key, k in chosen.items():
            number = step[k]
            if number is None:
                self.entries.pop(key, None)
            else:
                self.entries[key] = tuple(value_of(number).values())  # type: ignore[assignment]

    def lookup(self, state: KeyedState, ids: list[int]) -> None:
        answer = state.lookup(hashes(ids), key_batch(ids))
        expected = [self.entries.get(canonical(KEYS[k])) for k in ids]
        assert answer.found.tolist() == [entry is not None for entry in expected]
        rows = [tuple(row.values()) for row in answer.values.to_pylist()]
        assert rows == [entry if entry is not None else (None, None) for entry in expected]

    def check_everything(self, parallelism: int) -> None:
        rows: list[tuple[Any, ...]] = []
        for subtask in range(parallelism):
            state = self.checkpoint.open(subtask, parallelism)
            rows += [tuple(row.values()) for batch in state.scan() for row in batch.to_pylist()]
            self.lookup(state, self._own(list(range(len(KEYS))), range_of(subtask, parallelism, self._limit)))
            state.close()
        assert len(rows) == len(self.entries)
        assert {canonical(row[:3]): row[3:] for row in rows} == self.entries

    @property
    def _limit(self) -> int:
        return self.checkpoint.max_parallelism

    def _own(self, ids: list[int], groups: KeyGroupRange) -> list[int]:
        owners = groups_of(hashes(ids), self._limit).tolist() if ids else []
        return [k for k, group in zip(ids, owners, strict=True) if groups.lo <= group < groups.hi]


def value_of(number: int | None) -> dict[str, Any]:
    return {"n": number, "items": None if number is None or number % 3 == 0 else [str(number)] * (number % 3)}


def hashes(ids: list[int]) -> np.ndarray:
    return np.array([KEY_HASHES[k] for k in ids], np.int64)


def key_batch(ids: list[int]) -> pa.RecordBatch:
    columns = [pa.array([KEYS[k][i] for k in ids], field.type) for i, field in enumerate(MIXED.keys)]
    return pa.RecordBatch.from_arrays(columns, schema=MIXED.keys)


def follow(
    checkpoint: Checkpoint,
    epochs: list[tuple[int, list[Any]]],
    chunk_rows: int,
    small_run_bytes: int,
    *,
    sectioned: bool,
) -> None:
    model = Model(checkpoint, sectioned=sectioned)
    with pytest.MonkeyPatch.context() as patch:
        if sectioned:
            for limit in ("SECTION_BYTES", "MERGE_BYTES", "MERGE_PER_CHANGE"):
                patch.setattr(tiers, limit, 1)
        patch.setattr(compact, "CHUNK_ROWS_MAX", chunk_rows)
        patch.setattr(keyed, "_SMALL_RUN_BYTES", small_run_bytes)
        for parallelism, steps in epochs:
            model.run_epoch(parallelism, steps)
            model.check_everything(parallelism)
        model.check_everything(1)
        model.check_everything(4)


# Key groups in and not in a power of two; files of many batches or of one; memory in many runs or in one.
SHAPES = st.tuples(st.sampled_from([4, 7, 8, 128]), st.sampled_from([3, 1 << 20]), st.sampled_from([0, 1 << 18]))
# Merged as a whole, or a few key groups at a time.
SECTIONED = st.booleans()


@settings(max_examples=60, deadline=None)
@given(EPOCHS, SHAPES, SECTIONED)
def test_state_is_a_dictionary_over_any_epochs_and_rescales(
    epochs: list[tuple[int, list[Any]]], shape: tuple[int, int, int], sectioned: bool
) -> None:
    """D6, B2, B3: keys with null, NaN, -0.0 and equal hashes; files of one to many batches, shared after rescales."""
    with closing(Checkpoint(MemoryStore(), MIXED, shape[0])) as checkpoint:
        follow(checkpoint, epochs, *shape[1:], sectioned=sectioned)


@settings(max_examples=10, deadline=None)
@given(EPOCHS, SHAPES, SECTIONED)
def test_mapped_state_is_a_dictionary_too(
    epochs: list[tuple[int, list[Any]]], shape: tuple[int, int, int], sectioned: bool
) -> None:
    """D6: as above, on files that are memory-mapped."""
    with TemporaryDirectory() as folder, closing(Checkpoint(LocalStore(folder), MIXED, shape[0])) as checkpoint:
        follow(checkpoint, epochs, *shape[1:], sectioned=sectioned)
