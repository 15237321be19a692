"""What the tests of whole queries share: parquet files as a stream, a real Paimon table, ways to start and to stop."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

import penstock as pen
from penstock.engine.history import OnEvent, listeners_of
from penstock.observe.events import EpochPublished, Event
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files, newest_snapshot, read_table

TABLE = "shop.rows"
TIMEOUT_S = 120
"""A query that takes longer hangs; the machine may be busy, so far above what it should take."""


def write_files(folder: Path, tables: Iterable[pa.Table], first: int = 0) -> None:
    """One parquet file each; Spark takes files in the order of their time."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables, first):
        # Written under a hidden name: a running query must not see half a file.
        hidden, path = folder / f".{number:04d}", folder / f"{number:04d}.parquet"
        pq.write_table(table, hidden)
        os.utime(hidden, (number + 1, number + 1))
        hidden.rename(path)


def numbered(rows: int, files: int, users: int = 7) -> list[pa.Table]:
    """Files of (user, number): numbers ascend from 0 over all files, `rows` of them in each."""
    return [
        pa.table({"user": [n % users for n in mine], "number": list(mine)})
        for mine in (range(start, start + rows) for start in range(0, rows * files, rows))
    ]


NUMBERED = "user bigint, number bigint"


def stream(spark: SparkSession, folder: Path, schema: str = NUMBERED, files_per_batch: int = 1) -> DataFrame:
    """The files of a folder as a streaming DataFrame."""
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", str(files_per_batch))
    return reader.parquet(str(folder))


def paimon(tmp_path: Path, table: str = TABLE, **options: Any) -> pen.Paimon:
    return pen.Paimon(str(tmp_path / "lake"), table, **options)


def finish(*outputs: pen.Output, checkpoint: Path, on_event: OnEvent = (), **options: Any) -> list[Event]:
    """Runs until everything there is was processed and committed; returns what happened."""
    events: list[Event] = []
    listeners = (events.append, *listeners_of(on_event))
    query = pen.start(
        *outputs, checkpoint=checkpoint, on_event=listeners, **{"trigger": "available_now", "epoch": "2 s", **options}
    )
    assert query.await_termination(TIMEOUT_S), "the query hangs"
    return events


def rows_in(tmp_path: Path, table: str = TABLE) -> list[dict[str, Any]]:
    """One snapshot of the table read back, after making sure that it lists no file twice. Commits may go on."""
    lake = str(tmp_path / "lake")
    snapshot = newest_snapshot(lake, table)
    files = listed_files(lake, table, snapshot)
    assert len(files) == len(set(files))
    rows = read_table(lake, table, snapshot).to_pylist()
    if not open_table(str(tmp_path / "lake"), table).is_primary_key_table:
        assert second_reader(tmp_path / "lake", files) == len(rows), "Polars finds other rows in the listed files"
    return rows


def second_reader(lake: Path, files: list[str]) -> int:
    """How many rows Polars counts in the data files that a snapshot lists."""
    paths = {path.name: path for path in lake.rglob("*.parquet")}
    return sum(
        pl.scan_parquet(paths[file], hive_partitioning=False).select(pl.len()).collect().item() for file in files
    )


def epochs(events: Iterable[Event]) -> list[EpochPublished]:
    """Epochs that processed something; taking over a checkpoint publishes one too."""
    return [event for event in events if isinstance(event, EpochPublished) and event.kind != "takeover"]


class Milestone:
    """A listener that lets a test wait until the first epoch that fits a condition."""

    def __init__(self, fits: Callable[[EpochPublished], bool]) -> None:
        self._fits = fits
        self._reached = threading.Event()

    def __call__(self, event: Event) -> None:
        if any(map(self._fits, epochs([event]))):
            self._reached.set()

    def wait(self, query: pen.Query) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self._reached.wait(0.2):
            assert query.is_active, query.exception() or "the query ended before"
            assert time.monotonic() < deadline, "no epoch fits"


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks again and again until something that another thread does has happened."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.02)


def deep(event: EpochPublished) -> bool:
    """More is in flight than `Slow` gets through in the epochs that may still run before a stop takes effect."""
    return event.rows_in_flight > 1000


def start_until(
    output: pen.Output, fits: Callable[[EpochPublished], bool], *, checkpoint: Path, **options: Any
) -> pen.Query:
    """Starts a query and returns it, still running, once an epoch fits."""
    milestone = Milestone(fits)
    options = {"trigger": "available_now", "epoch": "200 ms", **options}
    query = output.start(checkpoint, on_event=milestone, **options)
    milestone.wait(query)
    return query


def stop_at(
    output: pen.Output, fits: Callable[[EpochPublished], bool], *, checkpoint: Path, **options: Any
) -> pen.Query:
    """Runs a query that is asked to stop by its own listener at the first epoch that fits; returns it when it ended.

    No further epoch is begun then, however long a busy machine lets the test wait.
    """
    begun, started = [], threading.Event()

    def listen(event: Event) -> None:
        if any(map(fits, epochs([event]))):
            assert started.wait(TIMEOUT_S)
            begun[0].stop()

    options = {"trigger": "available_now", "epoch": "200 ms", **options}
    query = output.start(checkpoint, on_event=listen, **options)
    begun.append(query)
    started.set()
    assert query.await_termination(TIMEOUT_S), "no epoch fits"
    return query


def take_jobs_away(spark: SparkSession, query: pen.Query) -> None:
    """Cancels the query's jobs on Spark, in the middle of whatever it does, until it gives up."""
    deadline = time.monotonic() + TIMEOUT_S
    group = query._supervisor.runner.cluster._group
    while query.is_active:
        assert time.monotonic() < deadline, "the query hangs"
        spark.sparkContext.cancelJobGroup(group)
        with suppress(pen.PenstockError):
            query.await_termination(0.01)


class Slow(pen.KeyedProcess):
    """Hands every row on with its number within its user, at a millisecond each: two slots do 400 in 200 ms."""

    output = "user bigint, number bigint, nth bigint"
    seen = pen.value_state("bigint")

    def process(self, key, rows, state, out):
        nth = state.seen or 0
        for row in rows:
            busy(0.001)
            nth += 1
            out.emit(user=row["user"], number=row["number"], nth=nth)
        state.seen = nth


def busy(seconds: float) -> None:
    """Computes; a sleep would cost the same time at any load, but user code computes."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def assert_numbered_exactly_once(rows: Sequence[dict[str, Any]], expected: int) -> None:
    """Every number once, and each user's rows counted 1, 2, 3 … in the order of their numbers (A8)."""
    assert Counter(row["number"] for row in rows) == Counter(range(expected))
    by_user: dict[int, list[tuple[int, int]]] = {}
    for row in rows:
        by_user.setdefault(row["user"], []).append((row["number"], row["nth"]))
    for user, pairs in by_user.items():
        assert [nth for _, nth in sorted(pairs)] == list(range(1, len(pairs) + 1)), f"order of user {user}"


def comparable(value: Any) -> Any:
    """A value by which rows can be counted: NaN equals NaN, nested values are tuples."""
    match value:
        case float() if math.isnan(value):
            return "NaN"
        case float():
            return repr(value)
        case dict():
            return tuple((name, comparable(item)) for name, item in value.items())
        case list() | tuple():
            return tuple(comparable(item) for item in value)
    return value


def bag(rows: Iterable[dict[str, Any]]) -> Counter[Any]:
    """Rows without their order."""
    return Counter(comparable(dict(sorted(row.items()))) for row in rows)
