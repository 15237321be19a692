"""State and rows in flight as Arrow tables: equal to what the engine reads, whatever kept the state (G1, E3)."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from datetime import timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as pen
from penstock.errors import ConfigError, NoSuchCheckpoint
from penstock.observe.tables.opened import OpenFolder
from penstock.testing import Harness, stream_of
from tests.support.table_cases import AGGREGATES, BEGIN, CASES, ROWS, Case, rows

ALL_TABLES = [(name, table) for name, case in CASES.items() for table in case.tables]


def fed(case: Case, seed: int, epochs: int = 3) -> Harness:
    random = Random(seed)
    harness = Harness(case.make(), parallelism=random.choice([1, 2, 3]), steps=random.choice([None, 2]), seed=seed)
    for _ in range(epochs):
        case.feed(harness, random)
        if random.random() < 0.3:
            harness.rescale(random.choice([1, 2, 4]))
    return harness


def look(harness: Harness) -> OpenFolder:
    return OpenFolder(harness._store)


def bag(found: list[dict[str, Any]]) -> Counter[Any]:
    return Counter(repr(sorted(row.items(), key=lambda item: item[0])) for row in found)


@pytest.mark.parametrize(("name", "table"), ALL_TABLES)
@settings(deadline=None, max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_state_is_what_the_engine_reads(name: str, table: str, seed: int) -> None:
    harness = fed(CASES[name], seed)
    scan = look(harness).state("it", table, raw=True)
    found = [{column: value for column, value in row.items() if column != "_key_group"} for row in scan.to_pylist()]
    assert bag(found) == bag(harness.state("it", table))


@pytest.mark.parametrize(("name", "table"), ALL_TABLES)
@settings(deadline=None, max_examples=2)
@given(seed=st.integers(0, 10_000))
def test_a_key_and_a_part_of_the_key_groups_are_parts_of_the_whole(name: str, table: str, seed: int) -> None:
    folder = look(fed(CASES[name], seed))
    whole = folder.state("it", table)
    everything = whole.to_pylist()
    halves = [row for part in ((0, 8), (8, 16)) for row in folder.state("it", table, key_groups=part).to_pylist()]
    assert bag(halves) == bag(everything)
    keys = ("user", "shop") if name == "aggregate" else ("key",) if table == "limits" else ("user",)
    for row in everything[:5]:
        if table == "progress":
            continue
        key = {column: row[column] for column in keys}
        wanted = [other for other in everything if {column: other[column] for column in keys} == key]
        assert bag(folder.state("it", table, key=key).to_pylist()) == bag(wanted)


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=3)
@given(seed=st.integers(0, 10_000))
def test_rows_in_flight_are_those_that_epochs_still_process(name: str, seed: int) -> None:
    """Every row that is fed is counted once by an operator in front, or is in flight."""
    harness = fed(CASES[name], seed, epochs=2)
    folder = look(harness)
    found = {edge: folder.in_flight(edge).to_table() for edge in folder.edges}
    assert sum(table.num_rows for table in found.values()) == harness.rows_in_flight
    for edge, table in found.items():
        assert set(table.column("_edge").to_pylist()) <= {edge}
        halves = [folder.in_flight(edge, key_groups=part).count() for part in ((0, 8), (8, 16))]
        assert sum(halves) == table.num_rows


def test_rows_in_flight_keep_their_order_and_their_columns() -> None:
    harness = Harness(stream_of(ROWS).key_by("user").aggregate(name="it", n=pen.count()), steps=1, parallelism=1)
    numbered = [{**row, "user": 1, "price": number} for number, row in enumerate(rows(Random(1), 5000))]
    harness.feed(pa.Table.from_pylist(numbered, schema=ROWS))
    waiting = look(harness).in_flight(key=1, columns=["price", "_epoch", "_arrival", "_subtask", "_watermark"])
    found = waiting.to_table()
    assert 0 < found.num_rows == harness.rows_in_flight
    prices = found.column("price").to_pylist()
    assert prices == sorted(prices)
    assert prices[-1] == 4999
    assert found.schema.names == ["price", "_epoch", "_arrival", "_subtask", "_watermark"]
    assert set(found.column("_subtask").to_pylist()) == {0}


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_aggregates_read_as_what_they_last_emitted(seed: int) -> None:
    harness = fed(CASES["aggregate"], seed)
    harness.settle()
    newest = {(row["user"], row["shop"]): row for row in harness.output()}
    found = look(harness).state("it", columns=["user", "shop", *AGGREGATES]).to_pylist()
    assert bag(found) == bag(list(newest.values()))


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_the_best_rows_read_as_ranks(seed: int) -> None:
    harness = fed(CASES["top_n"], seed)
    harness.settle()
    newest = {(row["user"], row["rank"]): row for row in harness.output()}
    found = look(harness).state("it").to_pylist()
    assert bag([{k: v for k, v in row.items() if k != "_key_group"} for row in found]) == bag(list(newest.values()))


@pytest.mark.parametrize("name", ["tumbling", "session", "top_n of windows"])
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10_000))
def test_windows_read_as_what_they_will_emit(name: str, seed: int) -> None:
    """What is read before the end comes out when time has passed."""
    harness = Harness(CASES[name].make(), seed=seed)
    harness.feed(rows(Random(seed), 40))
    emitted = len(harness.output())
    found = look(harness).state("it").to_pylist()
    columns = [column for column in (found[0] if found else {}) if column != "_key_group"]
    far = {"user": 999, "ts": BEGIN + timedelta(days=2)}
    harness.feed([far])
    harness.settle()
    later = [row for row in harness.output()[emitted:] if row["user"] != 999]
    assert bag([{c: row[c] for c in columns} for row in found]) == bag([{c: row[c] for c in columns} for row in later])


def test_a_sliding_window_reads_as_panes() -> None:
    harness = Harness(CASES["sliding"].make())
    harness.feed([{"user": 1, "ts": BEGIN + timedelta(seconds=second)} for second in (5, 15, 25)])
    found = look(harness).state("it", columns=["user", "pane_start", "pane_end", "n"]).to_pylist()
    assert sorted((row["pane_start"], row["pane_end"], row["n"]) for row in found) == [
        (BEGIN, BEGIN + timedelta(seconds=20), 2),
        (BEGIN + timedelta(seconds=20), BEGIN + timedelta(seconds=40), 1),
    ]


def test_a_join_reads_as_the_rows_that_wait_for_a_match() -> None:
    harness = Harness(CASES["join"].make())
    left = {"user": 1, "shop": "a", "x": 1.0, "price": 1, "ts": BEGIN}
    harness.feed(a=[left], b=[{**left, "shop": "b", "ts": BEGIN + timedelta(seconds=5)}])
    (row,) = look(harness).state("it", "left").to_pylist()
    assert (row["user"], row["shop"], row["ts"], row["_event_time"], row["_matched"]) == (1, "a", BEGIN, BEGIN, True)
    (deadline,) = look(harness).state("it", "left_deadlines").to_pylist()
    assert (deadline["user"], deadline["deadline"] - deadline["event_time"]) == (
        1,
        timedelta(seconds=20, microseconds=1),
    )


def test_expired_values_are_not_there() -> None:
    harness = Harness(CASES["expiring"].make(), now=BEGIN)
    harness.feed([{"user": 1}, {"user": 2}])
    assert look(harness).state("it").count() == 2
    harness.pass_time("20 s")
    harness.feed([{"user": 4}])
    found = {row["user"]: (row["short"], row["long"]) for row in look(harness).state("it").to_pylist()}
    assert found == {2: (None, 2), 4: (1, 2)}


def test_timers_read_as_moments() -> None:
    harness = Harness(CASES["process"].make(), now=BEGIN)
    harness.feed([{"user": 7, "ts": BEGIN}])
    (timer,) = look(harness).state("it", "timers").to_pylist()
    assert (timer["user"], timer["timer"], timer["clock"]) == (7, "later", "processing")
    assert timer["due"] == BEGIN + timedelta(hours=1)


def test_duplicates_are_remembered_until_a_moment_or_for_good() -> None:
    forever, within = (Harness(CASES[name].make()) for name in ("deduplicate", "deduplicate within"))
    for harness in (forever, within):
        harness.feed([{"user": 1, "shop": "a", "ts": BEGIN}])
    assert look(forever).state("it").to_pylist()[0]["until"] is None
    assert look(within).state("it").to_pylist()[0]["until"] == BEGIN + timedelta(minutes=1)


def test_a_key_that_was_never_seen_has_no_rows() -> None:
    harness = fed(CASES["batch_process"], 3)
    assert look(harness).state("it", key=12345).to_pylist() == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda folder: folder.state("totals"), "there is no state 'totals'"),
        (lambda folder: folder.state("it", "timer"), "with a table 'timer'"),
        (lambda folder: folder.state("it", columns=["nn"]), "there is no column 'nn'"),
        (lambda folder: folder.state("it", key=("a", "b")), "the key has these columns: user int64"),
        (lambda folder: folder.state("it", key="a"), "the key has these columns: user int64"),
        (lambda folder: folder.state("it", key_groups=(3, 99)), "key groups 0 to 15"),
        (lambda folder: folder.in_flight("a-to-b"), "there is no edge 'a-to-b'"),
    ],
)
def test_a_name_that_is_not_there_is_told_with_those_that_are(call: Any, says: str) -> None:
    folder = look(fed(CASES["batch_process"], 3))
    with pytest.raises(ConfigError, match=re.escape(says)):
        call(folder)


def test_several_edges_want_a_name() -> None:
    folder = look(fed(CASES["join"], 3))
    with pytest.raises(ConfigError, match="2 edges, and none was named"):
        folder.in_flight()


def test_lists_of_checkpoints_and_files_say_what_the_manifest_says() -> None:
    harness = fed(CASES["tumbling"], 5)
    folder = look(harness)
    newest = folder.manifest
    row = folder.checkpoints().to_pylist()[-1]
    assert (row["checkpoint"], row["rows_in_flight"], row["error"]) == (newest.checkpoint, harness.rows_in_flight, None)
    files = folder.files().to_pylist()
    assert {file["path"] for file in files} == newest.files()
    assert sum(file["rows_left"] or 0 for file in files) == harness.rows_in_flight


def test_an_older_checkpoint_is_read_as_it_was() -> None:
    harness = Harness(CASES["aggregate"].make())
    harness.feed([{"user": 1, "shop": "a"}])
    before = look(harness).manifest.checkpoint
    harness.feed([{"user": 1, "shop": "a"}] * 4)
    counts = [OpenFolder(harness._store, at).state("it", columns=["n"]).to_pylist() for at in (before, None)]
    assert counts == [[{"n": 1}], [{"n": 5}]]
    with pytest.raises(NoSuchCheckpoint):
        _ = OpenFolder(harness._store, 99).manifest


def test_other_libraries_read_a_scan_as_a_stream() -> None:
    duckdb = pytest.importorskip("duckdb")
    scan = look(fed(CASES["batch_process"], 3)).state("it")
    counted = duckdb.connect().register("looked_at", scan.to_reader()).sql("SELECT count(*) FROM looked_at")
    assert counted.fetchall() == [(scan.count(),)]


def test_nan_and_zero_keys_are_found() -> None:
    harness = Harness(stream_of(ROWS).key_by("x").aggregate(name="it", n=pen.count()))
    harness.feed([{"x": math.nan}, {"x": -0.0}, {"x": 0.0}])
    found = {repr(key): look(harness).state("it", key=key, columns=["n"]).to_pylist() for key in (math.nan, 0.0, -0.0)}
    assert found == {"nan": [{"n": 1}], "0.0": [{"n": 2}], "-0.0": [{"n": 2}]}


def test_columns_of_ours_give_way_to_the_users() -> None:
    schema = pa.schema({"_key_group": pa.int64(), "_edge": pa.string()})
    harness = Harness(stream_of(schema).key_by("_key_group").aggregate(name="it", n=pen.count()), steps=1)
    harness.feed([{"_key_group": 1, "_edge": "mine"}] * 5000)
    assert look(harness).state("it").schema.names == ["_key_group", "n", "__key_group"]
    assert {"_edge", "__edge", "_key_group", "__key_group"} <= set(look(harness).in_flight().schema.names)


def test_every_kind_of_state_is_among_the_cases() -> None:
    kinds = defaultdict(set)
    for case in CASES.values():
        for name, shape in look(Harness(case.make())).manifest.shape.operators.items():
            if name == "it":
                kinds[shape.kind.partition("/")[0]] |= set(shape.state)
    assert set(kinds) == {
        *("aggregate", "batch_process", "connect", "deduplicate", "join", "process", "session_window"),
        *("sliding_window", "top_n", "tumbling_window"),
    }
