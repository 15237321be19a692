"""Strings that are not UTF-8, which Spark makes of any bytes, are records like all others: they pass, or they fail as
records that fail."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock as pen
from penstock.display import record_of, whole_record
from penstock.errors import OperatorFailed, SubtaskFailed
from penstock.sinks.paimon.files import groups_of
from penstock.sinks.rowkind import row_kinds
from penstock.testing import Harness, stream_of

TEXTS = [b"caf\xc3\xa9", b"caf\xe9", b"", b"\xff\xfe", b"\xed\xa0\x80"]
"""The second and the last two are no UTF-8: Latin-1, no character at all, half a character."""
BAD = {1, 3, 4}
MOMENT = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string()), ("ts", MOMENT)])


def strings(values: list[bytes | None]) -> pa.Array:
    """Not looked into, as Spark hands them over."""
    return pa.array(values, pa.binary()).view(pa.string())


def table(repeat: int = 1) -> pa.Table:
    texts = TEXTS * repeat
    moments = pa.array(range(len(texts)), pa.int64()).cast(MOMENT)
    return pa.Table.from_arrays([pa.array(range(len(texts)), pa.int64()), strings(texts), moments], schema=SCHEMA)


def source(name: str = "source") -> pen.Stream:
    return stream_of(SCHEMA, name, event_time="ts")


class Keyed(pen.KeyedProcess):
    """Hands keys on."""

    output = "k bigint"

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"k": row["k"]} for row in rows)


async def key_alone(row: dict[str, Any]) -> dict[str, Any]:
    return {"k": row["k"]}


def read_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch["s"].to_pylist()
    return batch.select(["k"])


BUILDS: dict[str, Callable[..., pen.Stream]] = {
    "flat_map": lambda **o: source().flat_map(lambda row: [{"k": row["k"]}], "k bigint", **o),
    "map_async": lambda **o: source().map_async(key_alone, "k bigint", **o),
    "map_batches": lambda **o: source().map_batches(read_texts, "k bigint", **o),
    "process": lambda **o: source().key_by("k").process(Keyed, **o),
    "process by text": lambda **o: source().key_by("s").process(Keyed, **o),
    "process by both": lambda **o: source().key_by("s", "k").process(Keyed, **o),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_a_record_that_is_not_utf8_is_a_dead_letter_once(kind: str) -> None:
    stream = BUILDS[kind](on_error="dead_letter", name="careful")
    harness = Harness(stream, letters=stream.side("dead_letters"), parallelism=2)
    harness.feed(table())
    harness.crash()
    harness.feed(table())
    harness.settle()
    assert Counter(row["k"] for row in harness.output()) == Counter({0: 2, 2: 2})
    letters = harness.output("letters")
    shown = Counter(json.loads(letter["record"])["s"] for letter in letters)
    assert shown == Counter({r"caf\xe9": 2, r"\xff\xfe": 2, r"\xed\xa0\x80": 2})
    assert {letter["operator"] for letter in letters} == {"careful"}


@pytest.mark.parametrize("kind", BUILDS)
def test_a_record_that_is_not_utf8_is_named_when_it_stops_the_query(kind: str) -> None:
    with pytest.raises(OperatorFailed) as caught:
        Harness(BUILDS[kind](name="careful"), parallelism=1).feed(table().slice(2, 2))
    message = str(caught.value)
    assert "careful" in message
    assert "subtask 0" in message
    assert r"\\xff\\xfe" in message
    assert "utf-8" in message.lower()


@pytest.mark.parametrize("kind", sorted(set(BUILDS) - {"map_batches"}))
def test_the_message_says_what_is_wrong_and_how_to_repair_it(kind: str) -> None:
    with pytest.raises(OperatorFailed, match=r"column 's' holds bytes that are not UTF-8") as caught:
        Harness(BUILDS[kind]()).feed(table())
    assert "make_valid_utf8(s)" in caught.value.next_step
    assert caught.value.fields["exception"] == "Unreadable"


class Connected(pen.ConnectProcess):
    """Takes rows of both inputs."""

    inputs = ("rows", "rules")
    output = "k bigint"
    rules = pen.broadcast_map("string", "bigint")

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"k": row["k"]} for row in rows)

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        for row in rows:
            broadcast.rules[row["s"]] = row["k"]


@pytest.mark.parametrize("given", ["a", "b"])
@pytest.mark.parametrize("keyed", [True, False])
def test_code_over_several_inputs_names_the_record_too(given: str, keyed: bool) -> None:
    rows = source("a").key_by("s") if keyed else source("a")
    harness = Harness(rows.connect(source("b").broadcast(), process=Connected))
    with pytest.raises(OperatorFailed, match="holds bytes that are not UTF-8") as caught:
        harness.feed(**{given: table().slice(2, 2)})
    assert r"\\xff\\xfe" in caught.value.fields["record"]


# -- functions that make such text -------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["\udcff", b"\xff"])
@pytest.mark.parametrize("kind", ["flat_map", "map_async", "process"])
def test_what_user_code_makes_that_is_not_utf8_fails_as_its_output(kind: str, made: Any) -> None:
    async def call(row: dict[str, Any]) -> dict[str, Any]:
        return {"s": made if row["k"] == 2 else "good"}

    class Making(pen.KeyedProcess):
        output = "s string"

        def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
            out.emit(s=made if key["k"] == 2 else "good")

    plain = stream_of(pa.schema([("k", pa.int64())]))
    stream = {
        "flat_map": lambda: plain.flat_map(
            lambda row: [{"s": made if row["k"] == 2 else "good"}], "s string", on_error="dead_letter"
        ),
        "map_async": lambda: plain.map_async(call, "s string", on_error="dead_letter"),
        "process": lambda: plain.key_by("k").process(Making, on_error="dead_letter"),
    }[kind]()
    harness = Harness(stream, letters=stream.side("dead_letters"))
    harness.feed([{"k": number} for number in range(4)])
    harness.settle()
    assert harness.output() == [{"s": "good"}] * 3
    (letter,) = harness.output("letters")
    assert json.loads(letter["record"]) == {"k": 2}
    assert "the column 's' is declared as string" in letter["message"]


def test_what_a_function_over_batches_makes_is_judged_where_somebody_reads_it() -> None:
    made = source().map_batches(lambda batch: batch.set_column(1, "s", strings([b"\xfe"] * batch.num_rows)))
    read = made.flat_map(lambda row: [row], on_error="dead_letter", name="reader")
    harness = Harness(read, letters=read.side("dead_letters"))
    assert harness.feed(table()) == []
    assert [json.loads(letter["record"])["s"] for letter in harness.output("letters")] == [r"\xfe"] * len(TEXTS)


# -- operators that need no text in Python -----------------------------------------------------------------------------


def as_bytes(*columns: str) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    def change(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([batch[name].view(pa.binary()) for name in columns], list(columns))

    return change


def by_text() -> pen.KeyedStream:
    return source().key_by("s")


PASSING: dict[str, Callable[[], pen.Stream]] = {
    "map_batches": lambda: source().map_batches(lambda batch: batch),
    "filter": lambda: source().filter(pa.compute.field("k") >= 0),
    "union": lambda: source().union(source("other")),
    "deduplicate": lambda: by_text().deduplicate(),
    "count": lambda: by_text().aggregate(n=pen.count()),
    "min and max": lambda: source().key_by("k").aggregate(s=pen.max("s"), least=pen.min("s")),
    "window": lambda: by_text().window(pen.tumbling_window("1 s")).aggregate(n=pen.count()),
    "session": lambda: by_text().window(pen.session_window("1 s")).aggregate(n=pen.count()),
    "top_n": lambda: by_text().top_n(2, by="k"),
    "top_n by text": lambda: source().key_by("k").top_n(2, by="s"),
    "join": lambda: by_text().join(source("other").key_by("s"), within="1 s"),
}


@pytest.mark.parametrize("kind", PASSING)
def test_text_that_nobody_reads_passes_byte_by_byte(kind: str) -> None:
    stream = PASSING[kind]()
    harness = Harness(stream.map_batches(as_bytes("s"), "s binary"), parallelism=2)
    several = "other" in {source.name for source in harness._pipeline.sources}
    end = pa.Table.from_arrays(
        [pa.array([9], pa.int64()), strings([b"end"]), pa.array([10**9]).cast(MOMENT)], schema=SCHEMA
    )
    for part in (table(), table(), end):
        harness.feed(**({"source": part, "other": part} if several else {"source": part}))
    harness.settle()
    assert {row["s"] for row in harness.output()} >= set(TEXTS)


NESTED = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("tags", pa.list_(pa.string()))])


def test_a_top_list_tells_texts_apart_that_python_has_none_for() -> None:
    """`\\\\xff` as four characters, and the byte."""
    stream = stream_of(NESTED).key_by("k").top_n(2, by="n")
    harness = Harness(stream.map_batches(lambda batch: batch.select(["rank"]), "rank int"))

    def row(number: int, text: bytes) -> pa.Table:
        tags = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), strings([text]))
        return pa.Table.from_arrays([pa.array([1]), pa.array([number]), tags], schema=NESTED)

    harness.feed(pa.concat_tables([row(5, rb"\xff"), row(5, b"\xff")]))
    assert [made["rank"] for made in harness.feed(row(6, b"new"))] == [1, 2], "the second place changed hands"


# -- records in messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("show", [record_of, whole_record])
def test_records_show_bytes_that_are_not_utf8_escaped_however_deep(show: Callable[[pa.RecordBatch, int], str]) -> None:
    flat = strings([b"a\xff"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), flat)
    maps = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), flat, flat)
    struct = pa.StructArray.from_arrays([lists, flat.cast(pa.large_string())], ["x", "y"])
    batch = pa.RecordBatch.from_arrays([flat, lists, maps, struct], ["flat", "lists", "maps", "struct"])
    text = r"a\xff"
    assert json.loads(show(batch, 0)) == {
        "flat": text,
        "lists": [text],
        "maps": [[text, text]],
        "struct": {"x": [text], "y": text},
    }


# -- tables ------------------------------------------------------------------------------------------------------------


def test_a_partition_that_is_not_utf8_is_refused_with_its_bytes() -> None:
    batch = pa.RecordBatch.from_arrays([strings([b"\xff"])], ["day"])
    with pytest.raises(SubtaskFailed, match=r"partition column 'day' holds '\\\\xff'"):
        list(groups_of(batch, ("day",), np.zeros(1, np.int64)))


def test_a_row_kind_that_is_not_utf8_is_refused_as_any_other_word() -> None:
    with pytest.raises(SubtaskFailed, match=r"'\\\\xff' is no row kind"):
        row_kinds(strings([b"\xff"]))


def test_text_that_nobody_expected_to_read_stops_the_query_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever part of a subtask meets it: another attempt would fail as well."""

    def reading(*_: object, **__: object) -> None:
        b"\xff".decode()

    monkeypatch.setattr("penstock.operators.rowwise.passing_operator.PassOperator.process", reading)
    with pytest.raises(SubtaskFailed, match=r"UnicodeDecodeError.*(?s:.*)subtask 0") as caught:
        Harness(source().union(source("other")), parallelism=1).feed(source=table())
    assert caught.value.cause == "a string column holds bytes that are not UTF-8"
