"""User code over whole slices: state as columns, against a dictionary (D3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import OperatorFailed
from penstock.operators.base import OperatorContext
from penstock.operators.process.batch_process import SliceProcess
from penstock.protocol.keygroups import KeyGroupRange
from penstock.records import MAIN_STATE
from penstock.state.keyed import KeyedState
from penstock.store import MemoryStore
from penstock.testing import Harness, stream_of
from tests.support.operator_harness import records

SCHEMA = pa.schema([("user", pa.string()), ("amount", pa.int64())])


class Totals(pen.BatchProcess):
    """Running sum and the epoch-independent number of rows; a total of 0 forgets the key."""

    output = pa.schema([("user", pa.string()), ("total", pa.int64())])
    total = pen.value_state(pa.int64())

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
        added = np.bincount(keys.numbers, batch["amount"].to_numpy(), keys.count).astype(np.int64)
        total = pc.add(state.total.fill_null(0), pa.array(added))
        state.total = pc.if_else(pc.equal(total, 0), None, total)
        return pa.RecordBatch.from_arrays([keys.batch["user"], total], ["user", "total"])


ROWS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.integers(-2, 2)), max_size=10)


@settings(deadline=None, max_examples=20)
@given(batches=st.lists(ROWS, min_size=1, max_size=5), steps=st.sampled_from([None, 2]), crash=st.integers(0, 4))
def test_columns_of_state_follow_their_keys(batches: list[Any], steps: int | None, crash: int) -> None:
    """D3, A8."""
    harness = Harness(stream_of(SCHEMA).key_by("user").process(Totals, name="totals"), steps=steps)
    totals: dict[str | None, int] = {}
    for number, batch in enumerate(batches):
        harness.rescale(1 + number % 3)
        if number == crash:
            harness.crash()
        harness.feed([{"user": user, "amount": amount} for user, amount in batch])
        for user, amount in batch:
            totals[user] = totals.get(user, 0) + amount
    harness.settle()
    assert {row["user"]: row["total"] for row in harness.output()} == totals
    assert {row["user"]: row["total"] for row in harness.state("totals")} == {
        user: total for user, total in totals.items() if total
    }


class Reusing(pen.BatchProcess):
    """Computes into the same memory in every call, and gives it away as state and as output."""

    output = pa.schema([("k", pa.int64()), ("total", pa.int64())])
    total = pen.value_state(pa.int64())
    moment = pen.value_state(pa.timestamp("us"))

    def open(self) -> None:
        self.buffer = np.zeros(8, np.int64)

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
        total = self.buffer[: keys.count]
        total[:] = state.total.fill_null(0).to_numpy()
        np.add.at(total, keys.numbers, batch["v"].to_numpy())
        state.total, state.moment = pa.array(total), pa.chunked_array([pa.array(total)])
        return pa.record_batch({"k": keys.batch["k"], "total": pa.array(total)})


def test_memory_that_user_code_uses_again_changes_neither_state_nor_output() -> None:
    """D3."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    spec = SliceProcess.declare("totals", schema, ("k",), Reusing, resolve=pa.type_for_alias)
    state = KeyedState.open(MemoryStore(), [], KeyGroupRange(0, 8), spec.state_tables[MAIN_STATE], 8)
    operator = spec.build(OperatorContext({MAIN_STATE: state}))
    batches = [pa.record_batch([[k], [v]], schema=schema) for k, v in ((1, 10), (2, 20), (1, 1))]
    output = [part for batch in batches for part in operator.process(records(batch, ["k"]))]
    assert [part.to_pydict() for part in output] == [
        {"k": [1], "total": [10]}, {"k": [2], "total": [20]}, {"k": [1], "total": [11]},
    ]  # fmt: skip
    stored = pa.Table.from_batches(state.scan())
    totals = dict(zip(stored["k"].to_pylist(), stored["total"].to_pylist(), strict=True))
    assert totals == {1: 11, 2: 20}
    assert stored["moment"].cast(pa.int64()).to_pylist() == stored["total"].to_pylist()


class Recent(pen.BatchProcess):
    output = pa.schema([("user", pa.string()), ("before", pa.int64())])
    last = pen.value_state(pa.int64(), ttl="10 s")

    def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
        before = state.last
        state.last = pa.array(np.bincount(keys.numbers, minlength=keys.count))
        return pa.table({"user": keys.batch["user"], "before": before})


def test_a_time_to_live_holds_for_columns_too() -> None:
    """D3."""
    harness = Harness(stream_of(SCHEMA).key_by("user").process(Recent, name="recent"))
    row = {"user": "a", "amount": 1}
    assert harness.feed([row])[0]["before"] is None
    harness.pass_time("9 s")
    assert harness.feed([row, row])[0]["before"] == 1
    harness.pass_time("9 s")
    assert harness.feed([row])[0]["before"] == 2
    harness.pass_time("10 s")
    assert harness.feed([row])[0]["before"] is None


@pytest.mark.parametrize(
    ("column", "words"),
    [(pa.array([1, 2, 3]), "3 values for 1 keys"), ([1], "list for 1 keys"), (pa.array(["x"]), "x")],
)
def test_state_that_does_not_fit_is_refused(column: Any, words: str) -> None:
    """D8."""

    class Wrong(Totals):
        def process(self, batch: pa.RecordBatch, keys: Any, state: Any) -> Any:
            state.total = column

    with pytest.raises(OperatorFailed, match=words):
        Harness(stream_of(SCHEMA).key_by("user").process(Wrong)).feed([{"user": "a", "amount": 1}])
