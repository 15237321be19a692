"""Names of everything in a pipeline are unique, whatever was given and whatever was made, and can be folders."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as pen
from penstock.api.stream import Stream
from penstock.errors import PipelineError
from penstock.graph.compiler import compile_pipeline
from penstock.graph.names import edge_names
from penstock.graph.pipeline import Pipeline
from penstock.testing import Harness, stream_of
from penstock.testing.inline import InlineRun
from penstock.testing.tables import Memory

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
TIMED = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def rows(count: int) -> list[dict[str, Any]]:
    return [{"k": number % 5, "n": number} for number in range(count)]


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def compiled(*streams: Stream) -> Pipeline:
    return compile_pipeline([part.write(Memory(f"t{number}")).node for number, part in enumerate(streams)])


def counts(emitted: list[dict[str, Any]]) -> Counter[int]:
    return Counter(row["n"] for row in emitted)


# -- edges -------------------------------------------------------------------------------------------------------------


def old_name(producer: str, consumer: str, others: list[str]) -> str:
    """How edges were named when they were only looked at from their consumer."""
    name, count = f"{producer}-to-{consumer}", 1
    while (unique := name if count == 1 else f"{name}-{count}") in others:
        count += 1
    return unique


STAGES = ("x", "x-2", "x-2-2", "u", "u-2", "u-3", "a-to-u", "a", "u-to-x", "to")


@given(st.lists(st.tuples(st.sampled_from(STAGES), st.sampled_from(STAGES)), max_size=12))
def test_edges_never_share_a_name_and_those_that_never_did_keep_theirs(ends: list[tuple[str, str]]) -> None:
    by_consumer: dict[str, list[str]] = {}
    before = []
    for producer, consumer in ends:
        inputs = by_consumer.setdefault(consumer, [])
        inputs.append(old_name(producer, consumer, inputs))
        before.append(inputs[-1])
    now = edge_names(ends)
    assert len(set(now)) == len(now)
    assert [name for name, old in zip(now, before, strict=True) if before.count(old) == 1] == [
        name for name in before if before.count(name) == 1
    ]
    assert set(before) <= set(now)


def test_rows_of_a_self_union_beside_another_union_reach_their_own_operator() -> None:
    x = stream_of(SCHEMA, "s").map_batches(same)
    y = stream_of(SCHEMA, "t").map_batches(same)
    harness = Harness(x.union(x), both=x.union(y), steps=20)
    harness.feed(s=rows(1_200), t=rows(30))
    harness.settle()
    assert counts(harness.output()) == Counter(dict.fromkeys(range(1_200), 2))
    assert counts(harness.output("both")) == Counter(list(range(1_200)) + list(range(30)))


def test_rows_of_three_unions_of_one_stream_reach_their_own_operator() -> None:
    x = stream_of(SCHEMA, "s").filter(pc.field("n") >= 0)
    harness = Harness(x.union(x, x), second=x.union(x), third=x.union(x, x, x))
    harness.feed(rows(100))
    harness.settle()
    for output, times in (("main", 3), ("second", 2), ("third", 4)):
        assert counts(harness.output(output)) == Counter(dict.fromkeys(range(100), times))


def test_rows_of_a_diamond_come_once_by_each_way() -> None:
    x = stream_of(SCHEMA, "s").map_batches(same)
    left, right = x.filter(pc.field("n") < 50), x.filter(pc.field("n") >= 50)
    harness = Harness(left.union(right), again=right.union(left, x))
    harness.feed(rows(100))
    harness.settle()
    assert counts(harness.output()) == Counter(range(100))
    assert counts(harness.output("again")) == Counter(dict.fromkeys(range(100), 2))


def test_a_stream_joined_with_itself_twice_finds_each_pair_once_per_join() -> None:
    x = stream_of(TIMED, "s", event_time="ts").map_batches(same)
    keyed = x.key_by("k")
    harness = Harness(keyed.join(keyed, within=0), again=keyed.join(keyed, within=0), twice=x.union(x))
    harness.feed([{"k": number, "ts": number} for number in range(20)])
    harness.settle()
    assert [len(harness.output(name)) for name in ("main", "again", "twice")] == [20, 20, 40]


def test_names_that_hold_to_between_dashes_do_not_make_one_edge_of_two() -> None:
    """`a-to-b` before `c`, and `a` before `b-to-c`."""
    source = stream_of(SCHEMA, "s")
    first = source.map_batches(same, name="a-to-b").union(source.filter(pc.field("n") < 3), name="c")
    second = source.map_batches(same, name="a").union(source.filter(pc.field("n") < 3), name="b-to-c")
    harness = Harness(first, second=second)
    harness.feed(rows(10))
    harness.settle()
    assert [len(harness.output(name)) for name in ("main", "second")] == [13, 13]


# -- a finished pipeline -----------------------------------------------------------------------------------------------


def renamed(pipeline: Pipeline, stage: int, edge: int, name: str) -> Pipeline:
    found = pipeline.stages[stage]
    inputs = list(found.inputs)
    inputs[edge] = dataclasses.replace(inputs[edge], name=name)
    stages = list(pipeline.stages)
    stages[stage] = dataclasses.replace(found, inputs=tuple(inputs))
    return dataclasses.replace(pipeline, stages=tuple(stages))


def test_a_pipeline_with_two_edges_of_one_name_cannot_be_made() -> None:
    pipeline = compiled(stream_of(SCHEMA, "s").union(stream_of(SCHEMA, "t")))
    with pytest.raises(PipelineError, match="several edges have the name 's-to-union'"):
        renamed(pipeline, 0, 1, "s-to-union")


def test_a_pipeline_whose_edges_are_read_by_nobody_cannot_be_made() -> None:
    source = stream_of(SCHEMA, "s").map_batches(same)
    pipeline = compiled(source.union(source))
    with pytest.raises(AssertionError, match="are not those that are read"):
        renamed(pipeline, 1, 1, "elsewhere")


@pytest.mark.parametrize("part", ["sources", "stages"])
def test_a_pipeline_with_the_same_part_twice_cannot_be_made(part: str) -> None:
    pipeline = compiled(stream_of(SCHEMA, "s").map_batches(same))
    with pytest.raises(PipelineError, match="several sources, operators or sinks have the name"):
        dataclasses.replace(pipeline, **{part: getattr(pipeline, part) * 2})


# -- given names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".", "..", ".tmp-1", "a/b", "a\0", "ä", "x" * 81, "a\n"])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: compiled(stream_of(SCHEMA, name).map_batches(same)),
        lambda name: compiled(stream_of(SCHEMA).map_batches(same, name=name)),
        lambda name: compile_pipeline([stream_of(SCHEMA).write(Memory("t"), name=name).node]),
    ],
)
def test_what_cannot_be_a_folder_is_no_name(make: Callable[[str], Pipeline], name: str) -> None:
    with pytest.raises(PipelineError, match="is not a name"):
        make(name)


def test_a_given_name_that_another_part_was_given_by_default_is_refused() -> None:
    first = stream_of(SCHEMA, "s").union(stream_of(SCHEMA, "t"))
    with pytest.raises(PipelineError, match="the name 'union' is used twice"):
        compiled(first, first.map_batches(same, name="union"))


def test_a_table_of_state_is_not_a_broadcast_map_of_its_operator() -> None:
    class Clashing(pen.ConnectProcess):
        inputs = ("rows", "rules")
        output = "k bigint"
        timers = pen.broadcast_map("string", "bigint")

        def process(self, port: str, key: Any, rows: Any, state: Any, out: Any, timers: Any) -> None: ...
        def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None: ...
        def on_timer(self, key: Any, time: Any, state: Any, out: Any, timers: Any) -> None: ...

    keyed = stream_of(SCHEMA, "s").key_by("k")
    with pytest.raises(PipelineError, match="'timers' is a table of state twice"):
        keyed.connect(stream_of(SCHEMA, "t").broadcast(), process=Clashing)


# -- names and file systems --------------------------------------------------------------------------------------------


def run(stream: Stream, folder: Path, **options: Any) -> None:
    data = {"s": pa.Table.from_pylist(rows(10), schema=SCHEMA)}
    query = InlineRun([data], clock=lambda: 0.0).start(
        stream.write(Memory(str(folder))), checkpoint=str(folder), trigger="available_now", **options
    )
    assert query.await_termination(30)


@pytest.mark.parametrize("name", [".hidden", "dot.", "NUL", "com1.x"])
def test_a_new_query_has_no_names_that_only_some_file_systems_know(name: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="some file systems"):
        run(stream_of(SCHEMA, "s").map_batches(same, name=name), tmp_path / "c")
    assert not (tmp_path / "c").exists() or not list((tmp_path / "c").iterdir())


def test_a_new_query_has_no_names_that_differ_only_in_case(tmp_path: Path) -> None:
    stream = stream_of(SCHEMA, "s").map_batches(same, name="Clean").map_batches(same, name="clean")
    with pytest.raises(PipelineError, match="'Clean' and 'clean', which differ only in upper and lower case"):
        run(stream, tmp_path / "c")


def test_a_checkpoint_that_has_such_names_already_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = stream_of(SCHEMA, "s").map_batches(same, name="Clean").map_batches(same, name="clean")
    with monkeypatch.context() as older:
        older.setattr(Pipeline, "require_portable_names", lambda _: None)
        run(stream, tmp_path / "c")
    run(stream, tmp_path / "c")


# -- keys that are handed on -------------------------------------------------------------------------------------------


class Renaming(pen.KeyedProcess):
    """Gives the name of the key to a column of another type."""

    output = "k array<bigint>, n bigint"

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"k": [key["k"]], "n": row["n"]} for row in rows)


def test_a_column_with_the_name_of_the_key_need_not_be_one_behind_the_operator() -> None:
    made = stream_of(SCHEMA, "s").key_by("k").process(Renaming)
    harness = Harness(made.union(made), parallelism=2)
    harness.feed(rows(100))
    harness.settle()
    assert counts(harness.output()) == Counter(dict.fromkeys(range(100), 2))


class Texting(pen.KeyedProcess):
    output = "k string, n bigint"

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"k": str(key["k"]), "n": row["n"]} for row in rows)


def test_a_key_of_another_type_that_can_be_a_key_is_handed_on_as_before() -> None:
    made = stream_of(SCHEMA, "s").key_by("k").process(Texting)
    edges = {edge.name: edge.keys for edge in compiled(made.union(made)).edges()}
    assert edges["process-to-union"] == edges["process-to-union-2"] == ("k",)
