"""A whole query, without Spark, into each lake: it stops, a job fails, it goes on; every row is in the table once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import penstock as pen
from penstock.engine.cluster import JobFailed
from penstock.sinks.iceberg.catalog import open_table
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, run_until


def delta(folder: Path) -> tuple[Any, Callable[[], list[int]]]:
    sink = pen.Delta(str(folder / "t"))
    return sink, lambda: sorted(DeltaTable(sink.uri).to_pyarrow_table()["number"].to_pylist())


def iceberg(folder: Path) -> tuple[Any, Callable[[], list[int]]]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = pen.Iceberg(catalog, "shop.t")
    return sink, lambda: sorted(open_table(sink.catalog, sink.table).scan().to_arrow()["number"].to_pylist())


def failing_once(cluster: InlineCluster) -> None:
    def before_job(job: object) -> None:
        cluster.before_job = lambda _: None
        raise JobFailed("a worker was lost")

    cluster.before_job = before_job


@pytest.mark.parametrize("lake", [delta, iceberg])
def test_every_row_is_in_its_table_once_after_a_stop_and_a_restart(lake: Any, tmp_path: Path) -> None:
    sink, numbers = lake(tmp_path)
    run = InlineRun(batches_of(50, 4), FakeClock(), prepare=failing_once)
    output = stream_of(SCHEMA).write(sink)
    run_until(run, output, lambda event: event.batch_id == 1, checkpoint=tmp_path / "checkpoint")
    run.start(output, checkpoint=tmp_path / "checkpoint").await_termination(60)
    assert Counter(numbers()) == Counter(range(200))
