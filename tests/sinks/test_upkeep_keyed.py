"""Upkeep merges the sorted runs of tables with a primary key: every reader sees the same rows, in fewer files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pypaimon import CatalogFactory
from pypaimon.schema.data_types import AtomicType
from pypaimon.schema.schema_change import SchemaChange

from penstock.protocol.sorted_runs import Tiering
from penstock.sinks.paimon.commit import PaimonCommitter
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.upkeep import compact, files, keyed, runs
from penstock.sinks.paimon.upkeep import keeper as keeper_module
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.keeper import PaimonKeeper
from penstock.sinks.paimon.upkeep.live import LiveFiles
from penstock.sinks.upkeep import Upkeep
from tests.support.second_reader import root_of, snapshot_json, snapshots_of
from tests.support.tables import commit, context

COLUMNS = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("word", pa.string())])
CHANGES = pa.schema([*COLUMNS, ("op", pa.string())])
USER = "penstock-me-keyed"
ONLY_RUNS = Upkeep(manifests=None, expire=False)

Row = tuple[Any, ...]


class Table:
    """A table with one bucket, unless told otherwise, whose epochs are given as rows."""

    def __init__(self, folder: Path, schema: pa.Schema = COLUMNS, **arguments: Any) -> None:
        self.schema = schema
        arguments = {"primary_key": ["id"], "buckets": 1} | arguments
        self.sink = Paimon(str(folder / "lake"), "shop.t", **arguments)
        self.sink.check(schema)
        self.committer: PaimonCommitter = self.sink.open_committer(USER)
        self.checkpoint = 0

    def write(self, *rows: Row) -> Any:
        self.checkpoint += 1
        columns = [
            pa.array(values, field.type) for values, field in zip(zip(*rows, strict=True), self.schema, strict=True)
        ]
        writer = self.sink.open_writer(context(self.checkpoint), self.schema)
        writer.write(pa.record_batch(columns, schema=self.schema))
        return writer.prepare()

    def commit(self, *rows: Row) -> None:
        commit(self.committer, self.checkpoint + 1, self.write(*rows))

    def merge(self, tiering: Tiering | None = None) -> None:
        """All runs, unless `tiering` says when."""
        with pytest.MonkeyPatch.context() as patch:
            chosen = tiering or Tiering(trigger=1, excess_percent=0)
            patch.setattr(runs, "tiering_of", lambda *_: chosen)
            keeper = self.keeper()
            while (report := keeper.step()).more:
                pass
        assert not report.failures, report.failures

    def keeper(self) -> PaimonKeeper:
        return PaimonKeeper(self.sink.warehouse, self.sink.table, ONLY_RUNS, own_user=USER)

    def rows(self, snapshot: int | None = None) -> list[Row]:
        found = read_table(self.sink.warehouse, self.sink.table, snapshot).to_pylist()
        return sorted(tuple(row.values()) for row in found)

    def levels(self) -> list[int]:
        return [int(entry.file.level) for entry in self.entries()]

    def entries(self) -> list[Any]:
        live = LiveFiles()
        live.advance(KeptTable(self.sink.warehouse, self.sink.table))
        return [entry for files in live.places.values() for entry in files.values()]


def numbered(ids: Sequence[int], n: int) -> list[Row]:
    return [(i, n, f"{i}-{n}") for i in ids]


def test_merged_runs_show_the_newest_row_of_each_key_and_older_snapshots_stay_as_they_were(tmp_path: Path) -> None:
    table = Table(tmp_path)
    for n in range(6):
        table.commit(*numbered(range(n, n + 4), n))
    before = {number: table.rows(number) for number in snapshots_of(table.sink)}
    table.merge()
    assert table.levels() == [5]
    assert table.rows() == before[6]
    assert {number: table.rows(number) for number in before} == before
    newest = snapshot_json(table.sink, snapshots_of(table.sink)[-1])
    assert (newest["commitKind"], newest["commitUser"]) == ("COMPACT", "penstock.upkeep")
    assert (newest["totalRecordCount"], newest["deltaRecordCount"]) == (9, -15)


def test_rows_that_wait_for_their_commit_are_newer_than_all_that_was_merged(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit((1, 1, "a"), (2, 1, "b"))
    pending = table.write((1, 2, "pending"))
    commit(table.committer, 1, [])
    table.merge()
    commit(table.committer, 2, pending)
    assert table.rows() == [(1, 2, "pending"), (2, 1, "b")]
    table.merge()
    assert table.rows() == [(1, 2, "pending"), (2, 1, "b")]


def test_merged_rows_keep_their_sequence_numbers(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit((1, 1, "a"))
    table.commit((2, 1, "b"))
    table.commit((1, 2, "c"))
    before = {(e.file.min_sequence_number, e.file.max_sequence_number) for e in table.entries()}
    table.merge()
    (merged,) = table.entries()
    assert merged.file.max_sequence_number == max(high for _, high in before)
    assert merged.file.min_sequence_number == 2 << 32


def test_deletes_go_when_there_is_nothing_older_and_stay_otherwise(tmp_path: Path) -> None:
    table = Table(tmp_path, CHANGES, row_kind="op")
    many = [(*row, "+I") for row in numbered(range(100, 3_000), 1)]
    table.commit((1, 1, "a", "+I"), (2, 1, "b", "+I"), (3, 1, "c", "+I"))
    table.commit(*many)
    table.merge()
    table.commit((2, 2, "", "-D"))
    table.commit((3, 2, "", "-D"), (4, 1, "d", "+I"))
    table.merge(Tiering(trigger=2, excess_percent=10_000, ratio_percent=0))
    assert sorted(table.levels()) == [4, 5]
    assert [int(e.file.delete_row_count) for e in table.entries() if e.file.level == 4] == [2]
    assert table.rows()[:3] == [(1, 1, "a"), (4, 1, "d"), (100, 1, "100-1")]
    table.merge()
    assert table.levels() == [5]
    assert [int(e.file.delete_row_count) for e in table.entries()] == [0]
    assert table.rows()[:3] == [(1, 1, "a"), (4, 1, "d"), (100, 1, "100-1")]


def test_a_table_whose_rows_are_all_deleted_has_no_file_left(tmp_path: Path) -> None:
    table = Table(tmp_path, CHANGES, row_kind="op")
    table.commit((1, 1, "a", "+I"))
    table.commit((1, 1, "a", "-D"))
    table.merge()
    assert (table.levels(), table.rows()) == ([], [])
    table.commit((1, 2, "again", "+I"))
    assert table.rows() == [(1, 2, "again")]


def test_a_delete_stays_where_a_row_that_belongs_before_it_may_still_come(tmp_path: Path) -> None:
    """With sequence.field the order of arrival does not count: dropped, the delete could not hide the late row."""
    table = Table(tmp_path, CHANGES, row_kind="op", options={"sequence.field": "n"})
    table.commit((1, 5, "a", "+I"))
    table.commit((1, 9, "", "-D"))
    table.merge()
    table.commit((1, 7, "late", "+I"))
    assert table.rows() == []
    table.merge()
    assert table.rows() == []


def test_first_row_tables_show_their_rows_after_upkeep_and_never_change_them(tmp_path: Path) -> None:
    table = Table(tmp_path, merge_engine="first-row")
    table.commit((1, 1, "first"), (2, 1, "first"))
    assert table.rows() == []
    table.keeper().step()
    assert table.rows() == [(1, 1, "first"), (2, 1, "first")]
    table.commit((2, 2, "second"), (3, 2, "first"))
    table.commit((0, 3, "first"), (3, 3, "second"))
    keeper = table.keeper()
    while keeper.step().more:
        pass
    assert 0 not in table.levels()
    assert table.rows() == [(0, 3, "first"), (1, 1, "first"), (2, 1, "first"), (3, 2, "first")]


def test_the_older_half_of_a_first_row_table_is_looked_at_and_not_rewritten(tmp_path: Path) -> None:
    """Its readers do not merge, so a key must not be in two files."""
    table = Table(tmp_path, merge_engine="first-row")
    table.commit(*numbered(range(2_000), 1))
    table.keeper().step()
    (old,) = listed_files(table.sink.warehouse, table.sink.table)
    table.commit((5, 2, "second"), (5_000, 2, "first"))
    table.keeper().step()
    assert old in listed_files(table.sink.warehouse, table.sink.table)
    assert len(table.rows()) == 2_001
    assert [int(e.file.row_count) for e in table.entries() if e.file.level == 4] == [1]


def test_partial_updates_and_sums_are_the_same_however_runs_were_merged(tmp_path: Path) -> None:
    rows = [(1, None, "a"), (1, 5, None), (2, 1, None), (1, None, None), (2, 1, "z"), (1, 6, None)]
    shown = {"partial-update": [(1, 6, "a"), (2, 1, "z")], "aggregation": [(1, 11, "a"), (2, 2, "z")]}
    for engine, expected in shown.items():
        sums = {"fields.n.aggregate-function": "sum"} if engine == "aggregation" else {}
        table = Table(tmp_path / engine, merge_engine=engine, options=sums)
        for number, row in enumerate(rows):
            table.commit(row)
            if number % 2:
                table.merge(Tiering(trigger=2, excess_percent=10_000) if number < 4 else None)
        assert table.rows() == expected


def test_files_of_an_older_schema_are_merged_in_the_newest(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.commit((1, 1, "a"), (2, 1, "b"))
    catalog = CatalogFactory.create({"warehouse": table.sink.warehouse})
    change = SchemaChange.add_column("extra", AtomicType("INT"))
    catalog.alter_table("shop.t", [change, SchemaChange.rename_column("word", "text")], False)
    table.schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("text", pa.string()), ("extra", pa.int32())])
    table.committer = table.sink.open_committer(USER)
    table.commit((2, 2, "c", 7))
    table.merge()
    assert len(table.levels()) == 1
    assert table.rows() == [(1, 1, "a", None), (2, 2, "c", 7)]


def test_large_files_that_meet_no_other_change_their_level_only(tmp_path: Path) -> None:
    table = Table(tmp_path, options={"target-file-size": "1 kb"})
    table.commit(*numbered(range(100), 1))
    table.commit(*numbered(range(500, 600), 2))
    before = set(listed_files(table.sink.warehouse, table.sink.table))
    shown = table.rows()
    table.merge()
    assert before & set(listed_files(table.sink.warehouse, table.sink.table))
    assert set(table.levels()) == {5}
    assert table.rows() == shown


def test_a_bucket_that_does_not_fit_into_memory_is_merged_piece_by_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "_ROWS_AT_ONCE", 1)
    monkeypatch.setattr(keyed, "_BATCH_ROWS_MIN", 7)
    table = Table(tmp_path)
    for n in range(4):
        table.commit(*numbered(range(n * 31, n * 31 + 100), n), *numbered(range(1_000, 1_050, n + 1), n))
    before = table.rows()
    table.merge()
    (merged,) = table.entries()
    stored = pq.read_table(next(root_of(table.sink).rglob(merged.file.file_name)))["id"].to_pylist()
    assert stored == sorted(set(stored))
    assert table.rows() == before


def test_a_merge_is_dropped_when_another_engine_merged_the_bucket_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    for n in range(6):
        table.commit(*numbered(range(4), n))
    merged = compact.merge_unit

    def with_a_rival(*args: Any) -> Any:
        monkeypatch.setattr(compact, "merge_unit", merged)
        table.merge()
        return merged(*args)

    monkeypatch.setattr(compact, "merge_unit", with_a_rival)
    report = table.keeper().step()
    assert (report.files_compacted, report.failures) == (0, ())
    assert len(table.levels()) == 1
    files = {path.name for path in root_of(table.sink).rglob("*.parquet")}
    assert len(files) == 7, "the rewrite that lost is gone"
    assert table.rows() == numbered(range(4), 5)


def test_a_commit_while_runs_are_merged_keeps_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path)
    for n in range(6):
        table.commit(*numbered(range(4), n))
    merged = compact.merge_unit

    def with_a_commit(*args: Any) -> Any:
        table.commit((2, 99, "late"), (9, 99, "new"))
        return merged(*args)

    monkeypatch.setattr(compact, "merge_unit", with_a_commit)
    assert table.keeper().step().files_compacted == 6
    assert sorted(table.levels()) == [0, 5]
    assert table.rows() == sorted([*numbered([0, 1, 3], 5), (2, 99, "late"), (9, 99, "new")])


def test_buckets_of_rows_that_take_others_back_stay_where_the_engine_cannot(tmp_path: Path) -> None:
    """Only another engine writes such files: merging them here would forget what they take back."""
    table = Table(tmp_path, merge_engine="partial-update")
    for n in range(6):
        table.commit((1, n, None))
    entries = table.entries()
    odd = dataclasses.replace(entries[0], file=dataclasses.replace(entries[0].file, delete_row_count=1))
    kept = KeptTable(table.sink.warehouse, table.sink.table)
    live = LiveFiles()
    live.advance(kept)
    ((place, files),) = live.places.items()
    live.places[place] = files | {odd.file.file_name: odd}
    units, notes = runs.plan_runs(kept, live)
    assert units == []
    assert "take others back" in notes[0]


def test_a_table_that_says_write_only_is_left_to_another_engine(tmp_path: Path) -> None:
    table = Table(tmp_path, options={"write-only": "true"})
    for n in range(6):
        table.commit(*numbered(range(4), n))
    report = PaimonKeeper(table.sink.warehouse, table.sink.table, Upkeep(manifests=None, snapshots_for=0.0)).step()
    assert not report.did_something
    assert len(report.notes) == 2
    assert all("write-only" in note for note in report.notes)


def test_compaction_is_left_to_another_engine_that_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both would rewrite the same files, one of them for nothing; an hour after the other's last one ours begins."""
    table = Table(tmp_path)
    for n in range(6):
        table.commit(*numbered(range(4), n))
    monkeypatch.setattr(files, "UPKEEP_USER", "somebody else")
    table.merge()
    monkeypatch.undo()
    for n in range(6):
        table.commit(*numbered(range(4), n))
    now = time.time()
    keeper = PaimonKeeper(table.sink.warehouse, table.sink.table, ONLY_RUNS, own_user=USER, clock=lambda: now)
    report = keeper.step()
    assert "another engine compacted" in report.notes[0]
    assert len(table.levels()) == 7
    now += 3700
    assert keeper.step().files_compacted == 7
    assert table.rows() == numbered(range(4), 5)


@pytest.mark.parametrize("engine", ["deduplicate", "first-row"])
def test_a_large_merge_is_given_to_tasks_that_know_nothing_but_bytes(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "ELSEWHERE_BYTES", 0)
    schema = pa.schema([("day", pa.string()), *COLUMNS])
    table = Table(tmp_path, schema, primary_key=["day", "id"], partition_by=["day"], buckets=2, merge_engine=engine)
    tasks: list[int] = []

    def run(work: Any, payloads: Sequence[bytes]) -> list[bytes]:
        tasks.append(len(payloads))
        return [work(payload) for payload in payloads]

    for n in range(12):
        table.commit(*[(day, *row) for day in ("mon", "tue") for row in numbered(range(40), n)])
        if n % 3 == 2:
            keeper = table.keeper()
            keeper.use_tasks(run)
            while (report := keeper.step()).more:
                pass
            assert not report.failures, report.failures
    keeper.step()
    newest = 0 if engine == "first-row" else 11
    assert max(tasks) == 4, "one for each bucket of each partition"
    assert table.rows() == sorted((day, *row) for day in ("mon", "tue") for row in numbered(range(40), newest))


NESTED = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    "alter",
    [
        [SchemaChange.rename_column(["s", "a"], "z")],
        [SchemaChange.rename_column(["s", "a"], "c"), SchemaChange.rename_column(["s", "b"], "a")],
        [SchemaChange.drop_column(["s", "a"]), SchemaChange.add_column(["s", "a"], AtomicType("BIGINT"))],
        [SchemaChange.add_column(["s", "new"], AtomicType("STRING"))],
        [SchemaChange.update_column_type(["s", "b"], AtomicType("STRING"))],
        [SchemaChange.rename_column(["l", "element", "a"], "z")],
        [SchemaChange.rename_column(["m", "value", "b"], "z")],
    ],
    ids=["rename", "rename in turn", "drop and add", "add", "type", "in a list", "in a map"],
)
def test_fields_of_structs_that_were_altered_keep_their_values(tmp_path: Path, alter: list[SchemaChange]) -> None:
    struct = pa.struct([("a", pa.int64()), ("b", pa.int64())])
    kinds = [("id", pa.int64()), ("s", struct), ("l", pa.list_(struct)), ("m", pa.map_(pa.string(), struct))]
    table = Table(tmp_path, pa.schema(kinds))
    table.commit((1, NESTED, [NESTED, None], [("k", NESTED)]), (2, None, None, None))
    table.commit((3, {"a": 5, "b": None}, [], []), (4, NESTED, [NESTED], [("k", None), ("l", NESTED)]))
    CatalogFactory.create({"warehouse": table.sink.warehouse}).alter_table(table.sink.table, alter)
    before = table.rows()
    table.merge()
    assert table.levels() == [5]
    assert table.rows() == before
