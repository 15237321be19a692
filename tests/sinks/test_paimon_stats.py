"""Column statistics of data files: what other engines skip files by, never wrong, as the table says."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import TableRefused
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.stats import modes_of
from penstock.sinks.paimon.upkeep.files import KeptTable
from penstock.sinks.paimon.upkeep.live import LiveFiles
from tests.support.second_reader import root_of
from tests.support.tables import commit, context
from tests.support.upkeep_tables import EAGER, PaimonKeeper

LONG = "a text that is longer than sixteen characters "
Bounds = dict[str, tuple[Any, Any, int | None]]


def written(sink: Paimon, schema: pa.Schema, *epochs: dict[str, list[Any]]) -> None:
    committer = sink.open_committer("penstock-me")
    for number, columns in enumerate(epochs, 1):
        writer = sink.open_writer(context(number), schema)
        writer.write(pa.RecordBatch.from_pydict(columns, schema=schema))
        commit(committer, number, writer.prepare())


def bounds(sink: Paimon) -> list[Bounds]:
    """Of each file, by column: smallest, largest, nulls."""
    live = LiveFiles()
    live.advance(KeptTable(sink.warehouse, sink.table))
    found = []
    for entry in (entry for files in live.places.values() for entry in files.values()):
        stats = entry.file.value_stats
        names = [field.name for field in stats.min_values.fields]
        rows = [(stats.min_values.get_field(i), stats.max_values.get_field(i)) for i in range(len(names))]
        found.append({n: (*row, stats.null_counts[i]) for i, (n, row) in enumerate(zip(names, rows, strict=True))})
    return found


SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("f", pa.float64()),
        ("money", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("flag", pa.bool_()),
        ("items", pa.list_(pa.int64())),
    ]
)
ROWS: dict[str, list[Any]] = {
    "id": [3, 1, 2],
    "text": [LONG + "b", None, LONG + "a"],
    "raw": [b"\xff" * 20, b"\x01", None],
    "f": [0.0, 2.5, -1.0],
    "money": [Decimal("1.50"), Decimal("-2.00"), None],
    "at": [datetime(2026, 1, 1, tzinfo=UTC), datetime(2025, 1, 1, tzinfo=UTC), None],
    "flag": [True, True, False],
    "items": [[1], [], None],
}


@pytest.mark.parametrize("keyed", [False, True])
def test_bounds_are_cut_and_stay_bounds_also_after_compaction(keyed: bool, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"primary_key": ["id"], "buckets": 1} if keyed else {}
    sink = Paimon(str(tmp_path), "db.t", **arguments)
    sink.check(SCHEMA)
    more = {name: values[:1] for name, values in ROWS.items()}
    written(sink, SCHEMA, ROWS, more, more, more, more)
    first = bounds(sink)[0]
    assert first["id"] == (1, 3, 0)
    assert first["text"] == ("a text that is l", "a text that is m", 1)
    assert first["raw"][2] == 1
    assert first["raw"][:2] == (None, None), "no value of 16 bytes is above twenty times 255"
    assert first["f"] == (-1.0, 2.5, 0)
    assert first["money"] == (Decimal("-2.00"), Decimal("1.50"), 1)
    assert first["flag"] == (False, True, 0)
    assert first["items"] == (None, None, 1)
    PaimonKeeper(sink.warehouse, sink.table, EAGER).step()
    (after,) = bounds(sink)
    assert {name: found[:2] for name, found in after.items()} == {name: found[:2] for name, found in first.items()}


def test_the_mode_of_the_table_is_honoured(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("more", pa.string())])
    rows = {"id": [1, 2], "text": [LONG, None], "more": [LONG, LONG]}
    expected: dict[str, Bounds] = {
        "none": {},
        "counts": {"id": (None, None, 0), "text": (None, None, 1), "more": (None, None, 0)},
        "full": {"id": (1, 2, 0), "text": (LONG, LONG, 1), "more": (LONG, LONG, 0)},
        "truncate(3)": {"id": (1, 2, 0), "text": ("a t", "a u", 1), "more": ("a t", "a u", 0)},
    }
    for mode, wanted in expected.items():
        sink = Paimon(str(tmp_path), f"db.t_{mode[:4]}", options={"metadata.stats-mode": mode})
        sink.check(schema)
        written(sink, schema, rows)
        assert bounds(sink) == [wanted]
    mixed = {"metadata.stats-keep-first-n-columns": "1", "fields.more.stats-mode": "counts"}
    sink = Paimon(str(tmp_path), "db.mixed", options=mixed)
    sink.check(schema)
    written(sink, schema, rows)
    assert bounds(sink) == [{"id": (1, 2, 0), "more": (None, None, 0)}]


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(TableRefused, match="sometimes"):
        modes_of({"metadata.stats-mode": "sometimes"}, ["a"])


@pytest.mark.parametrize("keyed", [False, True])
def test_a_column_with_nan_has_no_bounds_neither_in_the_table_nor_in_the_file(keyed: bool, tmp_path: Path) -> None:
    """Other engines take NaN for the largest number: with a bound that leaves it out they would skip its file."""
    schema = pa.schema([("id", pa.int64()), ("f", pa.float64()), ("g", pa.float32())])
    arguments: dict[str, Any] = {"primary_key": ["id"], "buckets": 1} if keyed else {}
    sink = Paimon(str(tmp_path), "db.t", **arguments)
    sink.check(schema)
    parts = [{"id": [i], "f": [float("nan") if i == 2 else 1.0], "g": [2.0]} for i in range(5)]
    written(sink, schema, *parts)
    assert [found["f"][:2] for found in bounds(sink)] == [(1.0, 1.0)] * 2 + [(None, None)] + [(1.0, 1.0)] * 2
    PaimonKeeper(sink.warehouse, sink.table, EAGER).step()
    (after,) = bounds(sink)
    assert (after["f"][:2], after["g"][:2]) == ((None, None), (2.0, 2.0))
    live = LiveFiles()
    live.advance(KeptTable(sink.warehouse, sink.table))
    ((files),) = live.places.values()
    group = pq.ParquetFile(next(root_of(sink).rglob(next(iter(files))))).metadata.row_group(0)
    footer = {group.column(i).path_in_schema: group.column(i).is_stats_set for i in range(group.num_columns)}
    assert (footer["f"], footer["g"], footer["id"]) == (False, True, True)


def test_both_zeros_are_within_a_bound_of_zero(tmp_path: Path) -> None:
    schema = pa.schema([("f", pa.float64())])
    sink = Paimon(str(tmp_path), "db.t")
    sink.check(schema)
    written(sink, schema, {"f": [-0.0, 0.0]}, {"f": [0.0]})
    assert [json.dumps(found["f"][:2]) for found in bounds(sink)] == ["[-0.0, 0.0]"] * 2


def test_no_text_is_ever_outside_of_its_bounds(tmp_path: Path) -> None:
    dice = random.Random(7)
    letters = "ab\u00ff\ud7ff\ue000\U0010ffff\U0001f600z"
    schema = pa.schema([("t", pa.string())])
    sink = Paimon(str(tmp_path), "db.t", options={"metadata.stats-mode": "truncate(3)"})
    sink.check(schema)
    epochs = [
        {"t": ["".join(dice.choices(letters, k=dice.randrange(8))) for _ in range(dice.randrange(1, 4))]}
        for _ in range(60)
    ]
    written(sink, schema, *epochs)
    for epoch, found in zip(epochs, bounds(sink), strict=True):
        low, high, _ = found["t"]
        texts = [text.encode() for text in epoch["t"]]
        assert low is None or (low.encode() <= min(texts) and max(texts) <= high.encode())
