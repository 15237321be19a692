"""Rehearsals in the engine without Spark: what they tell, and that they leave nothing behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import penstock as pen
from penstock.engine import rehearse as rehearsing
from penstock.engine.active import active_queries
from penstock.engine.cluster import OfferedBatch
from penstock.engine.differences import compare
from penstock.engine.feed import Demand
from penstock.engine.naming import ByName
from penstock.engine.options import Config
from penstock.engine.query import Query
from penstock.engine.rehearse import Around, Launch, Wanted, rehearse
from penstock.engine.replay import NoMore, Recorded, ReplayFeed
from penstock.engine.start import Surroundings, start_query
from penstock.errors import CheckpointMismatch, ConfigError
from penstock.graph.compiler import compile_pipeline
from penstock.graph.pipeline import Pipeline
from penstock.observe.events import Event
from penstock.protocol.ids import BatchId
from penstock.sinks.base import Sink
from penstock.sinks.listeners import CommitInfo, CommitListener
from penstock.store import MemoryStore
from penstock.subtask.attempt import Limits
from penstock.testing.batch import TablesBatch
from penstock.testing.inline import InlineCluster, InlineFeed, InlineRun, stream_of
from penstock.testing.tables import Memory, memory_table
from tests.support.engine_jobs import SCHEMA, FakeClock, keyed_slow, tree, with_rows_in_flight


def inline(run: InlineRun, clock: FakeClock) -> Launch:
    """Starts queries on the same source, each with its own place in it."""

    def launch(
        pipeline: Pipeline, config: Config, listeners: tuple[Callable[[Event], None], ...], around: Around
    ) -> Query:
        accepted = list(range(len(run.accepted)))
        limits = Limits(segment_bytes=config.segment_bytes, prefetch_bytes=config.prefetch_bytes)
        surroundings = Surroundings(
            cluster=lambda store, _: InlineCluster(store, limits, clock),
            feed=lambda store: around(InlineFeed(run.batches, accepted), store),
        )
        return start_query(pipeline, config, surroundings, listeners)

    return launch


def wanted(folder: Path, *outputs: pen.Output, letters: Sink | None = None, **more: Any) -> Wanted:
    given = {"epochs": 5, "timeout_s": 60.0, "options": {"epoch": 0.1}, **more}
    names = frozenset({"dead_letters"} if letters is not None else ())
    return Wanted(str(folder), compile_pipeline([one.node for one in outputs], letters), letters=names, **given)


def contents(place: Path) -> dict[str, bytes]:
    return {path: (place / path).read_bytes() for path in tree(place)}


def parsed(clock: FakeClock, table: str, **write: Any) -> pen.Output:
    """The program of `with_rows_in_flight`, with one operator more."""

    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * 0.001
            state.seen = (state.seen or 0) + len(rows)
            out.emit_many(rows)

    ahead = stream_of(SCHEMA).map_batches(lambda batch: batch, name="parse")
    return ahead.key_by("user").process(Slow, name="slow").write(Memory(table), **write)


class Told(CommitListener):
    """Must not be called."""

    calls: ClassVar[list[CommitInfo]] = []

    @property
    def name(self) -> str:
        return "told"

    def on_commit(self, commit: CommitInfo, state: bytes) -> bytes:
        self.calls.append(commit)
        return state


def test_a_rehearsal_tells_what_the_program_did_and_leaves_everything_as_it_was(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """F8: original, table, listeners and the folder beside it."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    before, rows = contents(tmp_path), memory_table(table).rows()
    told = rehearse(wanted(tmp_path / "here", parsed(clock, table, commit_listeners=[Told()])), inline(run, clock))
    assert told.ok, told
    assert (told.checkpoint, told.figures.epochs >= 5) == (4, True)
    assert told.in_flight[0].rows > told.in_flight[1].rows
    assert 0 < sum(told.rows_out.values()) <= told.figures.rows_processed
    assert told.original.epochs >= 3
    assert contents(tmp_path) == before
    assert memory_table(table).rows() == rows
    assert Told.calls == []
    assert not active_queries()
    text, document = str(told), json.loads(told.to_json())
    assert "rehearsal of checkpoint 4" in text
    assert document["ok"] is True
    assert document["figures"]["epochs"] == told.figures.epochs


def test_a_rehearsal_ends_with_the_source(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F8: every row that the original has not written is written once, to nowhere."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    told = rehearse(wanted(tmp_path / "here", keyed_slow(clock, table), epochs=10_000), inline(run, clock))
    assert told.ok
    assert "the source had no more rows" in told.ended
    assert sum(told.rows_out.values()) == 2000 - memory_table(table).rows().num_rows
    assert told.in_flight[1].rows == 0
    assert tree(tmp_path) == {f"here/{path}" for path in tree(tmp_path / "here")}


def test_a_program_that_fails_is_told_and_leaves_nothing_behind(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F8."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    before = contents(tmp_path)

    class Failing(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            raise ValueError("no such price")

    output = stream_of(SCHEMA).key_by("user").process(Failing, name="slow").write(Memory(table))
    told = rehearse(wanted(tmp_path / "here", output), inline(run, clock))
    assert not told.ok
    assert told.error is not None
    assert (told.error.code, "no such price" in told.error.seen) == ("PEN-030", True)
    assert "PEN-030" in str(told)
    assert json.loads(told.to_json())["error"]["code"] == "PEN-030"
    assert contents(tmp_path) == before


def test_records_that_fail_are_counted_as_dead_letters(tmp_path: Path, clock: FakeClock, table: str) -> None:
    """F8, D8."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)

    def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
        if any(number % 500 == 0 for number in batch.column("number").to_pylist()):
            raise ValueError("not this one")
        return batch

    ahead = stream_of(SCHEMA).map_batches(picky, name="picky", on_error="dead_letter")
    output = parsed_behind(ahead, clock, table)
    letters = Memory(f"{table}-letters")
    told = rehearse(wanted(tmp_path / "here", output, letters=letters, epochs=10_000), inline(run, clock))
    assert told.ok, told
    written = set(memory_table(table).rows()["number"].to_pylist())
    assert told.dead_letters == len({0, 500, 1000, 1500} - written)
    assert memory_table(f"{table}-letters").schema is None


def parsed_behind(ahead: pen.Stream, clock: FakeClock, table: str) -> pen.Output:
    class Slow(pen.KeyedProcess):
        output = SCHEMA
        seen = pen.value_state(pa.int64())

        def process(self, key, rows, state, out):
            clock.now += len(rows) * 0.001
            out.emit_many(rows)

    return ahead.key_by("user").process(Slow, name="slow").write(Memory(table))


def test_a_program_that_does_not_fit_is_refused_and_leaves_nothing_behind(
    tmp_path: Path, clock: FakeClock, table: str
) -> None:
    """F3, F8."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    before = contents(tmp_path)
    other = stream_of(SCHEMA).key_by("user").aggregate(n=pen.count(), name="other").write(Memory(table))
    with pytest.raises(CheckpointMismatch, match="slow"):
        rehearse(wanted(tmp_path / "here", other), inline(run, clock))
    told = rehearse(wanted(tmp_path / "here", other, options={"epoch": 0.1, "forget": ["slow"]}), inline(run, clock))
    assert told.ok
    assert contents(tmp_path) == before


def test_ctrl_c_leaves_nothing_behind(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8."""
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    before = contents(tmp_path)
    waits = threading.Event()
    original = Query.await_termination

    def interrupted(self: Query, timeout: float | None = None) -> bool:
        if waits.is_set():
            raise KeyboardInterrupt
        waits.set()
        return original(self, timeout)

    monkeypatch.setattr(Query, "await_termination", interrupted)
    with pytest.raises(KeyboardInterrupt):
        rehearse(wanted(tmp_path / "here", keyed_slow(clock, table), epochs=10_000), inline(run, clock))
    assert contents(tmp_path) == before
    assert not active_queries()


def test_a_rehearsal_ends_when_its_time_is_over(tmp_path: Path, clock: FakeClock, table: str) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    told = rehearse(
        wanted(tmp_path / "here", keyed_slow(clock, table), epochs=10_000, timeout_s=0.0), inline(run, clock)
    )
    assert told.ok


def test_keys_need_a_sink_and_an_old_program(tmp_path: Path, clock: FakeClock, table: str) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    output = keyed_slow(clock, table)
    with pytest.raises(ConfigError, match="keys names 'x'"):
        rehearse(wanted(tmp_path / "here", output, keys={"x": ("user",)}), inline(run, clock))
    (name,) = (binding.name for binding in compile_pipeline([output.node]).sinks())
    with pytest.raises(ConfigError, match="keys without against"):
        rehearse(wanted(tmp_path / "here", output, keys={name: ("user",)}), inline(run, clock))


def test_what_the_new_program_did_not_get_through_is_not_compared(
    tmp_path: Path, clock: FakeClock, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_rows_in_flight(tmp_path / "here", clock, table)
    output = keyed_slow(clock, table)
    pipeline = compile_pipeline([output.node])
    (name,) = (binding.name for binding in pipeline.sinks())
    monkeypatch.setattr(rehearsing, "STOP_S", -1.0)
    told = rehearse(
        wanted(tmp_path / "here", output, old=pipeline, keys={name: ("user",)}, timeout_s=0.0), inline(run, clock)
    )
    assert told.ok
    assert told.differences == ()
    assert "did not get through" in str(told.not_compared)


# -- the same rows for two programs ------------------------------------------------------------------------------------


class Offering:
    """A feed that offers numbered batches, as Spark would: what is in the log first, then new ones."""

    naming = ByName()

    def __init__(self, *numbers: int) -> None:
        self.numbers, self.stopped = numbers, False

    def start(
        self,
        offer: Callable[[OfferedBatch], None],
        on_end: Callable[[], None],
        on_failure: Callable[[BaseException], None],
        demand: Demand,
    ) -> None:
        del demand
        try:
            for number in self.numbers:
                offer(OfferedBatch(BatchId(number), TablesBatch({}), "", ""))
        except NoMore as error:
            on_failure(error)
        else:
            on_end()

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("numbers", [(4,), (4, 5), ()])
def test_a_replay_offers_what_was_recorded_as_one_micro_batch_and_ends(numbers: tuple[int, ...]) -> None:
    """F8: entries of Spark's own log and those of its sources come along."""
    there, here = MemoryStore(), MemoryStore()
    for path, text in {
        "source/offsets/3": "old",
        "source/offsets/4": "first",
        "source/offsets/6": "last",
        "source/commits/4": "",
        "source/sources/0/6": "files",
        "source/metadata": "id",
    }.items():
        there.create(path, text.encode())
    recorded = Recorded(there, BatchId(4), BatchId(6 if numbers else 3))
    offered, ends, failures = [], [], []
    feed = ReplayFeed(Offering(*numbers), here, recorded)  # type: ignore[arg-type]
    feed.start(lambda b: offered.append(b.batch_id), lambda: ends.append(1), failures.append, None)  # type: ignore[arg-type]
    assert offered == list(numbers[:1])
    assert (ends, failures) == ([1], [])
    if numbers:
        assert here.read("source/offsets/4") == b"last"
        assert {entry.path for entry in here.list("")} == {"source/offsets/4", "source/sources/0/6"}


# -- differences -------------------------------------------------------------------------------------------------------


def table_of(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows))


def test_only_the_last_row_of_a_key_counts() -> None:
    new = [table_of({"user": 1, "n": 1}), table_of({"user": 1, "n": 2}, {"user": 2, "n": 5})]
    old = [table_of({"user": 2, "n": 4}, {"user": 2, "n": 5}, {"user": 1, "n": 2})]
    found = compare("out", ["user"], new, old)
    assert (found.same, found.changed, found.only_new, found.only_old, found.any) == (2, 0, 0, 0, False)


def test_differences_are_told_by_column_with_examples() -> None:
    new = [
        table_of(
            {"user": 1, "n": 2, "x": 1.0}, {"user": 3, "n": None, "x": float("nan")}, {"user": None, "n": 7, "x": 0.0}
        )
    ]
    old = [
        table_of({"user": 1, "n": 1, "x": 1.0}, {"user": 3, "n": 1, "x": float("nan")}, {"user": 4, "n": 7, "x": 0.0})
    ]
    found = compare("out", ["user"], new, old)
    assert (found.same, found.changed, found.only_new, found.only_old) == (0, 2, 1, 1)
    assert found.columns == {"n": 2}
    assert {example["old"]["n"] for example in found.examples} == {1}


def test_columns_that_only_one_program_has_are_told() -> None:
    found = compare("out", ["k"], [table_of({"k": "a", "new": [1]})], [table_of({"k": "a", "old": 2})])
    assert (found.same, found.columns_added, found.columns_removed, found.any) == (1, ("new",), ("old",), True)
    assert compare("out", ["k"], [], []).any is False
    assert compare("out", ["k"], [table_of({"k": 1})], []).only_new == 1
    with pytest.raises(ConfigError, match="names 'zzz'"):
        compare("out", ["zzz"], [table_of({"k": 1})], [table_of({"k": 1})])
