"""Lakes with a primary key: the newest row of a key wins, deletes delete, and every commit is exact."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from penstock.errors import ConfigError, SubtaskFailed, TableMismatch, TableRefused
from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks import CommitPermit, Committable, WriterContext
from penstock.sinks.delta.sink import Delta
from penstock.sinks.iceberg.catalog import open_table
from penstock.sinks.iceberg.sink import Iceberg
from tests.support.seeds import FRESH, drawn

KINDS = ("delta", "iceberg")
SCHEMA = pa.schema([("day", pa.string()), ("user", pa.int64()), ("total", pa.int64()), ("op", pa.string())])
Row = tuple[str, int, int, str]


def sink_in(kind: str, folder: Path, **options: Any) -> Any:
    if kind == "delta":
        return Delta(str(folder / "t"), **options)
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}
    return Iceberg(catalog, "shop.t", **options)


def read(sink: Any) -> pa.Table:
    if isinstance(sink, Delta):
        return DeltaTable(sink.uri).to_pyarrow_table()
    return open_table(sink.catalog, sink.table).scan().to_arrow()


def batch_of(rows: Sequence[Row]) -> pa.RecordBatch:
    return pa.record_batch(
        [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), SCHEMA.types, strict=True)],
        schema=SCHEMA,
    )


def written(sink: Any, checkpoint: int, *batches: pa.RecordBatch, subtask: int = 0) -> list[Committable]:
    context = WriterContext(CheckpointId(checkpoint), Generation(1), subtask, 2, attempt="0")
    writer = sink.open_writer(context, batches[0].schema)
    for batch in batches:
        writer.write(batch)
    return list(writer.prepare())


def commit(committer: Any, checkpoint: int, committables: Sequence[Committable]) -> Any:
    return committer.commit(
        CommitPermit(Generation(1), CheckpointId(checkpoint)),
        committables,
        watermark=None,
        properties={},
        still_leader=lambda: True,
    )


def keyed(kind: str, folder: Path, *, partitioned: bool = True) -> Any:
    sink = sink_in(
        kind, folder, primary_key=["day", "user"], row_kind="op", partition_by=["day"] if partitioned else []
    )
    sink.check(SCHEMA)
    return sink


def shown(sink: Any) -> dict[tuple[str, int], int]:
    rows = read(sink).to_pylist()
    found = {(row["day"], row["user"]): row["total"] for row in rows}
    assert len(found) == len(rows), "a key is there twice"
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [1, 2, FRESH])
def test_random_changes_leave_what_a_dictionary_would_hold(
    kind: str, seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several checkpoints per commit, two writers that own their keys, rows that are put down before the epoch ends."""
    choose = random.Random(drawn(seed))
    monkeypatch.setattr("penstock.sinks.lake.keys.BUFFER_BYTES_MAX", choose.choice([200, 1 << 20]))
    sink = keyed(kind, tmp_path, partitioned=choose.random() < 0.5)
    committer = sink.open_committer("user")
    wanted: dict[tuple[str, int], int] = {}
    checkpoint = 0
    for _ in range(12):
        pending: list[Committable] = []
        for _ in range(choose.randint(1, 3)):
            checkpoint += 1
            by_writer: dict[int, list[list[Row]]] = {0: [], 1: []}
            for _ in range(choose.randint(1, 3)):
                rows: dict[int, list[Row]] = {0: [], 1: []}
                for _ in range(choose.randint(1, 8)):
                    day, user = f"d{choose.randrange(3)}", choose.randrange(12)
                    total, op = choose.randrange(1000), choose.choice(["+I", "+U", "+U", "-D"])
                    rows[user % 2].append((day, user, total, op))
                    if op == "-D":
                        wanted.pop((day, user), None)
                    else:
                        wanted[day, user] = total
                for writer, some in rows.items():
                    if some:
                        by_writer[writer].append(some)
            for writer, batches in by_writer.items():
                if batches:
                    pending += written(sink, checkpoint, *map(batch_of, batches), subtask=writer)
        commit(committer, checkpoint, pending)
        assert shown(sink) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_commit_changes_nothing_and_other_writers_rows_are_merged_too(kind: str, tmp_path: Path) -> None:
    sink = keyed(kind, tmp_path)
    committer = sink.open_committer("user")
    first = written(sink, 1, batch_of([("d0", 1, 10, "+I"), ("d0", 2, 20, "+I")]))
    commit(committer, 1, first)
    others = pa.table({"day": ["d0", "d1"], "user": [3, 4], "total": [30, 40]})
    if kind == "delta":
        write_deltalake(sink.uri, others, mode="append")
    else:
        open_table(sink.catalog, sink.table).append(others)
    second = written(sink, 2, batch_of([("d0", 3, 31, "+U"), ("d1", 4, 0, "-D"), ("d0", 1, 11, "+U")]))
    commit(committer, 2, second)
    again = sink.open_committer("user")
    assert commit(again, 2, second).checkpoint == 2
    assert shown(sink) == {("d0", 1): 11, ("d0", 2): 20, ("d0", 3): 31}


@pytest.mark.parametrize("kind", KINDS)
def test_a_rival_that_commits_meanwhile_makes_the_merge_start_over(kind: str, tmp_path: Path) -> None:
    """The merge was computed for a table that is not the newest any more: it is thrown away."""
    sink = keyed(kind, tmp_path, partitioned=False)
    committer = sink.open_committer("user")
    commit(committer, 1, written(sink, 1, batch_of([("d0", n, n, "+I") for n in range(10)])))
    changed = written(sink, 2, batch_of([("d0", 3, 33, "+U"), ("d0", 99, 99, "+I")]))
    real, rivals = committer._change, [1]

    def change(files: Any) -> Any:
        found = real(files)
        if rivals:
            rivals.pop()
            others = pa.table({"day": ["d0"], "user": [99], "total": [-1]})
            if kind == "delta":
                write_deltalake(sink.uri, others, mode="append")
            else:
                open_table(sink.catalog, sink.table).append(others)
        return found

    committer._change = change
    commit(committer, 2, changed)
    assert shown(sink) == {("d0", n): n for n in range(10)} | {("d0", 3): 33, ("d0", 99): 99}
    folder = tmp_path / ("t" if kind == "delta" else "shop")
    assert len(list(folder.rglob("merged-*.parquet"))) == 1, "what the first try had rewritten is removed"


@pytest.mark.parametrize("kind", KINDS)
def test_only_files_that_hold_a_changed_key_are_rewritten(kind: str, tmp_path: Path) -> None:
    sink = keyed(kind, tmp_path, partitioned=False)
    committer = sink.open_committer("user")
    for number in range(5):
        rows = [(f"d{number}", user, 0, "+I") for user in range(100)]
        commit(committer, number + 1, written(sink, number + 1, batch_of(rows)))

    def listed() -> set[str]:
        if kind == "delta":
            return set(DeltaTable(sink.uri).get_add_actions()["path"].to_pylist())
        return {task.file.file_path for task in open_table(sink.catalog, sink.table).scan().plan_files()}

    before = listed()
    commit(committer, 6, written(sink, 6, batch_of([("d3", 7, 1, "+U")])))
    assert len(before & listed()) == 4
    assert shown(sink)["d3", 7] == 1


@pytest.mark.parametrize("kind", KINDS)
def test_keys_of_every_type_are_found_again(kind: str, tmp_path: Path) -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    values = {
        "int": pa.array([1, -2], pa.int32()),
        "text": pa.array(["", "ä" * 100]),
        "bytes": pa.array([b"\0", b"x"]),
        "flag": pa.array([True, False]),
        "day": pa.array([date(2026, 1, 2), date(1960, 1, 1)], pa.date32()),
        "moment": pa.array([moment, moment.replace(year=1960)], pa.timestamp("us", "UTC")),
        "price": pa.array([Decimal("1.25"), Decimal("-3.50")], pa.decimal128(10, 2)),
    }
    for name, column in values.items():
        (tmp_path / name).mkdir()
        sink = sink_in(kind, tmp_path / name, primary_key=[name])
        schema = pa.schema([(name, column.type), ("n", pa.int64())])
        sink.check(schema)
        committer = sink.open_committer("user")
        for checkpoint, numbers in ((1, [1, 2]), (2, [3, 4])):
            rows = pa.record_batch([column, pa.array(numbers)], schema=schema)
            commit(committer, checkpoint, written(sink, checkpoint, rows))
        assert sorted(read(sink)["n"].to_pylist()) == [3, 4], name


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_came_later_is_kept_by_a_merge(kind: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"primary_key": ["id"], "evolve_table": True}
    sink = sink_in(kind, tmp_path, **options)
    narrow = pa.record_batch({"id": pa.array([1, 2, 3])})
    sink.check(narrow.schema)
    commit(sink.open_committer("user"), 1, written(sink, 1, narrow))
    wide = pa.record_batch({"id": pa.array([2]), "more": pa.array(["x"])})
    sink.check(wide.schema)
    commit(sink.open_committer("user"), 2, written(sink, 2, wide))
    rows = read(sink).sort_by("id").to_pylist()
    assert rows == [{"id": 1, "more": None}, {"id": 2, "more": "x"}, {"id": 3, "more": None}]


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_exact_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(TableRefused, match="which is not part of the primary key"):
        sink_in(kind, tmp_path, primary_key=["user"], partition_by=["day"]).check(SCHEMA)
    with pytest.raises(TableMismatch, match="names 'nobody'"):
        sink_in(kind, tmp_path, primary_key=["nobody"]).check(SCHEMA)
    with pytest.raises(TableRefused, match="is a double"):
        sink_in(kind, tmp_path, primary_key=["x"]).check(pa.schema([("x", pa.float64()), ("y", pa.int64())]))
    with pytest.raises(ConfigError, match="without primary_key"):
        sink_in(kind, tmp_path, row_kind="op")
    sink = keyed(kind, tmp_path)
    nulls = pa.record_batch([["d"], pa.array([None], pa.int64()), [1], ["+I"]], schema=SCHEMA)
    with pytest.raises(SubtaskFailed, match="has no value in user"):
        written(sink, 1, nulls)
    limited = sink_in(
        kind, tmp_path, primary_key=["day", "user"], row_kind="op", partition_by=["day"], merge_bytes_max=1
    )
    committer = limited.open_committer("user")
    commit(committer, 1, written(limited, 1, batch_of([("d0", 1, 1, "+I")])))
    with pytest.raises(TableRefused, match="would rewrite more than 1 bytes"):
        commit(committer, 2, written(limited, 2, batch_of([("d0", 1, 2, "+I")])))
    assert shown(limited) == {("d0", 1): 1}


def test_a_delta_table_that_forbids_changes_is_refused(tmp_path: Path) -> None:
    for number, option in enumerate(("delta.appendOnly", "delta.enableChangeDataFeed", "delta.enableDeletionVectors")):
        sink = Delta(str(tmp_path / f"t{number}"), primary_key=["id"], configuration={option: "true"})
        with pytest.raises(TableRefused):
            sink.check(pa.schema([("id", pa.int64()), ("n", pa.int64())]))


def test_rows_of_partitions_with_odd_names_are_replaced_and_their_files_stay(tmp_path: Path) -> None:
    """The log spells paths like URLs; an entry that takes a file out has to spell it in the same way."""
    sink = Delta(str(tmp_path / "t"), primary_key=["day", "user"], partition_by=["day"])
    days = ["a/b", "x y", "ä%41", "a=b", "%2F", "é[*]"]
    batches = [pa.record_batch({"day": days, "user": [1] * len(days), "total": [n] * len(days)}) for n in range(3)]
    sink.check(batches[0].schema)
    committer = sink.open_committer("user")
    for checkpoint, batch in enumerate(batches, 1):
        commit(committer, checkpoint, written(sink, checkpoint, batch))
    assert sorted(read(sink).to_pylist(), key=str) == sorted(batches[-1].to_pylist(), key=str)
    committer.remove([str(path.relative_to(sink.uri)) for path in Path(sink.uri).rglob("*-3-*.parquet")])
    assert read(sink).num_rows == len(days), "a file that the table lists is never removed"


def test_a_path_that_cannot_be_taken_out_again_is_refused(tmp_path: Path) -> None:
    sink = Delta(str(tmp_path / "t"), primary_key=["day", "user"], partition_by=["day"])
    batch = pa.record_batch({"day": ["ä"], "user": [1]})
    sink.check(batch.schema)
    commit(sink.open_committer("user"), 1, written(sink, 1, batch))
    entry = tmp_path / "t" / "_delta_log" / f"{1:020}.json"
    entry.write_text(entry.read_text().replace("day=%25C3%25A4", "day=ä"))
    (tmp_path / "t" / "day=%C3%A4").rename(tmp_path / "t" / "day=ä")
    with pytest.raises(TableRefused, match="spells signs in paths differently"):
        commit(sink.open_committer("user"), 2, written(sink, 2, batch))
