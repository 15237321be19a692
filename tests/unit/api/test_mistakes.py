"""Mistakes that people make, each as they would make it. Those that need Spark are in tests/spark/test_mistakes.py."""

from __future__ import annotations

import tempfile
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import PenstockError
from penstock.plain import plain_errors
from penstock.testing import Harness, stream_of
from penstock.testing.inline import InlineRun
from penstock.testing.tables import Memory
from tests.support.mistakes import Mistake, internal_lines, judge

SCHEMA = pa.schema(
    {
        "user": pa.int64(),
        "amount": pa.int64(),
        "item": pa.string(),
        "tags": pa.list_(pa.string()),
        "ts": pa.timestamp("us", "UTC"),
    }
)
ROWS = [{"user": 1, "amount": 2, "item": "tea"}]


def orders() -> pen.Stream:
    return stream_of(SCHEMA, "orders", event_time="ts")


def plain() -> pen.Stream:
    return stream_of(pa.schema({"user": pa.int64(), "amount": pa.int64()}), "plain")


def minute() -> Any:
    return pen.tumbling_window("1 min")


def run(stream: pen.Stream) -> None:
    Harness(stream).feed(ROWS)


def start(stream: pen.Stream, sink: Any = None, folder: Path | None = None, **options: Any) -> None:
    """As `Output.start` does it, but on no Spark."""
    output = stream.write(sink or Memory("mistakes"), name="out")
    begin = plain_errors(InlineRun([{"orders": pa.Table.from_pylist(ROWS, schema=SCHEMA)}], clock=lambda: 0.0).start)
    with tempfile.TemporaryDirectory() as new:
        query = begin(output, checkpoint=str(folder or Path(new) / "c"), **{"trigger": "available_now", **options})
        query.await_termination(30)


def a_file() -> Path:
    path = Path(tempfile.mkdtemp()) / "notes.txt"
    path.write_text("not a folder")
    return path


def paimon(place: Path | None = None, table: str = "shop.orders", **options: Any) -> pen.Paimon:
    return pen.Paimon(str(place or tempfile.mkdtemp()), table, **options)


class NoOutput(pen.KeyedProcess):
    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        """Says nothing of its columns."""


class OneRow(pen.KeyedProcess):
    output = "user bigint"

    def process(self, row: Any) -> None:
        """Of another framework."""


MISTAKES: dict[str, Mistake] = {
    # -- columns and types
    "a key that is misspelt": Mistake(
        lambda: orders().key_by("usr"), "PEN-002", "did you mean 'user'", "existing columns"
    ),
    "no key at all": Mistake(lambda: orders().key_by(), "PEN-002", "without columns", "at least one"),
    "a list as a key": Mistake(lambda: orders().key_by("tags"), "PEN-002", "nested values", "select a field"),
    "a misspelt column in sum": Mistake(
        lambda: orders().key_by("user").aggregate(t=pen.sum("amuont")),
        "PEN-002",
        "did you mean 'amount'",
        "amount int64",
    ),
    "a sum of text": Mistake(
        lambda: orders().key_by("user").aggregate(t=pen.sum("item")), "PEN-002", "sum takes numbers", "cast"
    ),
    "SQL for an aggregate": Mistake(
        lambda: orders().key_by("user").aggregate(t="sum(amount)"), "PEN-002", "functions of Penstock", r"pen\.sum"
    ),
    "a misspelt column in top_n": Mistake(
        lambda: orders().key_by("user").top_n(3, by="amont"), "PEN-002", "did you mean 'amount'", "one of the input"
    ),
    "a misspelt column in drop": Mistake(lambda: orders().drop("itm"), "PEN-002", "did you mean 'item'", "one of"),
    "a number as a column": Mistake(lambda: orders().with_column("x", 5), "PEN-002", "is int 5", r"pc\.field"),
    "SQL that is cut off": Mistake(lambda: orders().filter("amount >"), "PEN-002", "found the end", "correct it"),
    "SQL over text as a number": Mistake(
        lambda: orders().with_column("x", "item * 2"), "PEN-002", "cannot be computed", "Arrow expression"
    ),
    "a function that SQL lacks": Mistake(
        lambda: orders().select("uper(item) AS x"), "PEN-002", r"did you mean upper\(\)", "correct it"
    ),
    "a schema with a typo": Mistake(
        lambda: orders().flat_map(lambda row: [row], "user bigin"), "PEN-002", "user bigin", "user bigint"
    ),
    "a union of different columns": Mistake(
        lambda: orders().union(plain()), "PEN-002", "user int64, amount int64", "same columns"
    ),
    "a list of streams": Mistake(lambda: orders().union([orders()]), "PEN-002", "got list", "not a list"),
    # -- event time
    "a window without event time": Mistake(
        lambda: plain().key_by("user").window(minute()), "PEN-002", "without event time", r"event_time="
    ),
    "a duration for a window": Mistake(
        lambda: orders().key_by("user").window("1 min"), "PEN-002", "one of three", "tumbling_window"
    ),
    "a duration that is none": Mistake(lambda: pen.tumbling_window("1 minut"), "PEN-001", "1 minut", "2 min"),
    "a join without a key": Mistake(
        lambda: orders().key_by("user").join(orders(), within="1 min"), "PEN-002", "with a key", "key_by"
    ),
    "a join without event time": Mistake(
        lambda: plain().key_by("user").join(plain().key_by("user"), within="1 s"),
        "PEN-002",
        "event time",
        "event_time=",
    ),
    "a number as event time": Mistake(lambda: stream_of(SCHEMA, event_time="amount"), "PEN-002", "is int64", "cast"),
    "a side output with a typo": Mistake(
        lambda: orders().key_by("user").window(minute()).aggregate(n=pen.count()).side("latee"),
        "PEN-002",
        "there is late",
        "directly",
    ),
    # -- functions and classes
    "a function that was called": Mistake(
        lambda: orders().map_batches(None), "PEN-002", "not a function", "without calling"
    ),
    "a batch function without return": Mistake(
        lambda: orders().map_batches(lambda batch: None), "PEN-002", "`return` is missing", "return a record batch"
    ),
    "a pandas frame": Mistake(
        lambda: orders().map_batches(lambda batch: batch.to_pandas()), "PEN-002", "got DataFrame", "from_pandas"
    ),
    "a row function without return": Mistake(
        lambda: run(orders().flat_map(lambda row: None)), "PEN-030", "`return` is missing", "yield rows"
    ),
    "one row instead of several": Mistake(
        lambda: run(orders().flat_map(lambda row: row)), "PEN-030", "got dict", "return a list"
    ),
    "other columns than declared": Mistake(
        lambda: run(orders().flat_map(lambda row: [{"usr": 1}], "user bigint")),
        "PEN-030",
        "got usr",
        "declared columns",
    ),
    "a record that is missing a field": Mistake(
        lambda: run(orders().flat_map(lambda row: [row["nope"]])),
        "PEN-030",
        r'KeyError.*\n.*"item": "tea"',
        "filter such",
    ),
    "a filter that answers once": Mistake(
        lambda: run(orders().filter(lambda batch: True)), "PEN-030", "got bool", "per row"
    ),
    "a call that is not async": Mistake(
        lambda: orders().map_async(lambda row: row), "PEN-002", "not an async", "async def"
    ),
    "a function for process": Mistake(
        lambda: orders().key_by("user").process(lambda key, rows: None), "PEN-002", "got function", "KeyedProcess"
    ),
    "a process without output": Mistake(
        lambda: orders().key_by("user").process(NoOutput), "PEN-002", "no output columns", "declare output"
    ),
    "a process of another shape": Mistake(
        lambda: orders().key_by("user").process(OneRow),
        "PEN-002",
        r"process\(self, row",
        r"def process\(self, key, rows",
    ),
    "a misspelt on_error": Mistake(
        lambda: orders().flat_map(lambda row: [row], on_error="dead-letter"), "PEN-002", "dead-letter", 'dead_letter"'
    ),
    # -- start
    "a path as a sink": Mistake(lambda: orders().write("out/"), "PEN-002", "got str", r"pen\.Paimon"),
    "no sink": Mistake(lambda: pen.start(checkpoint="c"), "PEN-002", "nothing to start", r"\.write\(sink\)"),
    "a misspelt option": Mistake(
        lambda: orders().write(Memory("m")).start("c", paralelism=4),
        "PEN-001",
        "did you mean parallelism",
        "options are",
    ),
    "Spark's name of a trigger": Mistake(
        lambda: orders().write(Memory("m")).start("c", trigger="availableNow"),
        "PEN-001",
        "availableNow",
        "available_now",
    ),
    "words for a number": Mistake(
        lambda: orders().write(Memory("m")).start("c", parallelism="four"), "PEN-001", "four", "such as 4"
    ),
    "a flush without an end": Mistake(
        lambda: orders().write(Memory("m")).start("c", flush="end"), "PEN-001", "no end", "available_now"
    ),
    "an operator that is not there": Mistake(
        lambda: start(orders(), parallelism={"totls": 4}), "PEN-001", "operators are from-orders", "names of operators"
    ),
    "one name for two": Mistake(
        lambda: start(orders().filter("amount > 1", name="x").filter("amount > 2", name="x")),
        "PEN-002",
        "used twice",
        "its own name",
    ),
    "dead letters without a table": Mistake(
        lambda: start(orders().flat_map(lambda row: [row], on_error="dead_letter")),
        "PEN-002",
        "go nowhere",
        "dead_letters=",
    ),
    "a folder with other files": Mistake(
        lambda: start(orders(), folder=a_file().parent), "PEN-017", "no checkpoint", "empty folder"
    ),
    "a file as checkpoint folder": Mistake(
        lambda: start(orders(), folder=a_file()), "PEN-032", "is a file", "a folder"
    ),
    "a checkpoint that is not there": Mistake(
        lambda: start(orders(), restore=42), "PEN-014", "42", "leave restore out"
    ),
    # -- tables
    "a file as warehouse": Mistake(
        lambda: start(orders().drop("tags"), paimon(a_file())), "PEN-032", "is a file", "a folder"
    ),
    "a misspelt primary key": Mistake(
        lambda: start(orders().drop("tags"), paimon(primary_key=["usr"])),
        "PEN-040",
        "did you mean 'user'",
        "name a column",
    ),
    "a misspelt partition": Mistake(
        lambda: start(orders().drop("tags"), paimon(partition_by=["itm"])), "PEN-040", "partition_by", "name a column"
    ),
    "a table without a database": Mistake(lambda: paimon(table="orders"), "PEN-001", "database", r"database\.table"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_a_code_and_the_next_step(name: str) -> None:
    judge(MISTAKES[name])


def test_rescaling_with_words_or_after_the_end_says_what_to_do() -> None:
    run = InlineRun([{"orders": pa.Table.from_pylist(ROWS, schema=SCHEMA)}], clock=lambda: 0.0)
    with tempfile.TemporaryDirectory() as folder:
        query = run.start(orders().write(Memory("mistakes"), name="out"), checkpoint=folder, trigger="available_now")
        query.await_termination(30)
        judge(Mistake(lambda: query.rescale(3), "PEN-029", "has ended", r"start\(checkpoint=…, parallelism=…\)"))


def test_everything_is_shown_for_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DEBUG", "1")
    with pytest.raises(PenstockError) as raised:
        orders().key_by("usr")
    assert len(internal_lines("".join(traceback.format_exception(raised.value)))) > 5
