"""The data source as Spark calls it, process by process, without Spark: the rows that `pen.open` gives (E3, G1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, LessThan

import penstock as pen
from penstock.errors import ConfigError, MissingFile
from penstock.protocol.layout import manifest_path
from penstock.spark.data_source import CheckpointSource
from penstock.store import LocalStore
from penstock.testing import Harness, stream_of
from tests.support.table_cases import CASES


def folder_of(name: str, root: Path) -> str:
    harness = Harness(CASES[name].make(), steps=2)
    for number in range(2):
        CASES[name].feed(harness, Random(number))
    store = LocalStore(root)
    for entry in harness._store.list(""):
        store.create(entry.path, harness._store.read(entry.path))
    return str(root)


def moved(value: Any) -> Any:
    """Each step runs in another process."""
    return cloudpickle.loads(cloudpickle.dumps(value))


def read(options: dict[str, str], *filters: Any) -> list[dict[str, Any]]:
    source = CheckpointSource(options)
    schema = source.schema()
    reader = moved(source).reader(schema)
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    reader = moved(reader)
    batches = [batch for part in reader.partitions() for batch in reader.read(moved(part))]
    assert all(batch.schema.names == schema.names for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def bag(found: list[dict[str, Any]]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in found)


@pytest.mark.parametrize("name", CASES)
def test_state_and_rows_in_flight_are_what_arrow_gives(tmp_path: Path, name: str) -> None:
    folder = folder_of(name, tmp_path)
    look = pen.open(folder)
    for table in CASES[name].tables:
        operator = f"it/{table}" if table else "it"
        assert bag(read({"path": folder, "operator": operator})) == bag(look.state("it", table).to_pylist())
    for edge in look.edges:
        assert bag(read({"path": folder, "edge": edge})) == bag(look.in_flight(edge).to_pylist())


@pytest.mark.parametrize("table", ["checkpoints", "epochs", "commits", "files"])
def test_lists_are_what_arrow_gives(tmp_path: Path, table: str) -> None:
    folder = folder_of("tumbling", tmp_path)
    assert read({"path": folder, "table": table}) == getattr(pen.open(folder), table)().to_pylist()


def test_filters_on_keys_and_key_groups_leave_the_rest_unread(tmp_path: Path) -> None:
    folder = folder_of("batch_process", tmp_path)
    whole = read({"path": folder, "operator": "it"})
    assert read({"path": folder, "operator": "it"}, EqualTo(("user",), 3)) == [row for row in whole if row["user"] == 3]
    some = read(
        {"path": folder, "operator": "it"}, GreaterThanOrEqual(("_key_group",), 4), LessThan(("_key_group",), 9)
    )
    assert bag(some) == bag([row for row in whole if 4 <= row["_key_group"] < 9])
    assert read({"path": folder, "operator": "it", "key": "3", "columns": "user"}) == [{"user": 3}]


@pytest.mark.parametrize("options", [{"operator": "it"}, {"edge": "source-to-it"}])
def test_a_frame_whose_checkpoint_is_gone_goes_on_with_the_newest(tmp_path: Path, options: dict[str, str]) -> None:
    """Between `load` and the action the query went on and deleted the files."""
    harness = Harness(CASES["batch_process"].make(), steps=1)
    harness.feed([{"user": n % 5} for n in range(4000)])
    store = LocalStore(tmp_path)
    copy_new(harness, store)
    source = CheckpointSource({"path": str(tmp_path), **options})
    named = CheckpointSource(
        {"path": str(tmp_path), **options, "checkpoint": str(pen.open(tmp_path).manifest.checkpoint)}
    )
    schema = source.schema()
    named.schema()
    before = set(pen.open(tmp_path).manifest.files())
    manifest = manifest_path(pen.open(tmp_path).manifest.checkpoint)
    for _ in range(3):
        harness.feed([{"user": n % 5} for n in range(4000)])
    copy_new(harness, store)
    gone = before - pen.open(tmp_path).manifest.files()
    assert gone
    store.delete([manifest, *gone])
    reader = moved(source).reader(schema)
    found = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
    look = pen.open(tmp_path)
    expected = look.state("it") if "operator" in options else look.in_flight()
    assert bag(found) == bag(expected.to_pylist())
    with pytest.raises(MissingFile, match="load"):
        moved(named).reader(schema)


def copy_new(harness: Harness, store: LocalStore) -> None:
    for entry in harness._store.list(""):
        if not store.exists(entry.path):
            store.create(entry.path, harness._store.read(entry.path))


def test_paths_are_relative_to_where_python_was(tmp_path: Path) -> None:
    folder_of("batch_process", tmp_path / "checkpoints")
    here = type("CheckpointSource", (CheckpointSource,), {"home": str(tmp_path)})
    assert moved(here)({"path": "checkpoints", "operator": "it"}).schema().names[0] == "user"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"operator": "totals"}, "there is no state 'totals'"),
        ({"opertor": "it"}, "the option 'opertor'"),
        ({"table": "rows"}, "table='rows'"),
        ({"operator": "it", "checkpoint": "newest"}, "checkpoint='newest'"),
    ],
)
def test_a_wrong_option_is_told(tmp_path: Path, options: dict[str, str], says: str) -> None:
    folder = folder_of("batch_process", tmp_path)
    with pytest.raises(ConfigError, match=says):
        CheckpointSource({"path": folder, **options}).schema()


def test_a_filter_on_a_users_column_with_our_name_prunes_no_key_groups(tmp_path: Path) -> None:
    rows = pa.schema([("user", pa.int64()), ("_key_group", pa.int64())])
    program = stream_of(rows).key_by("user").aggregate(name="it", _key_group=pen.max("_key_group"))
    harness = Harness(program, steps=2)
    harness.feed([{"user": number, "_key_group": number % 7} for number in range(4000)])
    copy_new(harness, LocalStore(tmp_path))
    for options in ({"operator": "it"}, {"edge": "source-to-it"}):
        asked = {"path": str(tmp_path), **options}
        whole = read(asked)
        theirs = [row for row in read(asked, EqualTo(("_key_group",), 3)) if row["_key_group"] == 3]
        assert bag(theirs) == bag([row for row in whole if row["_key_group"] == 3])
        ours = read(asked, EqualTo(("__key_group",), 3))
        assert ours
        assert bag(ours) == bag([row for row in whole if row["__key_group"] == 3])


def test_the_key_null_is_one_key_and_not_all(tmp_path: Path) -> None:
    harness = Harness(CASES["batch_process"].make(), steps=2)
    harness.feed([{"user": number % 5 or None} for number in range(100)])
    harness.settle()
    copy_new(harness, LocalStore(tmp_path))
    (row,) = read({"path": str(tmp_path), "operator": "it", "key": "null", "columns": "user"})
    assert row == {"user": None}
