"""The kit that checks sinks: sinks of ours pass it, and each broken toy fails it for its own reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.sinks.base import Sink
from penstock.sinks.delta.sink import Delta
from penstock.sinks.discard import Discard
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.paimon.read import read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.testing import check_sink
from penstock.testing.sinks.check import WORLDS
from penstock.testing.sinks.promises import PROMISES
from penstock.testing.tables import Memory, memory_table


def memory(folder: Path) -> Memory:
    memory_table(str(folder)).clear()
    return Memory(str(folder))


def read_memory(sink: Sink) -> pa.Table:
    assert isinstance(sink, Memory)
    return memory_table(sink.name).rows()


def read_paimon(sink: Sink) -> pa.Table:
    assert isinstance(sink, Paimon)
    return read_table(sink.warehouse, sink.table)


def test_a_table_in_memory_keeps_every_promise() -> None:
    report = check_sink(memory, read_memory)
    assert report.untold == {"A missing file stops a commit": "its writers announce no files"}
    assert set(report.kept) == {*PROMISES, WORLDS} - set(report.untold)


@pytest.mark.parametrize("keyed", [False, True], ids=["append", "primary key"])
def test_paimon_keeps_every_promise(keyed: bool) -> None:
    key = {"primary_key": ["id"], "buckets": 1} if keyed else {}
    report = check_sink(lambda folder: Paimon(str(folder), "shop.t", **key), read_paimon, worlds=3)  # type: ignore[arg-type]
    assert set(report.kept) == {*PROMISES, WORLDS}


def test_discard_keeps_what_can_be_asked_of_it() -> None:
    report = check_sink(lambda _: Discard())
    assert "An epoch without rows adds none" in report.kept
    assert set(report.untold.values()) == {"its writers hand over nothing to commit"}


def read_delta(sink: Sink) -> pa.Table:
    assert isinstance(sink, Delta)
    return DeltaTable(sink.uri).to_pyarrow_table()


def dated(ids: Sequence[int]) -> pa.RecordBatch:
    days = [date(2026, 1, 1 + number % 3) for number in ids]
    return pa.record_batch({"id": pa.array(ids, pa.int64()), "day": pa.array(days, pa.date32())})


@pytest.mark.parametrize(
    "options", [{}, {"partition_by": ["day"]}, {"primary_key": ["id"]}], ids=["append", "partitioned", "primary key"]
)
def test_delta_keeps_every_promise(options: dict[str, Any]) -> None:
    report = check_sink(lambda folder: Delta(f"{folder}/t", **options), read_delta, rows=dated, worlds=2)
    assert set(report.kept) == {*PROMISES, WORLDS}


def iceberg(folder: Path, **options: Any) -> Iceberg:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return Iceberg(catalog, "shop.t", **options)


def read_iceberg(sink: Sink) -> pa.Table:
    assert isinstance(sink, Iceberg)
    return open_table(sink.catalog, sink.table).scan().to_arrow()


@pytest.mark.parametrize(
    "options",
    [{}, {"partition_by": ["month(day)", "bucket(4, id)"]}, {"primary_key": ["id"]}],
    ids=["append", "partitioned", "primary key"],
)
def test_iceberg_keeps_every_promise(options: dict[str, Any]) -> None:
    report = check_sink(lambda folder: iceberg(folder, **options), read_iceberg, rows=dated, worlds=2)
    assert set(report.kept) == {*PROMISES, WORLDS}
