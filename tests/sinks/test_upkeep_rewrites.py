"""Manifest merging and compaction on real tables: the same rows, in fewer files."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pypaimon import CatalogFactory, Schema
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from penstock.errors import ConfigError, TableRefused
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import merge as merging
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.paimon.upkeep.merge import merge
from penstock.sinks.upkeep import Upkeep
from tests.support.second_reader import files_of, ids_at, root_of, snapshot_json, snapshots_of
from tests.support.tables import commit, rows, write
from tests.support.upkeep_tables import EAGER, Story, story

__all__ = ["story"]

MERGE = replace(EAGER, small_files=None, expire=False)
COMPACT = replace(EAGER, manifests=None, expire=False)


def manifests_of(story: Story) -> int:
    table = KeptTable(story.sink.warehouse, story.sink.table)
    return len(table.manifests(table.latest()))


def newest(sink: Paimon) -> dict[str, object]:
    return snapshot_json(sink, snapshots_of(sink)[-1])


def test_merged_manifests_list_the_same_files(story: Story) -> None:
    story.commit(5)
    before = files_of(story.sink, newest(story.sink))
    report = story.keeper(MERGE).step()
    assert (report.manifests_merged, report.manifests_written) == (5, 1)
    assert manifests_of(story) == 1
    assert files_of(story.sink, newest(story.sink)) == before
    story.assert_whole()


def test_a_merge_that_would_lose_rows_is_refused_and_the_table_stays_as_it_was(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else counts the rows of a manifest: a snapshot without them is the newest one all the same."""
    story.commit(5)
    before = snapshots_of(story.sink)
    monkeypatch.setattr(merging, "cancel", lambda entries: entries[:-1])
    (failure,) = story.keeper(MERGE).step().failures
    assert "merged manifests list 9 files and 9 rows, 10 files and 10 rows" in str(failure)
    assert snapshots_of(story.sink) == before
    story.assert_whole()


def test_few_manifests_stay_as_they_are(story: Story) -> None:
    story.commit(2)
    assert not story.keeper(MERGE).step().did_something
    assert snapshots_of(story.sink) == [1, 2]


def test_the_snapshot_of_upkeep_says_what_it_is(story: Story) -> None:
    """Other engines skip COMPACT snapshots where they look for new rows; its user is nobody's commit user."""
    story.commit(3)
    story.keeper(MERGE).step()
    before, snapshot = snapshot_json(story.sink, 3), newest(story.sink)
    assert (snapshot["commitKind"], snapshot["commitUser"]) == ("COMPACT", "penstock.upkeep")
    assert (snapshot["deltaRecordCount"], snapshot["totalRecordCount"]) == (0, before["totalRecordCount"])
    assert snapshot["id"] == 4
    assert snapshot["uuid"] != before["uuid"]
    assert snapshot["timeMillis"] >= before["timeMillis"]  # type: ignore[operator]


def test_the_watermark_of_a_table_survives_upkeep(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """C7"""
    story.commit(3)
    latest = KeptTable.latest
    monkeypatch.setattr(KeptTable, "latest", lambda self: _with_watermark(latest(self)))
    story.keeper(MERGE).step()
    assert newest(story.sink)["watermark"] == 17


def _with_watermark(snapshot: object) -> object:
    snapshot.watermark = 17  # type: ignore[attr-defined]
    return snapshot


def test_entries_of_removed_files_go_when_they_outnumber_the_others(story: Story) -> None:
    story.commit(4)
    story.keeper(COMPACT).step()
    story.keeper(MERGE).step()
    table = KeptTable(story.sink.warehouse, story.sink.table)
    (meta,) = table.manifests(table.latest())
    assert (meta.num_added_files, meta.num_deleted_files) == (1, 0)
    story.assert_whole()


def test_a_removal_stays_when_the_manifest_that_added_the_file_is_not_merged(story: Story) -> None:
    story.commit(3)
    story.keeper(MERGE).step()
    story.keeper(COMPACT).step()
    story.commit(2)
    table = KeptTable(story.sink.warehouse, story.sink.table)
    older, *newer = table.manifests(table.latest())
    report = merge(table, newer, lambda: 0)
    assert (report.manifests_merged, report.manifests_written) == (3, 1)
    assert table.manifests(table.latest())[0].file_name == older.file_name
    story.assert_whole()


def test_compaction_turns_small_files_into_one(story: Story) -> None:
    story.commit(5)
    report = story.keeper(COMPACT).step()
    assert (report.files_compacted, report.files_written) == (10, 1)
    assert len(listed_files(story.sink.warehouse, story.sink.table)) == 1
    story.assert_whole()
    assert not story.keeper(COMPACT).step().did_something


def test_a_compacted_file_is_made_as_the_writer_makes_files(story: Story) -> None:
    story.commit(3)
    (one, *_) = files_of(story.sink, newest(story.sink))
    story.keeper(COMPACT).step()
    (compacted,) = files_of(story.sink, newest(story.sink))
    assert pq.read_schema(compacted).equals(pq.read_schema(one))
    codecs = {pq.ParquetFile(path).metadata.row_group(0).column(0).compression for path in (one, compacted)}
    assert len(codecs) == 1


def test_compaction_goes_on_where_the_last_one_ended(story: Story) -> None:
    """A keeper reads only what changed since; a new one reads everything. Both see the same."""
    keeper = story.keeper(COMPACT)
    for _ in range(3):
        story.commit(3)
        keeper.step()
        story.assert_whole()
        assert not story.keeper(COMPACT).step().did_something


def test_files_that_wait_for_their_commit_are_not_touched(story: Story) -> None:
    """C2: compaction knows only what the table lists."""
    story.commit(3)
    waiting = write(story.sink, 4, rows([8, 9]))
    story.keeper(EAGER).step()
    commit(story.committer, 4, waiting)
    story.checkpoint = 4
    story.assert_whole()


def test_each_partition_is_compacted_by_itself(tmp_path: Path) -> None:
    """Also the partition of nulls, and names that need escaping."""
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    sink = Paimon(str(tmp_path), "shop.parts", partition_by=["part"])
    sink.check(schema)
    parts = ["a b", "x/y=z", "%", "ü", None]
    for checkpoint in range(1, 5):
        batch = pa.record_batch([pa.array(range(5), pa.int64()), pa.array(parts)], schema=schema)
        commit(sink.open_committer("me"), checkpoint, write(sink, checkpoint, batch, schema=schema))
    before = read_table(sink.warehouse, sink.table)
    report = PaimonKeeper(sink.warehouse, sink.table, EAGER, own_user="me").step()
    assert (report.files_compacted, report.files_written) == (20, 5)
    after = read_table(sink.warehouse, sink.table)
    assert sorted(map(str, after.to_pylist())) == sorted(map(str, before.to_pylist()))
    assert ids_at(sink, newest(sink)) == Counter(dict.fromkeys(range(5), 4))


def test_every_type_of_column_survives_compaction(tmp_path: Path) -> None:
    utc = datetime(2026, 11, 16, 1, 2, 3, 456789, tzinfo=UTC)
    moment = utc.replace(tzinfo=None)
    columns = {
        "id": pa.array([1, None], pa.int64()),
        "flag": pa.array([True, None]),
        "small": pa.array([-3, None], pa.int8()),
        "ratio": pa.array([0.1, float("nan")], pa.float32()),
        "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
        "word": pa.array(["ü", None]),
        "raw": pa.array([b"\x00", None]),
        "day": pa.array([date(1969, 1, 1), None]),
        "at": pa.array([moment, None], pa.timestamp("us")),
        "utc": pa.array([utc, None], pa.timestamp("us", tz="UTC")),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        "struct": pa.array([{"x": 1}, None], pa.struct([("x", pa.int64())])),
    }
    batch = pa.record_batch(list(columns.values()), names=list(columns))
    sink = Paimon(str(tmp_path), "shop.types")
    sink.check(batch.schema)
    for checkpoint in (1, 2, 3):
        commit(sink.open_committer("me"), checkpoint, write(sink, checkpoint, batch, schema=batch.schema))
    before = read_table(sink.warehouse, sink.table)
    assert PaimonKeeper(sink.warehouse, sink.table, EAGER, own_user="me").step().files_compacted == 3
    after = read_table(sink.warehouse, sink.table)
    assert after.schema.equals(before.schema)
    assert str(after.to_pylist()) == str(before.to_pylist())


def test_files_of_older_schemas_are_rewritten_in_the_newest(story: Story) -> None:
    story.commit(2)
    catalog = CatalogFactory.create({"warehouse": story.sink.warehouse})
    catalog.alter_table(story.sink.table, [SchemaChange.add_column("extra", AtomicType("INT"))])
    assert story.keeper(COMPACT).step().files_written == 1
    story.assert_whole()
    assert read_table(story.sink.warehouse, story.sink.table)["extra"].to_pylist() == [None] * 4


def test_a_file_with_fewer_rows_than_the_table_says_is_not_rewritten(story: Story) -> None:
    story.commit(3)
    (damaged, *_) = files_of(story.sink, newest(story.sink))
    pq.write_table(pq.read_table(damaged).slice(0, 0), damaged)
    before = snapshots_of(story.sink), set(root_of(story.sink).rglob("*"))
    (failure,) = story.keeper(COMPACT).step().failures
    assert "hold 5 rows, the table says 6" in failure
    assert (snapshots_of(story.sink), set(root_of(story.sink).rglob("*"))) == before


def test_a_stopped_step_leaves_the_table_as_it_was(story: Story) -> None:
    story.commit(3)
    before = set(root_of(story.sink).rglob("*"))
    keeper = story.keeper(EAGER)
    keeper.stop()
    assert not keeper.step().did_something
    assert set(root_of(story.sink).rglob("*")) == before


def test_a_dry_run_tells_what_would_be_done_and_changes_nothing(story: Story) -> None:
    story.commit(5)
    before = {path: path.stat().st_mtime_ns for path in root_of(story.sink).rglob("*")}
    report = story.keeper(replace(EAGER, snapshots_max=1), dry_run=True).step()
    assert (report.files_compacted, report.files_written, report.manifests_merged) == (10, 1, 5)
    assert report.snapshots_expired == 4
    assert {path: path.stat().st_mtime_ns for path in root_of(story.sink).rglob("*")} == before


@pytest.mark.parametrize(
    ("options", "primary_key", "reason"),
    [
        ({"bucket": "2", "changelog-producer": "lookup"}, ["id"], "changelog-producer"),
        ({"bucket": "2", "bucket-key": "id"}, [], "buckets"),
        ({"row-tracking.enabled": "true"}, [], "row-tracking"),
        ({"deletion-vectors.enabled": "true"}, [], "deletion-vectors"),
        ({"file.format": "orc"}, [], "file.format"),
    ],
)
def test_tables_whose_files_mean_more_than_rows_are_not_compacted(
    options: dict[str, str], primary_key: list[str], reason: str, tmp_path: Path
) -> None:
    columns = pa.schema([pa.field("id", pa.int64(), nullable=not primary_key), ("word", pa.string())])
    catalog = CatalogFactory.create({"warehouse": str(tmp_path)})
    catalog.create_database("shop", ignore_if_exists=True)
    schema = Schema.from_pyarrow_schema(columns, primary_keys=primary_key, options=options)
    catalog.create_table("shop.words", schema, ignore_if_exists=False)
    report = PaimonKeeper(str(tmp_path), "shop.words", EAGER).step()
    assert len(report.notes) == 1
    assert reason in report.notes[0]


def test_a_table_that_is_not_in_a_folder_is_refused(monkeypatch: pytest.MonkeyPatch, story: Story) -> None:
    """Elsewhere a snapshot could overwrite a commit."""
    from penstock.sinks.paimon import local as paimon_local

    monkeypatch.setattr(paimon_local, "as_local", lambda _: None)
    with pytest.raises(TableRefused, match="not in a local folder"):
        story.keeper().step()


def test_upkeep_can_be_switched_off(story: Story) -> None:
    with pytest.raises(ConfigError, match="upkeep='off'"):
        replace(story.sink, upkeep="off")  # type: ignore[arg-type]
    assert replace(story.sink, upkeep=False).open_keeper("me", tuple) is None
    assert Paimon("s3://bucket/lake", "shop.words").open_keeper("me", tuple) is None
    assert replace(story.sink, upkeep=Upkeep(every="5 min")).open_keeper("me", tuple).every_s == 300.0  # type: ignore[union-attr]


def test_one_action_that_fails_does_not_stop_the_others(story: Story) -> None:
    """A data file that nobody can read must not keep a table from being merged and expired."""
    story.commit(5)
    (missing, *_) = files_of(story.sink, newest(story.sink))
    missing.unlink()
    report = story.keeper(EAGER).step()
    assert len(report.failures) == 1
    assert report.manifests_merged > 0
    assert report.snapshots_expired > 0
