"""Keyed state: lookup, update, flush, shared files and what can go wrong with them (D6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import CheckpointMismatch, CorruptFile, MissingFile
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import StateSchema
from penstock.state import compact, keyed
from penstock.state.keyed import KeyedState, StateChange
from penstock.state.tiers import FILES_MAX
from penstock.store.local import LocalStore
from tests.support.state_checkpoint import Checkpoint

GROUPS = 8
SCHEMA = StateSchema(pa.schema([("key", pa.int64())]), pa.schema([("n", pa.int64()), ("name", pa.string())]))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    with closing(Checkpoint(LocalStore(tmp_path), SCHEMA, GROUPS)) as checkpoint:
        yield checkpoint


def batch_of(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64())], schema=SCHEMA.keys)


def hash_of(ids: list[int]) -> np.ndarray:
    """Each key is its own hash, so key group = key % GROUPS."""
    return np.array(ids, np.int64)


def put(state: KeyedState, entries: dict[int, int | None]) -> None:
    """Sets key → n; None deletes."""
    ids = list(entries)
    numbers = [value if value is not None else 0 for value in entries.values()]
    names = pa.array([f"v{n}" for n in numbers], pa.string())
    values = pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), names], schema=SCHEMA.values)
    state.update(hash_of(ids), batch_of(ids), values, np.array([value is None for value in entries.values()]))


def get(state: KeyedState, ids: list[int]) -> list[int | None]:
    answer = state.lookup(hash_of(ids), batch_of(ids))
    assert answer.found.tolist() == answer.values.column(0).is_valid().to_pylist()
    return answer.values.column(0).to_pylist()


def content(state: KeyedState) -> dict[int, int]:
    rows = [row for batch in state.scan() for row in batch.to_pylist()]
    assert len({row["key"] for row in rows}) == len(rows)
    return {row["key"]: row["n"] for row in rows}


def epoch(
    checkpoint: Checkpoint, entries: dict[int, int | None], subtask: int = 0, parallelism: int = 1
) -> StateChange:
    state = checkpoint.open(subtask, parallelism)
    put(state, entries)
    return checkpoint.finish(state)


def test_a_lookup_answers_keys_in_their_order_also_when_they_repeat(checkpoint: Checkpoint) -> None:
    state = checkpoint.open()
    put(state, {5: 50, 3: 30})
    assert get(state, [3, 4, 5, 3]) == [30, None, 50, 30]


def test_an_empty_lookup_and_an_empty_update_do_nothing(checkpoint: Checkpoint) -> None:
    state = checkpoint.open()
    put(state, {})
    assert get(state, []) == []
    assert state.flush(checkpoint.new_name) == StateChange(None, {})


def test_what_was_flushed_is_found_in_the_next_epoch(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {1: 10, 2: 20})
    assert get(checkpoint.open(), [2, 1, 9]) == [20, 10, None]


def test_the_newest_value_wins_over_files_and_earlier_updates(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, dict.fromkeys(range(100), 0))
    epoch(checkpoint, {1: 1, 2: 1})
    state = checkpoint.open()
    put(state, {2: 2, 3: 2})
    put(state, {3: 3})
    assert get(state, [0, 1, 2, 3]) == [0, 1, 2, 3]


def test_nothing_is_written_and_no_name_is_asked_for_when_nothing_changed(checkpoint: Checkpoint) -> None:
    """D6: a checkpoint writes what changed."""
    epoch(checkpoint, {1: 10})
    state = checkpoint.open()
    assert get(state, [1]) == [10]

    def no_name() -> str:
        raise AssertionError("a name was asked for")

    assert state.flush(no_name) == StateChange(None, {})


def test_a_new_file_is_valid_for_the_subtasks_own_key_groups(checkpoint: Checkpoint) -> None:
    change = epoch(checkpoint, {0: 1}, subtask=0, parallelism=2)
    assert change.added is not None
    assert change.added.ranges == (KeyGroupRange(0, 4),)
    assert change.added.rows == 1


def test_a_small_change_does_not_rewrite_a_large_file(checkpoint: Checkpoint) -> None:
    """D6: a checkpoint writes what changed."""
    epoch(checkpoint, dict.fromkeys(range(1000), 0))
    change = epoch(checkpoint, {7: 1})
    assert change.added is not None
    assert (change.added.rows, change.replaced) == (1, {})


def test_a_change_as_large_as_the_file_replaces_it(checkpoint: Checkpoint) -> None:
    first = epoch(checkpoint, dict.fromkeys(range(100), 0))
    change = epoch(checkpoint, dict.fromkeys(range(50, 150), 1))
    assert first.added is not None
    assert change.added is not None
    assert (change.added.rows, change.replaced) == (150, {first.added.path: (KeyGroupRange(0, GROUPS),)})
    assert content(checkpoint.open()) == {key: int(key >= 50) for key in range(150)}


def test_the_number_of_files_stays_bounded_whatever_the_sizes(checkpoint: Checkpoint) -> None:
    expected: dict[int, int] = {}
    for number in range(14):
        entries = dict.fromkeys(range(3 ** max(0, 9 - number) + 1), number)
        epoch(checkpoint, dict(entries))
        expected.update(entries)
        assert len(checkpoint.files) <= FILES_MAX
    assert content(checkpoint.open()) == expected


def test_files_of_many_subtasks_are_brought_down_to_the_bound_by_the_first_flush(checkpoint: Checkpoint) -> None:
    for number in range(3):
        for subtask in range(GROUPS):
            epoch(checkpoint, {subtask + GROUPS * i: number for i in range(4 ** (4 - number))}, subtask, GROUPS)
    assert len(checkpoint.files) == 3 * GROUPS
    before = content(checkpoint.open())
    epoch(checkpoint, {0: 99})
    assert len(checkpoint.files) <= FILES_MAX
    assert content(checkpoint.open()) == before | {0: 99}


def test_a_deleted_key_is_gone_also_when_an_older_file_knows_it(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {key: key for key in range(100)})
    change = epoch(checkpoint, {7: None})
    assert change.replaced == {}
    state = checkpoint.open()
    assert get(state, [6, 7]) == [6, None]
    assert 7 not in content(state)


def test_a_deleted_key_can_come_back(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {key: key for key in range(100)})
    epoch(checkpoint, {7: None})
    epoch(checkpoint, {7: 70})
    assert get(checkpoint.open(), [7]) == [70]


def test_tombstones_are_dropped_when_the_oldest_file_is_merged(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {key: key for key in range(100)})
    epoch(checkpoint, dict.fromkeys(range(10)))
    change = epoch(checkpoint, dict.fromkeys(range(100, 200), 0))
    assert change.added is not None
    assert change.added.rows == 190
    assert len(checkpoint.files) == 1


def test_no_file_is_left_when_every_key_is_deleted(checkpoint: Checkpoint) -> None:
    first = epoch(checkpoint, {1: 1, 2: 2})
    assert first.added is not None
    assert epoch(checkpoint, {1: None, 2: None}) == StateChange(None, {first.added.path: (KeyGroupRange(0, GROUPS),)})
    assert checkpoint.files == []


def test_a_key_made_and_deleted_in_one_epoch_leaves_no_file(checkpoint: Checkpoint) -> None:
    state = checkpoint.open()
    put(state, {1: 1})
    put(state, {1: None})
    assert get(state, [1]) == [None]
    assert checkpoint.finish(state) == StateChange(None, {})


def test_what_has_expired_is_dropped_when_files_are_merged(checkpoint: Checkpoint) -> None:
    """D6."""
    epoch(checkpoint, {key: key for key in range(100)})
    state = checkpoint.open()
    put(state, dict.fromkeys(range(100, 200), 1_000))
    state.expire("n", np.full(GROUPS, 90))
    change = checkpoint.finish(state)
    assert change.added is not None
    assert change.added.rows == 110
    assert set(content(checkpoint.open())) == set(range(90, 200))


def test_an_older_value_does_not_come_back_when_a_newer_one_has_expired(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, dict.fromkeys(range(1_000), 5))
    epoch(checkpoint, {7: 10})
    state = checkpoint.open()
    put(state, {8: 1_000})
    state.expire("n", np.full(GROUPS, 90))
    change = checkpoint.finish(state)
    assert len(checkpoint.files) == 2
    assert change.added is not None
    assert get(checkpoint.open(), [7, 8, 9]) == [None, 1_000, 5]


def test_many_tiny_updates_stay_in_few_runs(checkpoint: Checkpoint) -> None:
    state = checkpoint.open()
    for start in range(0, 2_000, 25):
        put(state, {key: key for key in range(start, start + 25)})
    assert len(state._changes) <= 4
    assert content(state) == {key: key for key in range(2_000)}


def test_a_file_shared_after_a_rescale_keeps_the_rows_of_the_other_subtask(checkpoint: Checkpoint) -> None:
    """B3: one new subtask rewrites its part; the other still reads the old file."""
    epoch(checkpoint, dict.fromkeys(range(64), 0))
    shared = checkpoint.files[0].path
    change = epoch(checkpoint, {key: 1 for key in range(64) if key % GROUPS < 4}, subtask=0, parallelism=2)
    assert change.replaced == {shared: (KeyGroupRange(0, 4),)}
    assert checkpoint.files[0].path == shared
    assert checkpoint.files[0].ranges == (KeyGroupRange(4, 8),)
    assert content(checkpoint.open(1, 2)) == {key: 0 for key in range(64) if key % GROUPS >= 4}
    assert content(checkpoint.open()) == {key: int(key % GROUPS < 4) for key in range(64)}


def test_rows_outside_a_files_valid_ranges_do_not_come_back(checkpoint: Checkpoint) -> None:
    """A subtask deletes its part of a shared file; scaling in again must not revive it."""
    epoch(checkpoint, dict.fromkeys(range(64), 0))
    change = epoch(checkpoint, {key: None for key in range(64) if key % GROUPS in {2, 3}}, subtask=1, parallelism=4)
    assert change.added is None
    state = checkpoint.open()
    assert checkpoint.files[0].ranges == (KeyGroupRange(0, 2), KeyGroupRange(4, 8))
    assert content(state) == {key: 0 for key in range(64) if key % GROUPS not in {2, 3}}
    assert get(state, [2, 3, 4]) == [None, None, 0]


def test_a_shared_file_without_rows_for_a_subtask_is_given_up_with_its_next_change(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {key * GROUPS: 0 for key in range(1_000)})
    epoch(checkpoint, {key * GROUPS + 4: 0 for key in range(100)})
    change = epoch(checkpoint, {5: 1}, subtask=1, parallelism=2)
    assert change.replaced == {"state/0.arrow": (KeyGroupRange(4, 8),)}
    assert checkpoint.files[0].ranges == (KeyGroupRange(0, 4),)
    assert len(content(checkpoint.open())) == 1_101


def test_a_lookup_reads_only_the_batches_that_can_hold_its_keys(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D6: state far larger than memory works."""
    monkeypatch.setattr(compact, "CHUNK_ROWS_MAX", 8)
    epoch(checkpoint, {key: key for key in range(256)})
    read: list[int] = []
    original = keyed.FileRun._run
    monkeypatch.setattr(keyed.FileRun, "_run", lambda self, number: read.append(number) or original(self, number))
    assert get(checkpoint.open(), [3]) == [3]
    assert 1 <= len(read) <= 5


def test_a_flipped_byte_in_a_state_file_is_found_before_its_rows_are_used(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    epoch(checkpoint, {key: key for key in range(500)})
    path = tmp_path / checkpoint.files[0].path
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptFile) as caught:
        get(checkpoint.open(), list(range(500)))
    assert checkpoint.files[0].path in str(caught.value)


def test_a_missing_state_file_is_named(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {1: 1})
    checkpoint.store.delete([checkpoint.files[0].path])
    with pytest.raises(MissingFile, match=r"state/0\.arrow"):
        checkpoint.open()


def test_a_file_with_other_columns_is_refused_with_both_sides(checkpoint: Checkpoint) -> None:
    """E6."""
    epoch(checkpoint, {1: 1})
    checkpoint.schema = StateSchema(SCHEMA.keys, pa.schema([("n", pa.float64())]))
    with pytest.raises(CheckpointMismatch, match=r"n: int64.*n: double"):
        checkpoint.open()


def test_columns_that_were_added_since_are_null_in_older_files(checkpoint: Checkpoint) -> None:
    """D3: also with deleted entries, which have a column of their own at the end."""
    epoch(checkpoint, {1: 1, 2: 2, 3: 3})
    epoch(checkpoint, {2: None})
    values = pa.schema([("first", pa.float64()), *SCHEMA.values, ("last", pa.string())])
    checkpoint.schema = StateSchema(SCHEMA.keys, values, may_grow=True)
    found = checkpoint.open().lookup(hash_of([1, 2, 3]), batch_of([1, 2, 3]))
    assert found.values.column("n").to_pylist() == [1, None, 3]
    assert found.values.column("first").null_count == found.values.column("last").null_count == 3
    checkpoint.schema = StateSchema(SCHEMA.keys, values)
    with pytest.raises(CheckpointMismatch, match="first: double"):
        checkpoint.open()


@pytest.mark.parametrize("may_grow", [False, True])
@pytest.mark.parametrize(
    "field",
    [
        pa.field("__deleted", pa.string()),
        pa.field("__deleted", pa.bool_()),
        pa.field("__deleted", pa.bool_(), nullable=False),
    ],
    ids=str,
)
def test_a_value_may_be_called_as_our_own_column(tmp_path: Path, field: pa.Field, may_grow: bool) -> None:
    """Debezium calls one of its columns like that. What users declare, and may declare more of, may be null."""
    if may_grow and not field.nullable:
        return
    schema = StateSchema(SCHEMA.keys, pa.schema([pa.field("n", pa.int64()), field]), may_grow=may_grow)
    with closing(Checkpoint(LocalStore(tmp_path), schema, GROUPS)) as checkpoint:
        for ids, n, deleted in ((range(100), 1, None), ([3, 4], 2, np.array([False, True])), ([5], 3, None)):
            state = checkpoint.open()
            flags = pa.array([n == 1] * len(ids)).cast(field.type)
            values = pa.RecordBatch.from_arrays([pa.array([n] * len(ids), pa.int64()), flags], schema=schema.values)
            state.update(hash_of(list(ids)), batch_of(list(ids)), values, deleted)
            checkpoint.finish(state)
        assert len(checkpoint.files) > 1
        state = checkpoint.open()
        assert get(state, [2, 3, 4, 5]) == [1, 2, None, 3]
        found = state.lookup(hash_of([2, 3]), batch_of([2, 3]))
        assert found.values.column(1).cast(pa.string()).to_pylist() == ["true", "false"]


def test_a_new_value_called_as_our_own_column_is_null_where_older_files_have_deletions(checkpoint: Checkpoint) -> None:
    epoch(checkpoint, {1: 1, 2: 2, 3: 3})
    epoch(checkpoint, {2: None})
    values = pa.schema([*SCHEMA.values, ("__deleted", pa.bool_())])
    checkpoint.schema = StateSchema(SCHEMA.keys, values, may_grow=True)
    found = checkpoint.open().lookup(hash_of([1, 2, 3]), batch_of([1, 2, 3]))
    assert found.values.column("n").to_pylist() == [1, None, 3]
    assert found.values.column("__deleted").null_count == 3


def test_a_key_of_another_subtask_is_refused_because_only_a_forged_segment_has_one(checkpoint: Checkpoint) -> None:
    state = checkpoint.open(0, 2)
    with pytest.raises(CorruptFile, match="another subtask"):
        get(state, [5])


def test_a_key_twice_in_one_update_is_our_own_mistake(checkpoint: Checkpoint) -> None:
    values = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array(["a", "b"])], schema=SCHEMA.values)
    with pytest.raises(AssertionError, match="twice"):
        checkpoint.open().update(hash_of([1, 1]), batch_of([1, 1]), values)


def test_a_failed_flush_leaves_no_file(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """B13: the writer is aborted when a later chunk cannot be made."""
    monkeypatch.setattr(compact, "CHUNK_ROWS_MAX", 8)
    epoch(checkpoint, {key: key for key in range(64)})
    state = checkpoint.open()
    put(state, dict.fromkeys(range(64), -1))
    chunks = keyed.merged_chunks

    def broken(*args: Any, **kwargs: Any) -> Iterator[Any]:
        yield next(chunks(*args, **kwargs))
        raise OSError("read error")

    monkeypatch.setattr(keyed, "merged_chunks", broken)
    with pytest.raises(OSError, match="read error"):
        state.flush("state/new.arrow")
    assert not checkpoint.store.exists("state/new.arrow")


def test_state_without_key_columns_is_one_entry_per_hash(checkpoint: Checkpoint) -> None:
    checkpoint.schema = StateSchema(pa.schema([]), pa.schema([("n", pa.int64())]))
    keys = pa.RecordBatch.from_arrays([], schema=checkpoint.schema.keys)
    for number in (1, 2):
        state = checkpoint.open()
        values = pa.RecordBatch.from_arrays([pa.array([number])], schema=checkpoint.schema.values)
        state.update(np.array([42]), keys, values)
        checkpoint.finish(state)
    answer = checkpoint.open().lookup(np.array([42, 42]), keys)
    assert answer.values.to_pydict() == {"n": [2, 2]}
