"""A commit to an Iceberg table copies the table's metadata a fixed number of times, however many snapshots it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import update as table_update
from pyiceberg.table.metadata import TableMetadataV2

from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.keeper import IcebergKeeper
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.iceberg.snapshots import replace_files
from penstock.sinks.iceberg.transaction import OneCopy
from penstock.sinks.upkeep import Upkeep

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def sink(tmp_path: Path) -> Iceberg:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    sink = Iceberg(catalog, "shop.t")
    sink.check(SCHEMA)
    return sink


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each deep copy of the metadata of a table."""
    seen: list[int] = []
    real = TableMetadataV2.model_copy

    def model_copy(self: Any, *, update: Any = None, deep: bool = False) -> Any:
        if deep:
            seen.append(len(self.snapshots))
        return real(self, update=update, deep=deep)

    monkeypatch.setattr(TableMetadataV2, "model_copy", model_copy)
    return seen


def snapshot(sink: Iceberg, number: int) -> None:
    replace_files(open_table(sink.catalog, sink.table), [], [], {"number": str(number)}, {"newest": str(number)})


def test_a_commit_copies_the_metadata_twice_and_its_facts_and_marks_are_there(sink: Iceberg, copies: list[int]) -> None:
    for number in range(5):
        copies.clear()
        snapshot(sink, number)
        assert len(copies) <= 2, copies  # ours, and the catalog's own
    table = open_table(sink.catalog, sink.table)
    assert [one.summary["number"] for one in table.metadata.snapshots] == ["0", "1", "2", "3", "4"]
    assert table.properties["newest"] == "4"


def test_an_expiry_copies_the_metadata_twice_however_many_snapshots_go(sink: Iceberg, copies: list[int]) -> None:
    for number in range(12):
        snapshot(sink, number)
    copies.clear()
    policy = Upkeep(manifests=None, small_files=None, snapshots=2, snapshots_for=0.0)
    report = IcebergKeeper(sink, policy).step()
    assert (report.snapshots_expired, report.failures) == (10, ())
    assert len(copies) <= 2, copies
    assert len(open_table(sink.catalog, sink.table).metadata.snapshots) == 2


def test_the_metadata_of_a_transaction_is_what_the_library_says(sink: Iceberg) -> None:
    snapshot(sink, 0)
    table = open_table(sink.catalog, sink.table)
    before = table.metadata.model_dump_json()
    transaction = OneCopy(table)
    assert transaction.table_metadata is table.metadata
    transaction.set_properties({"a": "1"})
    first = transaction.table_metadata
    assert first is transaction.table_metadata
    transaction.set_properties({"b": "2"})
    second = transaction.table_metadata
    expected = table_update.update_table_metadata(table.metadata, transaction._updates)
    assert second.properties == expected.properties == {**first.properties, "b": "2"}
    assert "b" not in first.properties
    assert table.metadata.model_dump_json() == before
