"""A whole query, without Spark, into each lake: it stops, a job fails, it goes on; every row is in the table once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import penstock as pen
from penstock.engine.cluster import JobFailed
from penstock.errors import TablePositionMismatch
from penstock.sinks.iceberg.catalog import open_table
from penstock.testing.inline import InlineCluster, InlineRun, stream_of
from tests.support.engine_jobs import SCHEMA, FakeClock, batches_of, run_until


def delta(folder: Path, **options: Any) -> tuple[Any, Callable[[], list[int]]]:
    sink = pen.Delta(str(folder / "t"), **options)
    return sink, lambda: sorted(DeltaTable(sink.uri).to_pyarrow_table()["number"].to_pylist())


def iceberg(folder: Path, **options: Any) -> tuple[Any, Callable[[], list[int]]]:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    sink = pen.Iceberg(catalog, "shop.t", **options)
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


class Told(pen.CommitListener):
    """Remembers what it was told of."""

    name = "told"

    def __init__(self) -> None:
        self.commits: list[pen.CommitInfo] = []

    def on_commit(self, commit: pen.CommitInfo, state: bytes) -> bytes:
        self.commits.append(commit)
        return state + b"."


TIMED = pa.schema([("at", pa.timestamp("us", "UTC")), ("day", pa.string()), ("number", pa.int64())])


def facts_of(sink: Any) -> dict[str, Any]:
    """What the newest commit of ours says of itself."""
    if isinstance(sink, pen.Delta):
        return next(entry for entry in DeltaTable(sink.uri).history() if "penstock.rows" in entry)
    found = reversed(open_table(sink.catalog, sink.table).metadata.snapshots)
    return next(
        one.summary.additional_properties for one in found if "penstock.rows" in one.summary.additional_properties
    )


@pytest.mark.parametrize("lake", [delta, iceberg])
def test_dead_letters_partitions_and_watermarks_reach_a_lake(lake: Any, tmp_path: Path) -> None:
    sink, numbers = lake(tmp_path, partition_by=["day"])
    (tmp_path / "letters").mkdir()
    letters, _ = lake(tmp_path / "letters")
    listener = Told()

    def picky(row: dict[str, Any]) -> Any:
        if row["number"] == 13:
            raise ValueError("unlucky")
        yield row

    moments = [datetime(2026, 1, 1 + n // 10, tzinfo=UTC) for n in range(30)]
    rows = pa.table({"at": moments, "day": [f"{m:%F}" for m in moments], "number": range(30)}, schema=TIMED)
    source = stream_of(TIMED, event_time="at", watermark="0 s")
    picked = source.flat_map(picky, TIMED, name="picky", on_error="dead_letter")
    run = InlineRun([{"source": rows.slice(start, 10)} for start in (0, 10, 20)], FakeClock())
    run.start(
        picked.write(sink, commit_listeners=(listener,)), checkpoint=tmp_path / "checkpoint", dead_letters=letters
    ).await_termination(120)
    assert numbers() == [number for number in range(30) if number != 13]
    lost = (
        DeltaTable(letters.uri).to_pyarrow_table()
        if lake is delta
        else open_table(letters.catalog, letters.table).scan().to_arrow()
    )
    assert [(row["operator"], row["error"]) for row in lost.to_pylist()] == [("picky", "ValueError")]
    assert {name for commit in listener.commits for name in commit.partitions} == {
        f"day=2026-01-0{n}" for n in (1, 2, 3)
    }
    assert int(facts_of(sink)["penstock.watermark"]) == listener.commits[-1].watermark
    marks = [commit.watermark for commit in listener.commits if commit.watermark is not None]
    assert marks == sorted(marks)


@pytest.mark.parametrize("lake", [delta, iceberg])
def test_a_whole_query_writes_by_key_over_a_restart(lake: Any, tmp_path: Path) -> None:
    sink, numbers = lake(tmp_path, primary_key=["user"])
    run = InlineRun(batches_of(50, 4), FakeClock(), prepare=failing_once)
    output = stream_of(SCHEMA).write(sink)
    run_until(run, output, lambda event: event.batch_id == 1, checkpoint=tmp_path / "checkpoint")
    run.start(output, checkpoint=tmp_path / "checkpoint", parallelism=3).await_termination(60)
    assert numbers() == list(range(193, 200)), "of each of seven users the newest number"


@pytest.mark.parametrize("lake", [delta, iceberg])
def test_a_rollback_stops_a_query_that_says_how_to_go_on(lake: Any, tmp_path: Path) -> None:
    sink, numbers = lake(tmp_path)
    run = InlineRun(batches_of(50, 4), FakeClock())
    output = stream_of(SCHEMA).write(sink)
    options: dict[str, Any] = {"checkpoint": tmp_path / "checkpoint", "retain": 100}
    run_until(run, output, lambda event: event.batch_id == 1, **options)
    run.start(output, **options).await_termination(60)
    if lake is delta:
        history = DeltaTable(sink.uri).history()
        DeltaTable(sink.uri).restore(next(e["version"] for e in history[::-1] if "penstock.rows" in e))
    else:
        table = open_table(sink.catalog, sink.table)
        ours = [one for one in table.metadata.snapshots if "penstock.rows" in one.summary.additional_properties]
        table.manage_snapshots().rollback_to_snapshot(ours[0].snapshot_id).commit()
    left = numbers()
    with pytest.raises(TablePositionMismatch, match="the table's newest commit of ours is") as error:
        run.start(output, **options)
    assert numbers() == left
    run.start(output, **options, restore=int(error.value.fields["found"])).await_termination(60)
    assert Counter(numbers()) == Counter(range(200))
