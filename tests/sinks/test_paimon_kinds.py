"""C10: which kinds of tables are written, which are refused at start, and what is said then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import ConfigError, TableMismatch, TableRefused
from penstock.sinks.paimon.kinds import DEFAULT_BUCKETS, Kind
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import every_file, make_table

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("share", pa.float64()), ("op", pa.string())])
KEYED: dict[str, Any] = {"primary_keys": ["id"]}


def _keyed(**options: str) -> dict[str, Any]:
    return KEYED | {"options": {"bucket": "2"} | {name.replace("_", "-"): value for name, value in options.items()}}


def _optional(option: str) -> dict[str, Any]:
    return KEYED | {"options": {"bucket": "2", option: "true"}}


def _merged(engine: str, **options: str) -> dict[str, Any]:
    return KEYED | {"options": {"bucket": "2", "merge-engine": engine} | options}


# What is refused, and a word of what to do instead.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dynamic bucket": (KEYED | {"options": {"bucket": "-1"}}, "buckets=4"),
    "postponed bucket": (KEYED | {"options": {"bucket": "-2"}}, "buckets=4"),
    "no bucket": (KEYED | {"options": {"bucket": "0"}}, "buckets=4"),
    "cross-partition update": (_keyed() | {"partition_keys": ["word"]}, "part of the primary key"),
    "key is the partition": (_keyed() | {"partition_keys": ["id"]}, "out of partition_by"),
    "buckets without a key": ({"options": {"bucket": "2"}}, "bucket_key="),
    "bucket key outside the primary key": (_keyed(bucket_key="word"), "leave word out"),
    "bucket key among the partitions": (
        {"partition_keys": ["word"], "options": {"bucket": "2", "bucket-key": "word"}},
        "leave word out",
    ),
    "float as key": ({"primary_keys": ["share"], "options": {"bucket": "2"}}, "integers"),
    "float as bucket key": ({"options": {"bucket": "2", "bucket-key": "share"}}, "integers"),
    "input changelog": (_keyed(changelog_producer="input"), "compaction job"),
    "lookup changelog": (_keyed(changelog_producer="lookup"), "compaction job"),
    "full-compaction changelog": (_keyed(changelog_producer="full-compaction"), "compaction job"),
    "deletion vectors": (_optional("deletion-vectors.enabled"), "leave the option"),
    "null keys": (_optional("primary-key.nullable"), "fill nulls"),
    "thin files": (_optional("data-file.thin-mode"), "leave the option"),
    "other buckets": (_keyed() | {"options": {"bucket": "2", "bucket-function.type": "mod"}}, "leave the option"),
    "sequence groups": (_merged("partial-update", **{"fields.op.sequence-group": "word"}), "aggregate in the pipeline"),
    "deletes in partial-update": (
        _merged("partial-update", **{"partial-update.remove-record-on-delete": "true"}),
        "aggregate in",
    ),
    "unknown function": (_merged("aggregation", **{"fields.word.aggregate-function": "rbm64"}), "aggregate in"),
    "sum of words": (_merged("aggregation", **{"fields.word.aggregate-function": "sum"}), "aggregate in"),
    "sequence field of first-row": (_merged("first-row", **{"sequence.field": "op"}), "aggregate in"),
    "orc": ({"options": {"file.format": "orc"}}, "parquet"),
    "avro": ({"options": {"file.format": "avro"}}, "parquet"),
    "formats by level": ({"options": {"file.format.per.level": "0:avro"}}, "parquet"),
    "data evolution": (
        {"options": {"row-tracking.enabled": "true", "data-evolution.enabled": "true"}},
        "leave the option",
    ),
    "files cut by rows": ({"options": {"target-file-row-num": "10"}}, "target-file-size"),
    "external files": ({"options": {"data-file.external-paths": "file:///elsewhere"}}, "inside the warehouse"),
}


@pytest.mark.parametrize("shape", REFUSED)
def test_an_existing_table_that_cannot_be_written_exactly_once_is_refused(shape: str, tmp_path: Path) -> None:
    """C10"""
    arguments, instead = REFUSED[shape]
    sink = make_table(tmp_path, SCHEMA, **arguments)
    for ask in (sink.check, sink.routing):
        with pytest.raises(TableRefused) as refused:
            ask(SCHEMA)
        assert refused.value.cause
        assert instead in refused.value.next_step


@pytest.mark.parametrize("shape", REFUSED)
def test_a_new_table_that_cannot_be_written_exactly_once_is_not_made(shape: str, tmp_path: Path) -> None:
    """C10"""
    arguments, instead = REFUSED[shape]
    sink = Paimon(
        str(tmp_path),
        "db.t",
        primary_key=arguments.get("primary_keys", ()),
        partition_by=arguments.get("partition_keys", ()),
        options=arguments.get("options"),
    )
    with pytest.raises(TableRefused) as refused:
        sink.check(SCHEMA)
    assert instead in refused.value.next_step
    assert every_file(sink) == set()


@pytest.mark.parametrize(
    ("arguments", "buckets", "key"),
    [
        ({}, -1, ()),
        ({"primary_key": ["id"]}, DEFAULT_BUCKETS, ("id",)),
        ({"primary_key": ["word", "id"], "partition_by": ["word"], "buckets": 2}, 2, ("id",)),
        ({"primary_key": ["id", "word"], "buckets": 2, "bucket_key": ["word"]}, 2, ("word",)),
        ({"buckets": 8, "bucket_key": ["word"], "partition_by": ["op"]}, 8, ("word",)),
        ({"primary_key": "id", "options": {"bucket": "3"}}, 3, ("id",)),
    ],
    ids=str,
)
def test_a_table_is_made_as_asked_for(
    arguments: dict[str, Any], buckets: int, key: tuple[str, ...], tmp_path: Path
) -> None:
    """C10: create=True makes it from the stream's schema."""
    sink = Paimon(str(tmp_path), "db.t", **arguments)
    before = sink.routing(SCHEMA)
    sink.check(SCHEMA)
    kind = Kind.of(open_table(sink.warehouse, sink.table))
    assert (kind.buckets, kind.bucket_key) == (buckets, key)
    assert kind.primary_key == tuple(sink.primary_key)
    assert all(not kind.columns.field(name).nullable for name in kind.primary_key)
    assert sink.routing(SCHEMA) == before == kind.routing()
    assert (before is None) == (buckets < 0)
    sink.check(SCHEMA)


def test_an_append_table_may_ask_for_one_writer_per_partition(tmp_path: Path) -> None:
    """As Paimon's own sinks do: fewer files."""
    options = {"partition.sink-strategy": "hash"}
    sink = Paimon(str(tmp_path), "db.t", partition_by=["word"], options=options)
    routing = sink.routing(SCHEMA)
    assert routing is not None
    assert routing.keys == ("word",)
    batch = pa.record_batch([[1, 2, 3, 4], ["a", None, "a", None], [0.0] * 4, [""] * 4], schema=SCHEMA)
    first, second, third, fourth = routing.lanes(batch).tolist()
    assert (first, second) == (third, fourth)
    assert first != second
    assert Paimon(str(tmp_path), "db.u", options=options).routing(SCHEMA) is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"primary_key": ["word"]},
        {"primary_key": ["id"], "buckets": 3},
        {"primary_key": ["id"], "merge_engine": "first-row"},
        {"bucket_key": ["word"]},
        {"partition_by": ["word"]},
    ],
    ids=str,
)
def test_arguments_that_an_existing_table_does_not_follow_are_refused(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    make_table(tmp_path, SCHEMA, **_keyed())
    with pytest.raises(TableMismatch, match=r"leave .* out"):
        Paimon(str(tmp_path), "db.t", **arguments).check(SCHEMA)


def test_an_existing_table_is_taken_as_it_is(tmp_path: Path) -> None:
    sink = make_table(tmp_path, SCHEMA, **_merged("first-row"))
    sink.check(SCHEMA)
    routing = sink.routing(SCHEMA)
    assert routing is not None
    assert routing.keys == ("bucket(2; id)",)


@pytest.mark.parametrize("argument", [{"buckets": 2}, {"bucket_key": ["id"]}, {"merge_engine": "first-row"}], ids=str)
def test_an_option_given_twice_is_refused(argument: dict[str, Any]) -> None:
    options = {"bucket": "2", "bucket-key": "id", "merge-engine": "deduplicate"}
    with pytest.raises(ConfigError, match="of its own"):
        Paimon("lake", "db.t", options=options, **argument)


@pytest.mark.parametrize("arguments", [{"primary_key": ["nobody"]}, {"bucket_key": ["nobody"], "buckets": 2}], ids=str)
def test_a_key_that_is_no_column_is_named(arguments: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match="nobody"):
        Paimon(str(tmp_path), "db.t", **arguments).check(SCHEMA)


@pytest.mark.parametrize("engine", ["partial-update", "aggregation", "first-row"])
def test_deletes_are_refused_where_a_merge_engine_cannot_take_rows_back(engine: str, tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", primary_key=["id"], merge_engine=engine, row_kind="op")
    with pytest.raises(TableRefused, match="row kinds"):
        sink.check(SCHEMA)


def test_deletes_are_refused_in_append_tables(tmp_path: Path) -> None:
    with pytest.raises(TableRefused, match="without primary key"):
        Paimon(str(tmp_path), "db.t", row_kind="op").check(SCHEMA)


@pytest.mark.parametrize("column", ["nobody", "share"])
def test_a_row_kind_column_without_words_is_refused(column: str, tmp_path: Path) -> None:
    with pytest.raises(TableMismatch, match=column):
        Paimon(str(tmp_path), "db.t", primary_key=["id"], row_kind=column).check(SCHEMA)


def test_a_table_that_names_its_own_row_kind_column_keeps_it(tmp_path: Path) -> None:
    make_table(tmp_path, SCHEMA, **_keyed() | {"options": {"bucket": "2", "rowkind.field": "op"}})
    Paimon(str(tmp_path), "db.t").check(SCHEMA)
    Paimon(str(tmp_path), "db.t", row_kind="op").check(SCHEMA)
    with pytest.raises(TableMismatch, match=r"rowkind\.field"):
        Paimon(str(tmp_path), "db.t", row_kind="word").check(SCHEMA)


def test_the_row_kind_column_is_not_stored(tmp_path: Path) -> None:
    sink = Paimon(str(tmp_path), "db.t", primary_key=["id"], row_kind="op")
    sink.check(SCHEMA)
    assert Kind.of(open_table(sink.warehouse, sink.table)).columns.names == ["id", "word", "share"]
