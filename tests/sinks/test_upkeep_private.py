"""What upkeep relies on and pypaimon's documentation does not promise: each test fails when something moves."""

from __future__ import annotations

import dataclasses
import inspect
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import fastavro
import pyarrow as pa
from pypaimon import CatalogFactory, Schema
from pypaimon.manifest.manifest_file_manager import ManifestFileManager
from pypaimon.manifest.manifest_list_manager import ManifestListManager
from pypaimon.manifest.schema.data_file_meta import DataFileMeta
from pypaimon.manifest.schema.manifest_entry import ManifestEntry
from pypaimon.read.split import DataSplit
from pypaimon.snapshot.snapshot import BATCH_COMMIT_IDENTIFIER, Snapshot
from pypaimon.tag.tag import Tag

from penstock.sinks.paimon.upkeep.files import UPKEEP_USER, KeptTable
from penstock.sinks.paimon.upkeep.merge import merge
from penstock.sinks.paimon.upkeep.rewrite import COMPACTED
from tests.support.second_reader import snapshot_json
from tests.support.tables import rows as rows_of
from tests.support.tables import write
from tests.support.upkeep_tables import Story, story

__all__ = ["story"]


def parameters(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)  # type: ignore[arg-type]


def test_manifests_are_read_and_written_by_these_methods() -> None:
    assert parameters(ManifestFileManager.rolling_write) == ["self", "entries", "suggested_file_size", "name_prefix"]
    assert parameters(ManifestFileManager.read)[:4] == [
        "self",
        "manifest_file_name",
        "manifest_entry_filter",
        "drop_stats",
    ]
    assert parameters(ManifestListManager.write) == ["self", "file_name", "manifest_file_metas"]
    for name in ("read_all", "read_delta", "read_changelog"):
        assert parameters(getattr(ManifestListManager, name)) == ["self", "snapshot"]


def test_an_entry_is_a_kind_a_place_and_a_file() -> None:
    names = [field.name for field in dataclasses.fields(ManifestEntry)]
    assert names == ["kind", "partition", "bucket", "total_buckets", "file"]


def test_a_snapshot_has_no_fields_that_upkeep_does_not_know() -> None:
    """A COMPACT snapshot copies all fields of the one before but those that it sets; a new field needs a decision."""
    copied = {"version", "total_record_count", "index_manifest", "watermark", "statistics", "next_row_id"}
    copied.add("writer_version")
    own = {"id", "schema_id", "base_manifest_list", "delta_manifest_list", "delta_record_count", "commit_user"}
    own |= {"commit_identifier", "commit_kind", "time_millis", "base_manifest_list_size", "delta_manifest_list_size"}
    own |= {"changelog_manifest_list", "changelog_manifest_list_size", "changelog_record_count", "properties", "uuid"}
    assert {field.name for field in dataclasses.fields(Snapshot)} == copied | own
    assert issubclass(Tag, Snapshot)


def test_a_data_file_has_no_fields_that_upkeep_does_not_know() -> None:
    """Compaction rewrites plain files only; a new field may make a file less plain."""
    known = {"file_name", "file_size", "row_count", "min_key", "max_key", "key_stats", "value_stats", "schema_id"}
    known |= {"min_sequence_number", "max_sequence_number", "level", "extra_files", "creation_time", "write_cols"}
    known |= {"delete_row_count", "embedded_index", "file_source", "value_stats_cols", "external_path", "first_row_id"}
    known |= {"file_path", "write_cols_sequences"}
    assert {field.name for field in dataclasses.fields(DataFileMeta)} == known


def test_a_split_is_made_of_files_of_one_place() -> None:
    assert parameters(DataSplit)[:4] == ["files", "partition", "bucket", "raw_convertible"]


def test_the_snapshot_of_upkeep_has_papers_like_those_of_paimons_own_compaction(story: Story) -> None:
    story.commit(3)
    story.keeper().step()
    snapshot = snapshot_json(story.sink, 4)
    assert (snapshot["commitUser"], snapshot["commitIdentifier"]) == (UPKEEP_USER, BATCH_COMMIT_IDENTIFIER)
    table = KeptTable(story.sink.warehouse, story.sink.table)
    added = [entry.file for entry in table.delta(table.snapshot(4)) if entry.kind == 0]
    assert [(file.file_source, file.level) for file in added] == [(COMPACTED, 0)]


def test_a_committable_holds_the_names_of_its_files_as_plain_bytes(story: Story) -> None:
    """Orphan cleanup looks for them there."""
    (committable,) = write(story.sink, 1, rows_of([1]))
    table = KeptTable(story.sink.warehouse, story.sink.table)
    (path,) = table.root.rglob("*.parquet")
    assert path.name.encode() in committable.payload


def test_merging_keeps_every_entry_of_a_keyed_table_as_it_was(tmp_path: Path) -> None:
    """Keys, statistics, times and partitions go through pypaimon's objects and come out the same."""
    utc = datetime(2026, 1, 1, 1, 1, 1, 123457, tzinfo=UTC)
    moment = utc.replace(tzinfo=None)
    columns = {
        "id": pa.array([1, -2], pa.int64()),
        "word": pa.array(["a" * 20, "é"]),
        "price": pa.array([Decimal("123456789012345678.1234"), Decimal("-1.5")], pa.decimal128(30, 4)),
        "at": pa.array([moment, moment], pa.timestamp("us")),
        "day": pa.array([date(1969, 1, 1)] * 2),
        "part": pa.array([moment, moment], pa.timestamp("us")),
        "value": pa.array([0.5, None]),
    }
    keys = [name for name in columns if name != "value"]
    fields = [pa.field(name, array.type, nullable=name == "value") for name, array in columns.items()]
    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("shop", ignore_if_exists=True)
    schema = Schema.from_pyarrow_schema(
        pa.schema(fields), primary_keys=keys, partition_keys=["part"], options={"bucket": "1"}
    )
    catalog.create_table("shop.keyed", schema, ignore_if_exists=False)
    builder = catalog.get_table("shop.keyed").new_batch_write_builder()
    for _ in range(3):
        writer, committer = builder.new_write(), builder.new_commit()
        writer.write_arrow(pa.table(list(columns.values()), schema=pa.schema(fields)))
        committer.commit(writer.prepare_commit())
    table = KeptTable(str(tmp_path), "shop.keyed")
    before = raw_entries(table)
    assert merge(table, table.manifests(table.latest()), lambda: 0).manifests_written == 1
    assert raw_entries(table) == before


def raw_entries(table: KeptTable) -> list[object]:
    entries: list[object] = []
    for meta in table.manifests(table.latest()):
        with table.manifest_path(meta.file_name).open("rb") as file:
            entries += fastavro.reader(file)
    return entries
