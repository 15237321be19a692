"""State that user code has declared since the checkpoint was taken: null for the keys that are there (D3, E6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.api.outputs import Output
from penstock.errors import CheckpointMismatch
from penstock.operators.process.user_state import StateField, alive, state_schema, with_expiry
from penstock.testing.inline import InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of

SEEN = pa.schema([("user", pa.int64()), ("n", pa.int64()), ("since", pa.int64()), ("named", pa.int64())])


class Counts(pen.KeyedProcess):
    """Counts the rows of a key."""

    output = SEEN
    n = pen.value_state(pa.int64())

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + len(rows)
        out.emit(user=key["user"], n=state.n, since=None, named=None)


class CountsMore(pen.KeyedProcess):
    """The same, a release later: a value before the old one, a list, and a value with a time to live."""

    output = SEEN
    since = pen.value_state(pa.int64())
    n = pen.value_state(pa.int64())
    named = pen.list_state(pa.string())
    recent = pen.value_state(pa.int64(), ttl="1 hour")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + len(rows)
        state.since = (state.since or 0) + len(rows)
        state.named += [str(row["number"]) for row in rows]
        state.recent = (state.recent or 0) + len(rows)
        assert state.recent == len(state.named)
        out.emit(user=key["user"], n=state.n, since=state.since, named=len(state.named))


class CountsWithTimers(CountsMore):
    """And one more: timers, which need tables of their own."""

    def process(self, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None:
        super().process(key, rows, state, out)
        timers.after("1 hour")

    def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None:
        state.since = -1


def counting(code: type[pen.KeyedProcess], table: str) -> Output:
    return stream_of(SCHEMA).key_by("user").process(code, name="counts").write(Memory(table))


def last_rows(table: str) -> dict[int, dict[str, Any]]:
    return {row["user"]: row for row in memory_table(table).rows().to_pylist()}


def test_declaring_more_state_keeps_what_is_there(
    tmp_path: Path, clock: FakeClock, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    """D3, B2: also at another parallelism, with old and new files side by side, and merged."""
    run = InlineRun(batches_of(70, 4), clock)
    batches, run.batches = run.batches, run.batches[:2]
    run.start(counting(Counts, table), checkpoint=tmp_path, parallelism=3).await_termination(30)
    assert {row["n"] for row in last_rows(table).values()} == {20}
    run.batches = batches[:3]
    caplog.set_level("INFO", "penstock")
    run.start(counting(CountsMore, table), checkpoint=tmp_path, parallelism=2).await_termination(30)
    assert "state counts converted: with since int64, named list<item: string>" in caplog.text
    assert last_rows(table) == {user: {"user": user, "n": 30, "since": 10, "named": 10} for user in range(7)}
    run.batches = batches
    run.start(counting(CountsMore, table), checkpoint=tmp_path, parallelism=1).await_termination(30)
    assert last_rows(table) == {user: {"user": user, "n": 40, "since": 20, "named": 20} for user in range(7)}


def test_the_checkpoint_knows_the_new_state_and_refuses_the_old_code(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """E6: going back would drop what the newer code kept."""
    run = InlineRun(batches_of(70, 1), clock)
    run.start(counting(Counts, table), checkpoint=tmp_path).await_termination(30)
    query = run.start(counting(CountsMore, table), checkpoint=tmp_path)
    query.await_termination(30)
    columns = dict(query.manifest().shape.operators["counts"].state[""])
    assert {"user", "n", "since", "named", "recent"} < set(columns)
    with pytest.raises(CheckpointMismatch, match=r"state counts +refused .*forget=\['counts.since'\]"):
        run.start(counting(Counts, table), checkpoint=tmp_path)


def test_code_may_begin_to_use_timers(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """D3."""
    run = InlineRun(batches_of(70, 2), clock)
    batches, run.batches = run.batches, run.batches[:1]
    run.start(counting(CountsMore, table), checkpoint=tmp_path).await_termination(30)
    run.batches = batches
    run.start(counting(CountsWithTimers, table), checkpoint=tmp_path).await_termination(30)
    assert {(row["n"], row["since"]) for row in last_rows(table).values()} == {(20, 20)}


AGGREGATES = {
    "total": (pen.sum("number"), sum),
    "rows": (pen.count(), len),
    "lowest": (pen.min("number"), min),
    "mean": (pen.mean("number"), lambda seen: sum(seen) / len(seen)),
    "newest": (pen.last("number", ignore_nulls=True), lambda seen: seen[-1]),
    "oldest": (pen.first("number", ignore_nulls=True), lambda seen: seen[0]),
    "some": (pen.collect_list("number", 3), lambda seen: seen[:3]),
    "different": (pen.count_distinct("number"), lambda seen: len(set(seen))),
    "about": (pen.approx_count_distinct("number"), lambda seen: len(set(seen))),
    "spread": (pen.var_pop("number"), lambda seen: sum((n - sum(seen) / len(seen)) ** 2 for n in seen) / len(seen)),
}


@pytest.mark.parametrize("added", AGGREGATES)
def test_an_added_aggregate_begins_with_the_rows_that_come_from_now_on(
    tmp_path: Path, clock: FakeClock, table: str, added: str
) -> None:
    """F1: those that were there go on, over two more starts."""
    function, oracle = AGGREGATES[added]

    def sums(**aggregates: Any) -> Output:
        picked = pa.schema([("user", pa.int64()), ("n", pa.int64())])
        aggregated = stream_of(SCHEMA).key_by("user").aggregate(**aggregates, name="sums")
        if added in aggregates:
            return aggregated.write(Memory(table + "more"), name="more")
        return aggregated.map_batches(lambda batch: batch.select(picked.names), picked, name="pick").write(
            Memory(table), name="out"
        )

    run = InlineRun(batches_of(70, 3), clock)
    batches, run.batches = run.batches, run.batches[:1]
    run.start(sums(n=pen.count()), checkpoint=tmp_path).await_termination(30)
    for upto in (2, 3):
        run.batches = batches[:upto]
        run.start(sums(n=pen.count(), **{added: function}), checkpoint=tmp_path).await_termination(30)
        since = [n for batch in batches[1:upto] for n in batch["source"]["number"].to_pylist()]
        for user, row in last_rows(table + "more").items():
            assert row["n"] == 10 * upto
            assert row[added] == pytest.approx(oracle([n for n in since if n % 7 == user]))


def test_a_first_value_that_may_be_null_cannot_begin_later(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F3: nobody could tell a null that came first from nothing."""
    run = InlineRun(batches_of(70, 1), clock)
    keyed = stream_of(SCHEMA).key_by("user")
    run.start(keyed.aggregate(n=pen.count(), name="sums").write(Memory(table)), checkpoint=tmp_path).await_termination(
        30
    )
    more = keyed.aggregate(n=pen.count(), f=pen.first("number"), name="sums").write(Memory(table))
    with pytest.raises(CheckpointMismatch, match=r"state sums +refused .*f int64 cannot begin in the middle"):
        run.start(more, checkpoint=tmp_path)


def test_fewer_fields_are_named_and_wider_types_are_cast(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F1, F3."""

    def process(self: Any, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + len(rows)
        if hasattr(type(self), "extra"):
            state.extra = 1
        out.emit(user=key["user"], n=state.n, since=None, named=None)

    def code(kind: pa.DataType, *, extra: bool) -> type[pen.KeyedProcess]:
        fields = {"n": pen.value_state(kind), **({"extra": pen.value_state(pa.int64())} if extra else {})}
        return type("Code", (pen.KeyedProcess,), {"output": SEEN, "process": process, **fields})

    run = InlineRun(batches_of(70, 2), clock)
    batches, run.batches = run.batches, run.batches[:1]
    run.start(counting(code(pa.int32(), extra=True), table), checkpoint=tmp_path).await_termination(30)
    run.batches = batches
    fewer = counting(code(pa.int64(), extra=False), table)
    with pytest.raises(CheckpointMismatch, match=r"does not have extra any more; forget=\['counts.extra'\]"):
        run.start(fewer, checkpoint=tmp_path)
    run.start(fewer, checkpoint=tmp_path, forget=["counts.extra"], parallelism=3).await_termination(30)
    assert {row["n"] for row in last_rows(table).values()} == {20}


def test_a_value_that_gets_a_time_to_live_lives_until_it_is_written_again() -> None:
    """D3: nothing says when it was written."""
    fields = (StateField("x", pa.int64(), ttl_us=100), StateField("y", pa.int64(), ttl_us=100))
    stored = pa.RecordBatch.from_pylist(
        [
            {"x": 1, "y": None, "__expires_x": None, "__expires_y": None, "__expires": None},
            {"x": 2, "y": 2, "__expires_x": 50, "__expires_y": None, "__expires": None},
        ],
        schema=state_schema(fields),
    )
    assert [alive(stored, field, 60).to_pylist() for field in fields] == [[1, None], [None, 2]]
    values = [pa.array([1, 3]), pa.array([7, 2])]
    untouched_but = [pa.array([False, True]).to_numpy(False), pa.array([True, False]).to_numpy(False)]
    columns, empty = with_expiry(fields, stored, values, untouched_but, 60)
    assert not empty.any()
    x, y, row = (column.to_pylist() for column in columns[2:])
    assert (x, y, row) == ([None, 160], [160, None], [None, None])
