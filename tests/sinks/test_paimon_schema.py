"""Which streams and tables fit, what arrives unchanged, and what is refused before anything runs."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, StorageFailed, TableMismatch, TableRefused
from penstock.sinks.paimon import local as paimon_local
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import SCHEMA, commit, context, every_file, make_table, write

UTC = dt.UTC
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)  # noqa: DTZ001 - a timestamp without zone is what is tested
FIRST, LAST = dt.datetime.min, dt.datetime.max  # noqa: DTZ901

# Name: type, values, and the type under which they are read back where it is another one.
TYPES: dict[str, tuple[pa.DataType, list[Any], pa.DataType | None]] = {
    "bool": (pa.bool_(), [True, False, None], None),
    "int8": (pa.int8(), [-128, 127, None], None),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1, None], None),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1, None], None),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, None], None),
    "float32": (pa.float32(), [1.5, float("inf"), None], None),
    "float64": (pa.float64(), [-0.0, 1e-300, None], None),
    "decimal": (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0.01"), None], None),
    "wide decimal": (pa.decimal128(38, 10), [Decimal("1234567890123456789012345678.0123456789"), None], None),
    "string": (pa.string(), ["", "é😀\0", None], None),
    "large string": (pa.large_string(), ["", "x", None], pa.string()),
    "very long string": (pa.string(), ["x" * 3_000_000, "y" * 3_000_000, None], None),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a", None], pa.string()),
    "binary": (pa.binary(), [b"", b"\0\xff", None], None),
    "large binary": (pa.large_binary(), [b"\0", None], pa.binary()),
    "fixed binary": (pa.binary(2), [b"\0\xff", None], pa.binary()),
    "date": (pa.date32(), [dt.date.min, dt.date(1969, 12, 31), dt.date.max, None], None),
    "timestamp s": (pa.timestamp("s"), [NOON.replace(microsecond=0), None], None),
    "timestamp ms": (pa.timestamp("ms"), [NOON.replace(microsecond=123000), None], None),
    "timestamp us": (pa.timestamp("us"), [FIRST, NOON, LAST, None], None),
    "timestamp ns": (pa.timestamp("ns"), [1_709_212_455_123_456_789, None], None),
    "instant": (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC), None], None),
    "instant elsewhere": (
        pa.timestamp("us", "Europe/Berlin"),
        [NOON.replace(tzinfo=UTC), None],
        pa.timestamp("us", "UTC"),
    ),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": None}, None], None),
    "list": (pa.list_(pa.int64()), [[1, None], [], None], None),
    "large list": (pa.large_list(pa.large_string()), [["a"], None], pa.list_(pa.string())),
    "fixed list": (pa.list_(pa.float32(), 2), [[1.0, 2.0], None], pa.list_(pa.float32())),
    "map": (pa.map_(pa.string(), pa.int32()), [[("a", 1), ("b", None)], [], None], None),
    "not null inside": (
        pa.struct([pa.field("a", pa.list_(pa.field("item", pa.int32(), nullable=False)), nullable=False)]),
        [{"a": [1, 2]}, None],
        None,
    ),
    "deep": (
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.list_(pa.struct([("d", pa.decimal128(10, 2))]))))])),
        [[{"m": [("k", [{"d": Decimal("1.25")}, None])]}, None], [], None],
        None,
    ),
}


@pytest.mark.parametrize("name", TYPES)
def test_values_of_this_type_arrive_unchanged(name: str, tmp_path: Path) -> None:
    kind, values, read_as = TYPES[name]
    column = pa.array(values, kind)
    batch = pa.record_batch({"id": pa.array(range(len(column)), pa.int64()), "value": column})
    sink = Paimon(str(tmp_path), "db.t")
    sink.check(batch.schema)
    sink.check(batch.schema)
    commit(sink.open_committer("me"), 1, write(sink, 1, batch, schema=batch.schema))
    arrived = read_table(sink.warehouse, sink.table).sort_by("id")["value"]
    assert arrived.type == (read_as or kind)
    assert arrived.combine_chunks().cast(read_as or kind).equals(column.cast(read_as or kind))


@pytest.mark.parametrize(
    "kind",
    [
        pa.uint8(),
        pa.uint64(),
        pa.float16(),
        pa.decimal256(50, 2),
        pa.decimal128(5, -2),
        pa.date64(),
        pa.time64("us"),
        pa.time32("s"),
        pa.duration("us"),
        pa.null(),
        pa.struct([]),
        pa.list_(pa.uint16()),
        pa.struct([("a", pa.map_(pa.string(), pa.duration("s")))]),
    ],
    ids=str,
)
def test_a_type_that_paimon_cannot_hold_is_refused_before_a_table_is_made(kind: pa.DataType, tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t")
    with pytest.raises(TableMismatch, match="value"):
        sink.check(pa.schema([("id", pa.int64()), ("value", kind)]))
    assert every_file(sink) == set()


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [1, -1, 1, None]),
        (pa.string(), ["a/b", "", "ü=%", None]),
        (pa.date32(), [dt.date(1900, 1, 1), None]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(10, 2), [Decimal("1.50"), None]),
        (pa.timestamp("us"), [NOON, None]),
        (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC), None]),
    ],
    ids=str,
)
def test_a_partitioned_table_gives_back_its_partition_column(
    kind: pa.DataType, values: list[Any], tmp_path: Path
) -> None:
    """C10: one committable per partition."""
    batch = pa.record_batch({"id": pa.array(range(len(values)), pa.int64()), "part": pa.array(values, kind)})
    sink = Paimon(str(tmp_path), "db.t", partition_by=["part"])
    sink.check(batch.schema)
    committables = write(sink, 1, batch, batch, schema=batch.schema)
    assert len(committables) == len(set(values))
    receipt = commit(sink.open_committer("me"), 1, committables)
    assert (receipt.rows, receipt.files) == (2 * len(values), len(set(values)))
    arrived = read_table(sink.warehouse, sink.table).sort_by("id")
    assert arrived["part"].to_pylist() == [value for value in values for _ in range(2)]
    assert len(listed_files(sink.warehouse, sink.table)) == len(set(values))


def test_aborting_a_partitioned_writer_removes_its_files(tmp_path: Path) -> None:
    batch = pa.record_batch({"id": pa.array([1, 2]), "part": pa.array(["a/b", None])})
    sink = Paimon(str(tmp_path), "db.t", partition_by=["part"])
    sink.check(batch.schema)
    before = every_file(sink)
    sink.open_committer("me").abort(write(sink, 1, batch, schema=batch.schema))
    assert every_file(sink) == before


@pytest.mark.parametrize("kind", [pa.float64(), pa.binary(), pa.timestamp("ns"), pa.list_(pa.int64())], ids=str)
def test_a_column_that_cannot_tell_partitions_apart_is_refused(kind: pa.DataType, tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="part"):
        Paimon(str(tmp_path), "db.t", partition_by="part").check(pa.schema([("id", pa.int64()), ("part", kind)]))


@pytest.mark.parametrize("partition_by", [["nowhere"], ["id", "word"]])
def test_partitions_must_be_some_of_the_columns(partition_by: list[str], tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="partition"):
        Paimon(str(tmp_path), "db.t", partition_by=partition_by).check(SCHEMA)


def test_columns_may_stand_in_another_order(tmp_path: Path) -> None:
    sink = make_table(tmp_path, pa.schema([SCHEMA.field("word"), SCHEMA.field("id")]))
    sink.check(SCHEMA)
    batch = pa.record_batch([[1], ["one"]], schema=SCHEMA)
    commit(sink.open_committer("me"), 1, write(sink, 1, batch))
    assert read_table(sink.warehouse, sink.table).to_pylist() == [{"word": "one", "id": 1}]


@pytest.mark.parametrize(
    ("field", "seen"),
    [
        (pa.field("word", pa.binary()), r"word +string +binary"),
        (pa.field("word", pa.string(), nullable=False), r"word +string +string not null"),
        (pa.field("more", pa.string()), r"more +\(missing\) +string"),
        (pa.field("word", pa.list_(pa.string())), r"word +string +list<item: string>"),
    ],
)
def test_a_table_with_other_columns_is_refused_with_both_sides(field: pa.Field, seen: str, tmp_path: Path) -> None:
    sink = make_table(tmp_path, pa.schema([SCHEMA.field("id"), field]))
    with pytest.raises(TableMismatch, match=seen):
        sink.check(SCHEMA)


def test_a_column_that_the_table_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match=r"word +string +\(missing\)"):
        make_table(tmp_path, pa.schema([SCHEMA.field("id")])).check(SCHEMA)


def test_nulls_inside_a_list_do_not_fit_a_table_without_them(tmp_path: Path) -> None:
    strict = pa.schema([("a", pa.list_(pa.field("item", pa.int64(), nullable=False)))])
    sink = make_table(tmp_path, strict)
    sink.check(strict)
    with pytest.raises(TableMismatch, match="not null"):
        sink.check(pa.schema([("a", pa.list_(pa.int64()))]))


def test_a_table_that_changed_while_the_query_runs_stops_the_writer(sink: Paimon) -> None:
    other = pa.schema([("id", pa.int64())])
    with pytest.raises(TableMismatch):
        sink.open_writer(context(1), other)


def test_other_partitions_than_the_tables_are_refused(tmp_path: Path) -> None:
    make_table(tmp_path, SCHEMA, partition_keys=["word"]).check(SCHEMA)
    with pytest.raises(TableMismatch, match="partitioned by"):
        Paimon(str(tmp_path), "db.t", partition_by=["id"]).check(SCHEMA)


@pytest.mark.parametrize("name", ["_ROW_ID", "rowkind"])
def test_names_that_paimon_uses_itself_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match=name):
        Paimon(str(tmp_path), "db.t").check(pa.schema([("id", pa.int64()), (name, pa.int64())]))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="twice"):
        Paimon(str(tmp_path), "db.t").check(pa.schema([("id", pa.int64()), ("id", pa.int64())]))


def test_options_are_given_to_a_new_table(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", options={"target-file-size": "1 kb"})
    sink.check(SCHEMA)
    batch = pa.record_batch([range(100), ["x" * 100] * 100], schema=SCHEMA)
    commit(sink.open_committer("me"), 1, write(sink, 1, batch))
    assert len(listed_files(sink.warehouse, sink.table)) > 5


def test_a_table_that_numbers_its_rows_can_be_written(tmp_path: Path) -> None:
    """Numbers are given when a snapshot is built, so a lost race must give new ones."""
    sink = Paimon(str(tmp_path), "db.t", options={"row-tracking.enabled": "true"})
    sink.check(SCHEMA)
    ready = {n: write(sink, n, pa.record_batch([[n], ["x"]], schema=SCHEMA)) for n in (1, 2)}
    once = iter([True])

    def paused() -> bool:
        if next(once, False):
            commit(sink.open_committer("stranger"), 1, ready[1])
        return True

    commit(sink.open_committer("me"), 2, ready[2], still_leader=paused)
    numbered = open_table(sink.warehouse, sink.table).new_read_builder().with_projection(["id", "_ROW_ID"])
    arrived = numbered.new_read().to_arrow(numbered.new_scan().plan().splits())
    assert sorted(arrived.to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "_ROW_ID": 0},
        {"id": 2, "_ROW_ID": 1},
    ]


def test_an_option_that_pypaimon_refuses_is_told(tmp_path: Path) -> None:
    with pytest.raises(TableRefused, match="changelog-producer"):
        Paimon(str(tmp_path), "db.t", options={"changelog-producer": "input"}).check(SCHEMA)


def test_a_missing_table_is_made_only_when_allowed(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", create=False)
    with pytest.raises(TableMismatch, match="create=False"):
        sink.check(SCHEMA)
    assert list(tmp_path.iterdir()) == []


def test_a_warehouse_below_a_file_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="file"):
        Paimon(str(tmp_path / "file" / "lake"), "db.t").check(SCHEMA)


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_warehouse_without_permission_cannot_be_used(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StorageFailed, match="permission"):
        Paimon(str(tmp_path), "db.t").check(SCHEMA)


def test_an_existing_table_that_cannot_be_written_is_found_before_work_begins(
    sink: Paimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, content: str) -> Path:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(paimon_local, "write_hidden", read_only)
    with pytest.raises(StorageFailed, match="read-only"):
        sink.check(SCHEMA)


def test_a_file_system_without_hard_links_is_found_before_work_begins(
    sink: Paimon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(self: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    with pytest.raises(StorageFailed, match="hard link"):
        sink.check(SCHEMA)


def test_a_table_whose_schema_is_damaged_is_named(sink: Paimon) -> None:
    Path(sink.warehouse, "shop.db/words/schema/schema-0").write_text("{")
    with pytest.raises(StorageFailed, match=r"shop\.words"):
        sink.check(SCHEMA)


def test_checking_a_table_leaves_no_file_behind(sink: Paimon) -> None:
    before = every_file(sink)
    sink.check(SCHEMA)
    assert every_file(sink) == before


def test_a_relative_warehouse_means_the_same_folder_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Paimon("lake", "db.t").warehouse == str(tmp_path / "lake")
    assert Paimon((tmp_path / "lake").as_uri(), "db.t").warehouse == str(tmp_path / "lake")
    assert Paimon("s3://bucket/lake", "db.t").warehouse == "s3://bucket/lake"


def test_a_warehouse_may_have_any_name(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path / "wäre haus %20 #1"), "db.t")
    sink.check(SCHEMA)
    commit(sink.open_committer("me"), 1, write(sink, 1, pa.record_batch([[1], ["one"]], schema=SCHEMA)))
    assert read_table(sink.warehouse, sink.table).num_rows == 1


@pytest.mark.parametrize("table", ["t", "a.b.c", "db.t$branch_x", "db.", ".t", "db.a/b", "db.`t`"])
def test_a_table_is_named_by_database_and_name(table: str) -> None:
    with pytest.raises(ConfigError, match=r"database\.table"):
        Paimon("lake", table)
