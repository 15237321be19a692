"""The jobs of `benchmarks.peers` in Penstock, on the same input files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as pen
from benchmarks.measure import Measured, stream_files
from benchmarks.peers import spend
from penstock.api.outputs import Output
from penstock.api.stream import Stream
from penstock.events import EpochPublished, Event


class Totals(pen.KeyedProcess):
    """Running count and sum in per-key Python, as the peers in `benchmarks.peers.keyed_python` do it."""

    output = "key long, n long, total long"
    n = pen.value_state("long")
    total = pen.value_state("long")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        state.n = (state.n or 0) + len(rows)
        state.total = (state.total or 0) + sum(row["amount"] for row in rows)
        out.emit(key=key["key"], n=state.n, total=state.total)


class Slow(pen.KeyedProcess):
    """An operator that costs 1 ms per row."""

    output = "key long, n long"
    n = pen.value_state("long")

    def process(self, key: Any, rows: Any, state: Any, out: Any) -> None:
        spend(len(rows), 0.001)
        state.n = (state.n or 0) + len(rows)
        out.emit(key=key["key"], n=state.n)


def aggregate(stream: Stream) -> Output:
    return stream.key_by("key").aggregate(n=pen.count(), total=pen.sum("amount"), name="totals").write(pen.Discard())


def process(stream: Stream) -> Output:
    return stream.key_by("key").process(Totals, name="totals").write(pen.Discard())


def slow(stream: Stream) -> Output:
    return stream.key_by("key").process(Slow, name="slow").write(pen.Discard())


def run(
    spark: SparkSession,
    input_dir: Path,
    build: Callable[[Stream], Output],
    *,
    name: str,
    warmup: int = 2,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[Measured, list[EpochPublished]]:
    """Runs a job until its input is used up; the rate counts from the start of the first measured epoch to the end.

    `source` has what `pen.read` is told besides, an event time for example.
    """
    epochs: list[EpochPublished] = []

    def listen(event: Event) -> None:
        if isinstance(event, EpochPublished):
            epochs.append(event)

    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as checkpoint:
        output = build(pen.read(stream_files(spark, input_dir), name="input", **(source or {})))
        settings = {"trigger": "available_now", "on_event": listen, **options}
        output.start(f"{checkpoint}/checkpoint", **settings).await_termination()
    return summary(name, epochs, warmup), epochs


def summary(name: str, epochs: list[EpochPublished], warmup: int) -> Measured:
    ingests = [index for index, event in enumerate(epochs) if event.kind == "ingest" and event.rows_in]
    measured = epochs[ingests[warmup] :]
    before = epochs[ingests[warmup] - 1]
    wall_s = (_at(measured[-1]) - _at(before)).total_seconds()
    return Measured(
        name=f"Penstock, {name}",
        rows=sum(event.rows_in for event in measured),
        wall_s=wall_s,
        batch_s=tuple(event.duration_s for event in measured),
    )


def _at(event: EpochPublished) -> datetime:
    return datetime.fromisoformat(event.at)
