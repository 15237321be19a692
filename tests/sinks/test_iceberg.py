"""Iceberg tables on their own: types, transforms, schemas, refusals, expiry, and drivers that race."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import MonthTransform

from penstock.errors import ConfigError, Fenced, TableMismatch, TablePositionMismatch, TableRefused
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import CommitPermit, CommitReceipt, Committable, Remembered, WriterContext
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.commit import IcebergCommitter
from penstock.sinks.iceberg.compact import Compaction
from penstock.sinks.iceberg.keeper import IcebergKeeper
from penstock.sinks.iceberg.sink import Iceberg
from penstock.sinks.lake.commit import CommitOvertaken, TableChange
from penstock.sinks.upkeep import Upkeep
from tests.sinks.lake_faults import run_iceberg
from tests.support.seeds import FRESH, drawn

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def iceberg(folder: Path, **options: Any) -> Iceberg:
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return Iceberg(catalog, "shop.t", **options)


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"word {i}" for i in ids])], schema=SCHEMA)


def write(sink: Iceberg, checkpoint: int, *batches: pa.RecordBatch) -> list[Committable]:
    context = WriterContext(CheckpointId(checkpoint), Generation(1), 0, 1, attempt="0")
    writer = sink.open_writer(context, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return writer.prepare()


def commit(
    committer: IcebergCommitter, checkpoint: int, committables: Sequence[Committable], **facts: Any
) -> CommitReceipt:
    return committer.commit(
        CommitPermit(Generation(1), CheckpointId(checkpoint)),
        committables,
        watermark=facts.get("watermark"),
        properties={},
        still_leader=facts.get("still_leader", lambda: True),
    )


def read(sink: Iceberg) -> pa.Table:
    return open_table(sink.catalog, sink.table).scan().to_arrow()


def filled(sink: Iceberg, *batches: pa.RecordBatch) -> pa.Table:
    """The table after each batch was a checkpoint of its own."""
    sink.check(batches[0].schema)
    committer = sink.open_committer("user")
    for checkpoint, batch in enumerate(batches, 1):
        commit(committer, checkpoint, write(sink, checkpoint, batch))
    return read(sink)


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "boolean": [True, None],
            "short": pa.array([1, -2], pa.int32()),
            "double": [float("nan"), -0.5],
            "decimal": pa.array([Decimal("1.25"), Decimal("-3.50")], pa.decimal128(10, 2)),
            "text": ["", "ä" * 100],
            "binary": [b"\0", None],
            "date": [date(2026, 1, 2), None],
            "moment": pa.array([moment, None], pa.timestamp("us", "UTC")),
            "local": pa.array([moment.replace(tzinfo=None), None], pa.timestamp("us")),
            "list": pa.array([[1, 2], None], pa.list_(pa.int64())),
            "struct": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())])),
            "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    table = filled(iceberg(tmp_path), batch)
    wanted, found = pa.Table.from_batches([batch]).to_pylist(), table.to_pylist()
    assert [{k: str(v) for k, v in row.items()} for row in found] == [
        {k: str(v) for k, v in row.items()} for row in wanted
    ]


@pytest.mark.parametrize(
    "transform",
    [
        "word",
        "day",
        "moment",
        "year(day)",
        "month(day)",
        "day(moment)",
        "hour(moment)",
        "bucket(3, id)",
        "truncate(3, word)",
        "truncate(1, raw)",
    ],
)
def test_rows_of_every_transform_come_back_and_files_are_pruned_by_it(tmp_path: Path, transform: str) -> None:
    moments = [datetime(2020 + n, 1 + n, 2, 3 + n, tzinfo=UTC) for n in range(4)]
    batch = pa.record_batch(
        {
            "id": pa.array(range(5), pa.int64()),
            "word": ["a/b", "x y", "ä%41ö", "", None],
            "raw": [b"ab", b"\xff\xff", b"a", b"", None],
            "day": pa.array([moment.date() for moment in moments] + [None], pa.date32()),
            "moment": pa.array([*moments, None], pa.timestamp("us", "UTC")),
        }
    )
    sink = iceberg(tmp_path, partition_by=[transform])
    table = filled(sink, batch).sort_by("id")
    assert table.to_pylist() == pa.Table.from_batches([batch]).to_pylist()
    scan = open_table(sink.catalog, sink.table).scan(row_filter="id == 2")
    assert scan.to_arrow()["id"].to_pylist() == [2]
    assert len(list(scan.plan_files())) < 5


def test_snapshot_and_table_tell_user_checkpoint_rows_and_watermark(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    sink.check(SCHEMA)
    committer = sink.open_committer("user")
    receipt = commit(committer, 7, write(sink, 7, rows([1, 2])), watermark=99)
    assert (receipt.checkpoint, receipt.snapshot, receipt.rows, receipt.files, receipt.watermark) == (7, 1, 2, 1, 99)
    assert committer.commits(None, 1).commits == (receipt,)
    assert open_table(sink.catalog, sink.table).properties["penstock.committed.user"] == "7"


def test_a_zombie_is_refused_by_the_catalog(tmp_path: Path) -> None:
    """The newer driver's fence is a snapshot: what an older driver was about to commit does not follow it."""
    sink = iceberg(tmp_path)
    sink.check(SCHEMA)
    committables = write(sink, 1, rows([1]))
    old = sink.open_committer("user")
    old._refresh()
    sink.open_committer("user").fence(Generation(2))
    with pytest.raises(CommitOvertaken):
        old._publish(TableChange(()), {}, CheckpointId(1))
    with pytest.raises(Fenced):
        commit(old, 1, committables, still_leader=lambda: False)
    assert read(sink).num_rows == 0


def test_a_commit_is_known_when_its_snapshot_expired(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    filled(sink, rows([1]), rows([2]))
    other = sink.open_committer("other")
    commit(other, 1, write(sink, 1, rows([3])))
    keeper = IcebergKeeper(sink, Upkeep(snapshots=1, snapshots_for=0.0))
    assert keeper.step().snapshots_expired == 2
    history = sink.open_committer("user").commits(2, 5)
    assert [receipt.checkpoint for receipt in history.commits] == [2]
    assert (history.gone, history.remembered) == (None, Remembered.EXPIRED)
    assert Counter(read(sink)["id"].to_pylist()) == Counter([1, 2, 3])


def test_drivers_in_threads_commit_each_checkpoint_once(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    sink.check(SCHEMA)
    pending = {number: write(sink, number, rows([number])) for number in range(1, 8)}

    def drive() -> None:
        committer = sink.open_committer("user")
        for number, committables in pending.items():
            while True:
                try:
                    commit(committer, number, committables)
                except Exception:  # noqa: BLE001 - a rival, or a catalog that is locked: ask again
                    found = committer.commits(None, 1).commits
                    if found and found[-1].checkpoint >= number:
                        break
                else:
                    break

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert Counter(read(sink)["id"].to_pylist()) == Counter(pending.keys())


def test_a_part_of_a_commit_is_never_committed_again(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    sink.check(SCHEMA)
    one, two = write(sink, 1, rows([1])), write(sink, 2, rows([2]))
    old = sink.open_committer("user")
    commit(sink.open_committer("user"), 1, one)
    with pytest.raises(TablePositionMismatch):
        commit(old, 2, [*one, *two])
    assert read(sink)["id"].to_pylist() == [1]


def test_a_new_column_is_added_when_allowed(tmp_path: Path) -> None:
    old = iceberg(tmp_path)
    filled(old, rows([1]))
    wider = rows([2]).append_column("more", pa.array([5]))
    with pytest.raises(TableMismatch, match="has no column 'more'"):
        old.check(wider.schema)
    sink = replace(old, evolve_table=True)
    sink.check(wider.schema)
    commit(sink.open_committer("user"), 2, write(sink, 2, wider))
    assert read(sink).sort_by("id")["more"].to_pylist() == [None, 5]


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    with pytest.raises(TableMismatch, match="there is no Iceberg table"):
        replace(sink, create=False).check(SCHEMA)
    sink.check(SCHEMA)
    with pytest.raises(TableMismatch, match="column 'id' is int64, the stream has string"):
        sink.check(pa.schema([("id", pa.string()), ("word", pa.string())]))
    with pytest.raises(TableMismatch, match="is partitioned by"):
        replace(sink, partition_by=["word"]).check(SCHEMA)
    with pytest.raises(TableMismatch, match="names 'nope'"):
        replace(sink, table="shop.u", partition_by=["nope"]).check(SCHEMA)
    with pytest.raises(ConfigError, match="partition_by has"):
        replace(sink, table="shop.v", partition_by=["week(id)"]).check(SCHEMA)
    with pytest.raises(TableRefused, match="format version 1"):
        replace(sink, table="shop.w", properties={"format-version": "1"}).check(SCHEMA)


@pytest.mark.parametrize("seed", [2, FRESH])
def test_drivers_that_crash_hang_and_race_commit_each_row_once_to_iceberg(seed: int | None, tmp_path: Path) -> None:
    run_iceberg(drawn(seed), tmp_path)


def test_a_catalog_in_a_database_is_found_under_its_name(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    assert isinstance(sink.catalog, dict)
    named = replace(sink, catalog={**sink.catalog, "name": "ours"})
    named.check(SCHEMA)
    assert load_catalog("ours", **sink.catalog).table_exists("shop.t")
    sink.check(SCHEMA)
    assert load_catalog("default", **sink.catalog).table_exists("shop.t")


def test_a_file_that_a_snapshot_lists_is_never_removed(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    sink.check(SCHEMA)
    committer, written = sink.open_committer("user"), write(sink, 1, rows([1, 2]))
    commit(committer, 1, written)
    committer.abort(written)
    assert read(sink).num_rows == 2
    left = write(sink, 2, rows([3]))
    committer.abort(left)
    assert committer.missing_files(left), "what was never committed is removed"


def listed(sink: Iceberg) -> list[str]:
    return [task.file.file_path for task in open_table(sink.catalog, sink.table).scan().plan_files()]


def test_upkeep_compacts_small_files_of_a_partition_and_rows_stay(tmp_path: Path) -> None:
    sink = iceberg(tmp_path, partition_by=["bucket(2, id)"], sort_by=["id"])
    before = filled(sink, *(rows(range(number * 10, number * 10 + 10)) for number in range(12)))
    report = IcebergKeeper(sink, Upkeep(small_files=10)).step()
    assert (report.files_compacted, report.files_written) == (24, 2)
    assert len(listed(sink)) == 2
    assert read(sink).sort_by("id") == before.sort_by("id")
    ids = open_table(sink.catalog, sink.table).scan(row_filter="id == 57").to_arrow()["id"].to_pylist()
    assert ids == [57]
    committer = sink.open_committer("user")
    assert committer.commits(None, 1).commits[-1].checkpoint == 12
    commit(committer, 13, write(sink, 13, rows([999])))
    assert read(sink).num_rows == 121
    assert not IcebergKeeper(sink, Upkeep(small_files=10)).step().files_compacted


def test_a_compaction_gives_way_when_its_files_were_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = iceberg(tmp_path, primary_key=["id"])
    filled(sink, *(rows([number, 100 + number]) for number in range(4)))
    real = Compaction._published

    def late(self: Compaction, added: Any, sources: Any) -> bool:
        commit(sink.open_committer("user"), 5, write(sink, 5, rows([2])))
        return real(self, added, sources)

    monkeypatch.setattr(Compaction, "_published", late)
    report = IcebergKeeper(sink, Upkeep(small_files=2)).step()
    assert report.files_compacted == 0
    assert Counter(read(sink)["id"].to_pylist()) == Counter([0, 1, 2, 3, 100, 101, 102, 103])
    assert not list(tmp_path.rglob("compacted-*")), "what was rewritten in vain is removed"


def test_expiry_removes_the_files_that_only_expired_snapshots_needed(tmp_path: Path) -> None:
    sink = iceberg(tmp_path, primary_key=["id"])
    filled(sink, *(rows([1, number]) for number in range(2, 8)))
    open_table(sink.catalog, sink.table).manage_snapshots().create_tag(
        open_table(sink.catalog, sink.table).metadata.snapshots[2].snapshot_id, "kept"
    ).commit()
    before = len(list(tmp_path.rglob("*.parquet")))
    report = IcebergKeeper(sink, Upkeep(small_files=None, snapshots=1, snapshots_for=0.0)).step()
    assert report.snapshots_expired == 4
    assert report.files_removed > 0
    assert len(list(tmp_path.rglob("*.parquet"))) == before - report.files_removed
    assert sorted(read(sink)["id"].to_pylist()) == [1, 2, 3, 4, 5, 6, 7]
    tagged = open_table(sink.catalog, sink.table).scan().use_ref("kept").to_arrow()
    assert sorted(tagged["id"].to_pylist()) == [1, 2, 3, 4], "a snapshot with a name can still be read"


def test_manifests_of_a_table_with_a_key_are_merged_by_upkeep(tmp_path: Path) -> None:
    sink = iceberg(tmp_path, primary_key=["id"], properties={"commit.manifest.min-count-to-merge": "3"})
    filled(sink, *(rows([1, number]) for number in range(2, 12)))
    table = open_table(sink.catalog, sink.table)
    before = len(table.current_snapshot().manifests(table.io))
    report = IcebergKeeper(sink, Upkeep(small_files=None, manifests=3, expire=False)).step()
    assert report.manifests_merged == before
    assert report.manifests_written < 4
    assert read(sink).num_rows == 11


def test_a_query_does_not_go_on_over_a_rollback_and_goes_on_from_the_checkpoint_that_fits(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    filled(sink, rows([1]), rows([2]), rows([3]))
    running = sink.open_committer("user")
    table = open_table(sink.catalog, sink.table)
    table.manage_snapshots().rollback_to_snapshot(table.metadata.snapshots[0].snapshot_id).commit()
    with pytest.raises(TablePositionMismatch, match="rolled the table back"):
        commit(running, 4, write(sink, 4, rows([4])))
    history = sink.open_committer("user").commits(3, 1)
    assert history.remembered is Remembered.LOST
    assert [receipt.checkpoint for receipt in history.commits] == [1]
    restored = sink.open_committer("user")
    assert restored.commits(1, 1).remembered is Remembered.PRESENT
    commit(restored, 2, write(sink, 2, rows([22])))
    assert sorted(read(sink)["id"].to_pylist()) == [1, 22]
    assert restored.commits(None, 1).commits[-1].checkpoint == 2


def test_orphans_are_removed_once_they_are_old_and_nobody_waits_for_them(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    filled(sink, rows([1]))
    waiting, lost = write(sink, 2, rows([2])), write(sink, 3, rows([3]))
    for file in tmp_path.rglob("*.parquet"):
        os.utime(file, (0, 0))
    keeper = IcebergKeeper(sink, Upkeep(small_files=None, expire=False, orphans_after="1 h"), lambda: waiting)
    assert keeper.step().orphans_removed == 1
    committer = sink.open_committer("user")
    assert committer.missing_files(lost)
    commit(committer, 2, waiting)
    assert sorted(read(sink)["id"].to_pylist()) == [1, 2]


def found(sink: Iceberg, condition: str) -> list[int]:
    return sorted(open_table(sink.catalog, sink.table).scan(row_filter=condition).to_arrow()["id"].to_pylist())


def test_a_row_group_without_bounds_leaves_the_file_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Parquet keeps no bounds of long texts, and those of other row groups are not those of the file."""
    monkeypatch.setattr("penstock.sinks.parquet.files.BUFFER_BYTES_MAX", 1)
    sink = iceberg(tmp_path)
    texts = [["a", None], ["z" * 5000, "b"], [None, None]]
    numbers = [[1.0, 2.0], [None, 3.0], [float("nan"), None]]
    batches = [
        pa.record_batch({"id": pa.array([2 * n, 2 * n + 1], pa.int64()), "word": word, "x": x})
        for n, (word, x) in enumerate(zip(texts, numbers, strict=True))
    ]
    sink.check(batches[0].schema)
    commit(sink.open_committer("user"), 1, write(sink, 1, *batches))
    assert found(sink, "word > 'c'") == [2]
    assert found(sink, "word is null") == [1, 4, 5]
    assert found(sink, "x > 1.5") == [1, 3]
    files = [task.file for task in open_table(sink.catalog, sink.table).scan().plan_files()]
    assert [(file.record_count, set(file.upper_bounds)) for file in files] == [(4, {1, 3}), (2, {1})]
    assert not caplog.messages


def test_a_text_without_a_next_one_has_no_bounds(tmp_path: Path) -> None:
    sink = iceberg(tmp_path)
    filled(sink, pa.record_batch({"id": pa.array([1, 2], pa.int64()), "word": ["\ud7ff" * 20, "a"]}))
    assert found(sink, "word > 'b'") == [1]


@pytest.mark.parametrize("key", [(), ("id", "day")], ids=["append", "keyed"])
def test_files_that_wait_while_a_table_gets_other_partitions_keep_theirs(tmp_path: Path, key: Sequence[str]) -> None:
    def batch(ids: Sequence[int]) -> pa.RecordBatch:
        days = pa.array([date(2026, 1 + n, 2) for n in ids], pa.date32())
        return pa.record_batch({"id": pa.array(ids, pa.int64()), "day": days})

    sink = iceberg(tmp_path, partition_by=["day(day)"], primary_key=key)
    sink.check(batch([1]).schema)
    running = sink.taken_over(CheckpointId(1), ())
    committer = sink.open_committer("user")
    commit(committer, 1, write(running, 1, batch([1, 5])))
    waiting = write(running, 2, batch([0, 2]))
    with open_table(sink.catalog, sink.table).update_spec() as spec:
        spec.remove_field("day_day")
        spec.add_field("day", MonthTransform(), "day_month")
    newer, committer = write(sink, 3, batch([3])), sink.open_committer("user")
    receipt = commit(committer, 3, [*waiting, *newer])
    assert (receipt.checkpoint, receipt.rows) == (3, 3)
    assert [one.checkpoint for one in committer.commits(None, 9).commits] == [1, 3]
    assert found(sink, "id >= 0") == [0, 1, 2, 3, 5]
    for n in range(6):
        condition = f"day >= '2026-0{n + 1}-01' and day < '2026-0{n + 2}-01'"
        assert found(sink, condition) == [n] * (n != 4)


def test_rows_are_replaced_in_files_of_older_partitions(tmp_path: Path) -> None:
    def batch(ids: Sequence[int], word: str) -> pa.RecordBatch:
        odd = pa.array([n % 2 for n in ids], pa.int64())
        return pa.record_batch({"id": pa.array(ids, pa.int64()), "odd": odd, "word": [word] * len(ids)})

    sink = iceberg(tmp_path, primary_key=["id", "odd"])
    filled(sink, batch(range(6), "first"))
    with open_table(sink.catalog, sink.table).update_spec() as spec:
        spec.add_identity("odd")
    committer = sink.open_committer("user")
    commit(committer, 2, write(sink, 2, batch([0, 1], "second")))
    commit(committer, 3, write(sink, 3, batch([2], "third")))
    words = ["second", "second", "third", "first", "first", "first"]
    assert read(sink).sort_by("id").to_pylist() == [
        {"id": n, "odd": n % 2, "word": word} for n, word in enumerate(words)
    ]
    assert [found(sink, f"odd = {n}") for n in range(2)] == [[0, 2, 4], [1, 3, 5]]


def test_a_file_that_waits_while_a_column_is_renamed_keeps_its_values(tmp_path: Path) -> None:
    sink = iceberg(tmp_path, primary_key=["id"])
    sink.check(SCHEMA)
    waiting = [*write(sink, 1, rows([1, 2])), *write(sink, 2, rows([1]))]
    with open_table(sink.catalog, sink.table).update_schema() as schema:
        schema.rename_column("word", "text")
    commit(sink.open_committer("user"), 2, waiting)
    assert read(sink).sort_by("id").to_pylist() == [{"id": 1, "text": "word 1"}, {"id": 2, "text": "word 2"}]
