"""Delta tables on their own: types, partitions, statistics, schemas, refusals, upkeep, and drivers that race."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, QueryBuilder, write_deltalake

import penstock as pen
from penstock.errors import Fenced, TableMismatch, TablePositionMismatch, TableRefused
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import CommitPermit, CommitReceipt, Committable, Remembered, WriterContext
from penstock.sinks.delta.commit import DeltaCommitter
from penstock.sinks.delta.keeper import DeltaKeeper
from penstock.sinks.delta.sink import Delta
from penstock.sinks.lake.commit import CommitOvertaken, TableChange
from penstock.sinks.listeners import SinkTime
from penstock.sinks.upkeep import Upkeep
from tests.sinks.lake_faults import run_delta
from tests.support.seeds import FRESH, drawn

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"word {i}" for i in ids])], schema=SCHEMA)


def write(sink: Delta, checkpoint: int, *batches: pa.RecordBatch) -> list[Committable]:
    context = WriterContext(CheckpointId(checkpoint), Generation(1), 0, 1, attempt="0")
    writer = sink.open_writer(context, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return writer.prepare()


def commit(
    committer: DeltaCommitter, checkpoint: int, committables: Sequence[Committable], **facts: Any
) -> CommitReceipt:
    return committer.commit(
        CommitPermit(Generation(1), CheckpointId(checkpoint)),
        committables,
        watermark=facts.get("watermark"),
        properties={},
        still_leader=facts.get("still_leader", lambda: True),
    )


def filled(sink: Delta, *batches: pa.RecordBatch) -> pa.Table:
    """The table after each batch was a checkpoint of its own."""
    sink.check(batches[0].schema)
    committer = sink.open_committer("user")
    for checkpoint, batch in enumerate(batches, 1):
        commit(committer, checkpoint, write(sink, checkpoint, batch))
    return DeltaTable(sink.uri).to_pyarrow_table()


def ids_in(sink: Delta) -> Counter[int]:
    return Counter(DeltaTable(sink.uri).to_pyarrow_table()["id"].to_pylist())


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "boolean": [True, None],
            "short": pa.array([1, -2], pa.int16()),
            "int": pa.array([1, None], pa.int32()),
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
    table = filled(Delta(str(tmp_path / "t")), batch)
    assert str(table.to_pylist()) == str(pa.Table.from_batches([batch]).to_pylist())


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["a/b", "x y", "ä%41", "", None, "a=b"]),
        pa.array([date(2026, 1, 1), None], pa.date32()),
        pa.array([True, False, None]),
        pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        pa.array([datetime(2026, 1, 2, 3, 4, 5, 67, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        pa.array([-5, 7], pa.int32()),
    ],
    ids=str,
)
def test_partition_values_come_back(tmp_path: Path, values: pa.Array) -> None:
    batch = pa.record_batch({"id": pa.array(range(len(values)), pa.int64()), "part": values})
    table = filled(Delta(str(tmp_path / "t"), partition_by=["part"]), batch).sort_by("id")
    wanted = [value if value != "" else None for value in values.to_pylist()]  # Delta has no empty partition value
    assert table["part"].to_pylist() == wanted


def test_a_file_has_statistics_that_never_cut_off_a_value(tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "id": [1, 5, None],
            "text": ["a", "z" * 50, None],
            "moment": pa.array([moment, moment + timedelta(seconds=1), None], pa.timestamp("us", "UTC")),
            "nan": [1.0, float("nan"), None],
            "price": pa.array([Decimal("1.25"), Decimal("2.50"), None], pa.decimal128(10, 2)),
        }
    )
    filled(Delta(str(tmp_path / "t")), batch)
    entry = Path(tmp_path, "t", "_delta_log", f"{1:020}.json").read_text().splitlines()
    stats = json.loads(next(json.loads(line)["add"]["stats"] for line in entry if '"add"' in line))
    assert stats["numRecords"] == 3
    assert (stats["minValues"]["id"], stats["maxValues"]["id"]) == (1, 5)
    assert stats["maxValues"]["text"] > "z" * 50
    assert stats["minValues"]["moment"] == "2026-01-02T03:04:05.678Z"
    assert stats["maxValues"]["moment"] == "2026-01-02T03:04:06.679Z"
    assert (stats["minValues"]["price"], stats["maxValues"]["price"]) == (1.25, 2.5)
    assert "nan" not in stats["minValues"]
    assert stats["nullCount"]["id"] == 1


def test_files_are_rolled_at_their_target_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sinks.parquet.files.BUFFER_BYTES_MAX", 1 << 16)
    sink = Delta(str(tmp_path / "t"), target_file_size=1 << 15)
    sink.check(SCHEMA)
    batches = [rows(range(n * 5000, n * 5000 + 5000)) for n in range(10)]
    commit(sink.open_committer("user"), 1, write(sink, 1, *batches))
    assert 2 <= DeltaTable(sink.uri).get_add_actions().num_rows <= 10
    assert ids_in(sink) == Counter(range(50_000))


def test_the_log_tells_user_checkpoint_rows_and_watermark(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    sink.check(SCHEMA)
    committer = sink.open_committer("user")
    receipt = commit(committer, 7, write(sink, 7, rows([1, 2])), watermark=99)
    assert (receipt.checkpoint, receipt.snapshot, receipt.rows, receipt.files, receipt.watermark) == (7, 1, 2, 1, 99)
    assert committer.commits(None, 1).commits == (receipt,)
    assert DeltaTable(sink.uri).transaction_version("user") == 7


def test_a_zombie_finds_its_entry_of_the_log_taken(tmp_path: Path) -> None:
    """The newer driver's fence is an entry of the log: what an older one was about to create is refused by the log."""
    sink = Delta(str(tmp_path / "t"))
    sink.check(SCHEMA)
    committables = write(sink, 1, rows([1]))
    old = sink.open_committer("user")
    old._refresh()
    sink.open_committer("user").fence(Generation(2))
    with pytest.raises(CommitOvertaken):
        old._publish(TableChange(()), {}, CheckpointId(1))
    with pytest.raises(Fenced):
        commit(old, 1, committables, still_leader=lambda: False)
    assert ids_in(sink) == Counter()


def test_a_commit_is_known_when_its_entry_was_cleaned_up(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    filled(sink, rows([1]), rows([2]))
    DeltaTable(sink.uri).create_checkpoint()
    for entry in Path(sink.uri, "_delta_log").glob("*.json"):
        entry.unlink()
    history = sink.open_committer("user").commits(1, 5)
    assert [receipt.checkpoint for receipt in history.commits] == [2]
    assert history.remembered is Remembered.EXPIRED
    assert history.gone is None


def test_drivers_in_threads_commit_each_checkpoint_once(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    sink.check(SCHEMA)
    pending = {number: write(sink, number, rows([number])) for number in range(1, 16)}

    def drive() -> None:
        committer = sink.open_committer("user")
        for number, committables in pending.items():
            while True:
                try:
                    commit(committer, number, committables)
                except TablePositionMismatch:
                    found = committer.commits(None, 1).commits
                    if found and found[-1].checkpoint >= number:
                        break
                else:
                    break

    drivers = [threading.Thread(target=drive) for _ in range(3)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()
    assert ids_in(sink) == Counter(pending.keys())


def test_other_writers_append_compact_and_alter_meanwhile(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    sink.check(SCHEMA)
    committer = sink.open_committer("user")
    for number in range(1, 7):
        committables = write(sink, number, rows([number]))
        write_deltalake(sink.uri, pa.Table.from_batches([rows([-number])]), mode="append")
        if number == 3:
            DeltaTable(sink.uri).optimize.compact()
        commit(committer, number, committables)
    assert ids_in(sink) == Counter([*range(1, 7), *range(-6, 0)])


def test_a_new_column_is_added_when_allowed(tmp_path: Path) -> None:
    old = Delta(str(tmp_path / "t"))
    filled(old, rows([1]))
    wider = rows([2]).append_column("more", pa.array([5]))
    with pytest.raises(TableMismatch, match="has no column 'more'"):
        old.check(wider.schema)
    sink = replace(old, evolve_table=True)
    sink.check(wider.schema)
    commit(sink.open_committer("user"), 2, write(sink, 2, wider))
    assert DeltaTable(sink.uri).to_pyarrow_table().sort_by("id")["more"].to_pylist() == [None, 5]


def test_a_table_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    with pytest.raises(TableMismatch, match="there is no Delta table"):
        replace(sink, create=False).check(SCHEMA)
    sink.check(SCHEMA)
    with pytest.raises(TableMismatch, match="column 'id' is long, the stream has string"):
        sink.check(pa.schema([("id", pa.string()), ("word", pa.string())]))
    with pytest.raises(TableMismatch, match="is partitioned by"):
        replace(sink, partition_by=["word"]).check(SCHEMA)
    with pytest.raises(TableRefused, match="is a double"):
        Delta(str(tmp_path / "u"), partition_by=["x"]).check(pa.schema([("x", pa.float64()), ("y", pa.int64())]))


@pytest.mark.parametrize("kind", [pa.uint32(), pa.list_(pa.uint8()), pa.map_(pa.string(), pa.uint64())], ids=str)
def test_unsigned_integers_are_refused(tmp_path: Path, kind: pa.DataType) -> None:
    """A value beyond the signed ones could be written, and nobody could read it."""
    with pytest.raises(TableRefused, match="no unsigned integers"):
        Delta(str(tmp_path / "t")).check(pa.schema([("id", pa.int64()), ("x", kind)]))


def test_a_table_that_wants_more_of_writers_is_refused(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    sink.check(SCHEMA)
    DeltaTable(sink.uri).alter.add_constraint({"positive": "id > 0"}, commit_properties=CommitProperties())
    with pytest.raises(TableRefused, match=r"delta\.constraints\.positive"):
        sink.check(SCHEMA)


def test_upkeep_compacts_while_commits_go_on(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    filled(sink, *(rows([number]) for number in range(1, 13)))
    keeper = DeltaKeeper(sink.uri, Upkeep(small_files=10), sink.target_file_size)
    report = keeper.step()
    assert (report.files_compacted, report.files_written) == (12, 1)
    committer = sink.open_committer("user")
    assert committer.commits(None, 1).commits[-1].checkpoint == 12
    commit(committer, 13, write(sink, 13, rows([13])))
    assert ids_in(sink) == Counter(range(1, 14))
    assert not keeper.step().did_something


def test_finished_partitions_are_marked(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"), partition_by=["day"], partition_done=pen.PartitionDone())
    batch = pa.record_batch({"id": [1], "day": ["2026-01-01"]})
    sink.check(batch.schema)
    committer = sink.open_committer("user")
    committables = write(sink, 1, batch)
    commit(committer, 1, committables)
    assert committer.partitions(committables) == ("day=2026-01-01",)
    (marker,) = sink.listeners()
    state = b'{"touched_ms":{"day=2026-01-01":0},"announce":[]}'
    after = marker.on_progress(SinkTime(1_800_000_000_000, 0), state)
    assert Path(sink.uri, "day=2026-01-01", "_SUCCESS").exists()
    assert marker.properties(after) == {"penstock.done-partitions": "day=2026-01-01"}
    assert ids_in(sink) == Counter([1])


@pytest.mark.parametrize("seed", [3, FRESH])
def test_drivers_that_crash_hang_and_race_commit_each_row_once_to_delta(seed: int | None, tmp_path: Path) -> None:
    run_delta(drawn(seed), tmp_path)


@pytest.mark.parametrize("by_time", [False, True], ids=["by version", "by time"])
def test_a_query_does_not_go_on_over_a_restore_and_goes_on_from_the_checkpoint_that_fits(
    tmp_path: Path, by_time: bool
) -> None:
    sink = Delta(str(tmp_path / "t"))
    filled(sink, rows([1]), rows([2]), rows([3]))
    running = sink.open_committer("user")
    for version, entry in enumerate(sorted(Path(sink.uri, "_delta_log").glob("*.json"))):
        os.utime(entry, (1_000 + version, 1_000 + version))  # what Delta Lake takes for the time of a version
    DeltaTable(sink.uri).restore(datetime.fromtimestamp(1_001.5, UTC) if by_time else 1)
    with pytest.raises(TablePositionMismatch, match="rolled the table back"):
        commit(running, 4, write(sink, 4, rows([4])))
    history = sink.open_committer("user").commits(3, 1)
    assert history.remembered is Remembered.LOST
    assert [receipt.checkpoint for receipt in history.commits] == [1]
    restored = sink.open_committer("user")
    assert restored.commits(1, 1).remembered is Remembered.PRESENT
    commit(restored, 2, write(sink, 2, rows([22])))
    assert ids_in(sink) == Counter([1, 22])
    assert restored.commits(None, 1).commits[-1].checkpoint == 2


def test_a_restore_of_a_time_before_our_first_commit_is_seen(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    filled(sink, rows([1]))
    running = sink.open_committer("user")
    DeltaTable(sink.uri).restore(0)
    with pytest.raises(TablePositionMismatch, match="rolled the table back"):
        commit(running, 2, write(sink, 2, rows([2])))
    history = sink.open_committer("user").commits(1, 1)
    assert (history.commits, history.remembered) == ((), Remembered.LOST)
    assert not ids_in(sink)


def test_a_restore_that_keeps_our_commits_is_no_reason_to_stop(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"))
    filled(sink, rows([1]))
    running = sink.open_committer("user")
    write_deltalake(sink.uri, pa.Table.from_batches([rows([-1])]), mode="append")
    DeltaTable(sink.uri).restore(1)
    commit(running, 2, write(sink, 2, rows([2])))
    assert ids_in(sink) == Counter([1, 2])


def test_rows_of_a_file_are_sorted_so_that_readers_skip_row_groups(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"), sort_by=["id"])
    sink.check(SCHEMA)
    mixed = rows([n * 7919 % 300_000 for n in range(300_000)])
    commit(sink.open_committer("user"), 1, write(sink, 1, mixed))
    (file,) = Path(sink.uri).glob("*.parquet")
    footer = pq.ParquetFile(file).metadata
    bounds = [footer.row_group(n).column(0).statistics for n in range(footer.num_row_groups)]
    assert footer.num_row_groups == 3
    assert all(one.max < other.min for one, other in itertools.pairwise(bounds))
    assert footer.row_group(0).column(0).has_column_index


def found_by_other_engines(sink: Delta, condition: str) -> list[list[int]]:
    """The ids of matching rows, as engines see them that skip files and row groups."""
    table = DeltaTable(sink.uri)
    query = QueryBuilder().register("t", table).execute(f"select id from t where {condition} order by id")
    files = [file.removeprefix("file://") for file in table.file_uris()]
    duck = duckdb.execute(f"select id from read_parquet({files}) where {condition} order by id").fetchall()
    return [pa.table(query)["id"].to_pylist(), [row[0] for row in duck]]


def test_no_row_is_skipped_because_of_nan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines take NaN for the largest number, and Arrow leaves it out of statistics, also of fields of structs."""
    monkeypatch.setattr("penstock.sinks.parquet.files.BUFFER_BYTES_MAX", 1)
    sink = Delta(str(tmp_path / "t"))
    nan, kind = float("nan"), pa.struct([("x", pa.float64())])
    columns = [[1.0, 3.0], [1.0, nan], [2.0, 4.0]], [[{"x": 1.0}, None], [None, None], [{"x": nan}, {"x": 2.0}]]
    batches = [
        pa.record_batch({"id": [2 * n, 2 * n + 1], "x": x, "s": pa.array(s, kind)})
        for n, (x, s) in enumerate(zip(*columns, strict=True))
    ]
    sink.check(batches[0].schema)
    commit(sink.open_committer("user"), 1, write(sink, 1, *batches))
    assert found_by_other_engines(sink, "x > 5") == [[3]] * 2
    assert found_by_other_engines(sink, "s['x'] > 5") == [[4]] * 2
    assert found_by_other_engines(sink, "x >= 3 and x < 5") == [[1, 5]] * 2
    assert sum(pa.table(DeltaTable(sink.uri).get_add_actions())["num_records"].to_pylist()) == 6


@pytest.mark.parametrize(
    ("values", "condition", "wanted"),
    [
        (pa.array([0.0, -0.0]), "x <= -0.0", [0, 1]),
        (pa.array(["a", "b" * 32 + "\U0010ffffx"]), "x > 'b'", [1]),
        (pa.array([1, 253402300799999999], pa.timestamp("us")), "x > '2200-01-01'", [1]),
        (pa.array([1, 2932897], pa.int32()).cast(pa.date32()), "x > '9999-12-30'", [1]),
    ],
    ids=["zeros", "the largest sign", "the end of time", "behind the year 9999"],
)
def test_bounds_cover_values_at_the_edge(tmp_path: Path, values: pa.Array, condition: str, wanted: list[int]) -> None:
    sink = Delta(str(tmp_path / "t"), primary_key=["id"])
    batch = pa.record_batch({"id": [0, 1], "x": values})
    sink.check(batch.schema)
    commit(sink.open_committer("user"), 1, write(sink, 1, batch))
    found = found_by_other_engines(sink, condition)
    assert all(set(wanted) >= set(ids) >= {wanted[-1]} for ids in found)
