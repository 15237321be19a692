"""A source that does not answer on Spark: the query says so, lives on, goes on when it answers, and can be stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

import penstock as pen
from penstock.observe.events import Event, SourceSlow
from penstock.observe.folder import Folder
from penstock.observe.verdict import Standing
from penstock.protocol.silence import SourceState
from penstock.store import open_store
from tests.support.spark_streams import NUMBERED, paimon, rows_in, wait_until

LIMIT = "2 s"
OFFSETS = "Getting offsets from"
STOP_S = 30
"""What `stop` may take on a busy machine; Spark interrupts a source that hangs after two seconds."""


class Reader(DataSourceStreamReader):
    """Has as many rows as the file `rows` says; it does not answer while a file `hang-<question>` exists."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _hang(self, question: str) -> None:
        while (self._folder / f"hang-{question}").exists():
            time.sleep(0.05)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802 - Spark's name
        self._hang("offsets")
        return {"rows": int((self._folder / "rows").read_text())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        self._hang("partitions")
        return [InputPartition((start["rows"], end["rows"]))]

    def read(self, partition: InputPartition) -> Iterator[tuple[int, int]]:
        for number in range(*partition.value):
            yield number % 7, number


class Hanging(DataSource):
    """As a source of Spark."""

    @classmethod
    def name(cls) -> str:
        return "hanging"

    def schema(self) -> str:
        return NUMBERED

    def streamReader(self, schema: Any) -> Reader:  # noqa: N802 - Spark's name
        del schema
        return Reader(Path(self.options["path"]))


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> DataFrame:
    spark.dataSource.register(Hanging)
    write(tmp_path, 10)
    return spark.readStream.format("hanging").load(str(tmp_path))


def write(folder: Path, rows: int) -> None:
    hidden = folder / ".rows"
    hidden.write_text(str(rows))
    hidden.rename(folder / "rows")


def start(source: DataFrame, tmp_path: Path, events: list[Event]) -> pen.Query:
    rows = pen.read(source, name="numbers").map_batches(lambda batch: batch, name="same")
    query = rows.write(paimon(tmp_path)).start(
        tmp_path / "checkpoint", epoch="300 ms", source_timeout=LIMIT, on_event=events.append
    )
    wait_until(lambda: (query.progress() is not None and query.waiting_for is not None) or not query.is_active)
    return query


def numbers(tmp_path: Path) -> list[int]:
    return sorted(row["number"] for row in rows_in(tmp_path))


def told(events: list[Event], words: str) -> list[bool]:
    """Whether it had answered, each time that a source was told; a busy machine may be slow to plan, too."""
    return [event.answered for event in events if isinstance(event, SourceSlow) and words in event.what]


@pytest.mark.drawn
@pytest.mark.parametrize(("question", "words"), [("offsets", OFFSETS), ("partitions", "Processing new data")])
def test_a_source_that_does_not_answer_is_named_and_read_on_when_it_answers(
    source: DataFrame, tmp_path: Path, question: str, words: str
) -> None:
    events: list[Event] = []
    query = start(source, tmp_path, events)
    hang = tmp_path / f"hang-{question}"
    hang.touch()
    write(tmp_path, 25)
    wait_until(lambda: words in (query.waiting_for or ""))
    said = query.waiting_for or ""
    assert said.startswith("source numbers has not answered for "), said
    assert query.is_active
    assert told(events, words)[-1] is False
    verdict = Folder(open_store(str(tmp_path / "checkpoint"))).look().verdict
    assert (verdict.kind, "source numbers" in verdict.why) == (Standing.SOURCE_SILENT, True)
    assert "look at the source" in verdict.next_step
    hang.unlink()
    wait_until(lambda: told(events, words)[-1])
    wait_until(lambda: len(numbers(tmp_path)) == 25)
    query.stop(timeout=STOP_S)
    assert numbers(tmp_path) == list(range(25))


def test_a_query_whose_source_does_not_answer_is_stopped_in_time(source: DataFrame, tmp_path: Path) -> None:
    events: list[Event] = []
    query = start(source, tmp_path, events)
    (tmp_path / "hang-offsets").touch()
    wait_until(lambda: OFFSETS in (query.waiting_for or ""))
    began = time.monotonic()
    assert query.stop(timeout=STOP_S) is None
    print(f"stopped within {time.monotonic() - began:.1f} s")
    assert query.exception() is None
    assert told(events, OFFSETS)[-1] is False
    assert numbers(tmp_path) == list(range(10))


def test_each_time_that_spark_asks_is_another_question_and_none_while_it_waits(
    source: DataFrame, tmp_path: Path
) -> None:
    query = start(source, tmp_path, [])
    states: set[SourceState | None] = set()

    def asked_twice() -> bool:
        states.add(query._supervisor.feed.state())
        return SourceState(None) in states and len(states) > 2

    wait_until(asked_twice)
    assert None not in states
    query.stop(timeout=STOP_S)
