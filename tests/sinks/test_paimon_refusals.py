"""Values and tables that pypaimon takes and other engines cannot read are refused, at start or in the writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import MissingFile, SubtaskFailed, TableRefused
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import commit, epoch, every_file, ids_in, ids_of, make_table, write


def retyped(sink: Paimon, types: dict[str, Any]) -> Paimon:
    """The same table, whose columns have types that only other engines give."""
    path = Path(sink.warehouse, "db.db/t/schema/schema-0")
    schema = json.loads(path.read_text())
    for field in schema["fields"]:
        field["type"] = types.get(field["name"], field["type"])
    path.write_text(json.dumps(schema))
    return sink


TEXT = pa.schema([("id", pa.int64()), ("word", pa.string())])


@pytest.mark.parametrize("kind", ["VARCHAR(3)", "CHAR(3)", "varchar( 3 )"])
def test_a_text_that_is_longer_than_its_column_stops_the_writer_with_its_name(kind: str, tmp_path: Path) -> None:
    sink = retyped(make_table(tmp_path, TEXT), {"word": kind})
    sink.check(TEXT)
    fits = pa.record_batch([[1, 2, 3], ["äöü", "", None]], schema=TEXT)
    commit(sink.open_committer("me"), 1, write(sink, 1, fits, schema=TEXT))
    assert ids_in(sink) == {1: 1, 2: 1, 3: 1}
    before = every_file(sink)
    with pytest.raises(SubtaskFailed, match="column word has 4 characters; the table allows 3") as refused:
        write(sink, 2, pa.record_batch([[4], ["four"]], schema=TEXT), schema=TEXT)
    assert (refused.value.fields["column"], refused.value.fields["limit"]) == ("word", "3")
    assert every_file(sink) == before


def test_a_column_without_a_limit_takes_any_text(tmp_path: Path) -> None:
    sink = retyped(make_table(tmp_path, TEXT), {"word": "VARCHAR(2147483647)"})
    assert write(sink, 1, pa.record_batch([[1], ["x" * 100_000]], schema=TEXT), schema=TEXT)


NESTED: dict[str, tuple[pa.DataType, Any, Any, str]] = {
    "list": (pa.list_(pa.string()), {"type": "ARRAY", "element": "VARCHAR(2)"}, [["ab"], None, ["abc"]], "c.item"),
    "struct": (
        pa.struct([("a", pa.string())]),
        {"type": "ROW", "fields": [{"id": 2, "name": "a", "type": "CHAR(2)"}]},
        [{"a": "ab"}, None, {"a": "abc"}],
        "c.a",
    ),
    "map": (
        pa.map_(pa.string(), pa.binary()),
        {"type": "MAP", "key": "STRING NOT NULL", "value": "VARBINARY(2)"},
        [[("a", b"ab")], None, [("a", b"abc")]],
        "c.value",
    ),
}


@pytest.mark.parametrize("name", NESTED)
def test_limits_hold_inside_nested_columns(name: str, tmp_path: Path) -> None:
    arrow, paimon, values, part = NESTED[name]
    schema = pa.schema([("id", pa.int64()), ("c", arrow)])
    sink = retyped(make_table(tmp_path, schema), {"c": paimon})

    def rows(last: int) -> pa.RecordBatch:
        return pa.record_batch([pa.array(range(last)), pa.array(values[:last], arrow)], schema=schema)

    assert write(sink, 1, rows(2), schema=schema)
    with pytest.raises(SubtaskFailed, match=f"column {part} has 3"):
        write(sink, 2, rows(3), schema=schema)


def test_a_multiset_is_refused_at_start(tmp_path: Path) -> None:
    sink = retyped(make_table(tmp_path, TEXT), {"word": {"type": "MULTISET", "element": "STRING"}})
    for ask in (sink.check, sink.routing):
        with pytest.raises(TableRefused, match="MULTISET"):
            ask(TEXT)


@pytest.mark.parametrize("format_", ["orc", "parquet"])
def test_manifests_in_another_format_than_avro_are_refused_at_start(format_: str, tmp_path: Path) -> None:
    """pypaimon would write Avro all the same, and Java could not read the table any more."""
    with pytest.raises(TableRefused, match=rf"manifest\.format = {format_}"):
        Paimon(str(tmp_path), "db.t", options={"manifest.format": format_}).check(TEXT)
    assert every_file(Paimon(str(tmp_path), "db.t")) == set()


def test_a_commit_whose_data_files_are_gone_is_not_made(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    commit(committer, 1, epoch(sink, 1))
    committables = epoch(sink, 2)
    kept = {path: path.read_bytes() for path in every_file(sink)}
    (lost,) = [path for path in every_file(sink) if path.suffix == ".parquet"][-1:]
    before = {path for path in every_file(sink) if "snapshot" in str(path)}
    for path in every_file(sink):
        if path.suffix == ".parquet" and path.name in str([c.payload for c in committables]):
            lost = path
    lost.unlink()
    with pytest.raises(MissingFile, match=lost.name):
        commit(committer, 2, committables)
    assert {path for path in every_file(sink) if "snapshot" in str(path)} == before
    assert ids_in(sink) == ids_of([1])
    lost.write_bytes(kept[lost])
    commit(committer, 2, committables)
    assert ids_in(sink) == ids_of([1, 2])
