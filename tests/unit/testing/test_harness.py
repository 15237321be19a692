"""The harness tells what there is when it is asked for what is not there."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.testing import Harness, stream_of

SCHEMA = pa.schema([("k", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])


def counted() -> Harness:
    return Harness(stream_of(SCHEMA, "orders").key_by("k").aggregate(n=pen.count(), name="counts"))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda harness: harness.feed(ordres=[]), "no source 'ordres'; there is orders"),
        (lambda harness: harness.feed([], orders=[]), "given by name: orders"),
        (lambda harness: harness.feed([{"kk": 1}]), "no column of orders 'kk'; there is k, m"),
        (lambda harness: harness.feed([{"k": 1.5}]), "the column 'k' is int64: got a float for int64"),
        (lambda harness: harness.feed(pa.table({"kk": [1]})), "no column of orders 'kk'; there is k, m"),
        (lambda harness: harness.feed(pa.table({"k": [1]})), "no column in the table for orders 'm'; there is k"),
        (lambda harness: harness.output("late"), "no output 'late'; there is main"),
        (lambda harness: harness.state("count"), "no state 'count'; there is counts"),
        (lambda harness: harness.state("counts", "x"), "no state 'counts/x'; there is counts"),
    ],
)
def test_what_is_not_there_is_named_with_what_there_is(ask: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ask(counted())


def test_rows_for_several_sources_need_their_names() -> None:
    both = Harness(stream_of(SCHEMA, "a").union(stream_of(SCHEMA, "b")))
    with pytest.raises(ValueError, match="given by name: a, b"):
        both.feed([{"k": 1}])
    assert both.feed() == []
    assert both.feed(b=[{"k": 1}]) == [{"k": 1, "m": None}]


def test_columns_that_a_row_does_not_have_are_null_and_maps_are_dicts() -> None:
    harness = Harness(stream_of(SCHEMA).flat_map(lambda row: [row]))
    assert harness.feed([{"k": 1}, {"m": {"a": 1}}]) == [{"k": 1, "m": None}, {"k": None, "m": [("a", 1)]}]


class LastRule(pen.ConnectProcess):
    """Adds the last rule that was said to each row."""

    inputs = ("rows", "rules")
    output = "k bigint, rule bigint"
    rule = pen.broadcast_map("string", "bigint")

    def process(self, port: str, key: Any, rows: Any, state: Any, out: Any) -> None:
        out.emit_many({"k": row["k"], "rule": state.rule.get("last")} for row in rows)

    def process_broadcast(self, port: str, rows: Any, broadcast: Any) -> None:
        for row in rows:
            broadcast.rule["last"] = row["k"]


@pytest.mark.parametrize("parallelism", [1, 4, 5])
def test_broadcast_rows_come_before_the_rows_fed_with_them_wherever_the_barrier_fires(parallelism: int) -> None:
    """B9: the stage that hands broadcast rows on has no barrier, on Spark or here."""
    rows, rules = stream_of(SCHEMA, "rows"), stream_of(SCHEMA, "rules")
    connected = rows.key_by("k").connect(rules.broadcast(), process=LastRule)
    harness = Harness(connected, parallelism=parallelism, steps=1)
    harness.feed(rows=[{"k": k} for k in range(20)], rules=[{"k": k} for k in range(30)])
    harness.settle()
    assert sorted((row["k"], row["rule"]) for row in harness.output()) == [(k, 29) for k in range(20)]
