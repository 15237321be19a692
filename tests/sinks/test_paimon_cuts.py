"""What a table with a primary key shows does not depend on where epochs were cut.

The reference is the definition in Paimon's documentation, row by row in plain Python: rows of a key are taken in the
order of ``sequence.field`` (nulls first, descending if asked for), then of their arrival, and merged one by one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import TableRefused
from penstock.sinks.paimon.sink import Paimon
from tests.support.readers import merged_by_pypaimon
from tests.support.tables import commit, write

SCHEMA = pa.schema([("k", pa.int64()), ("at", pa.int64()), ("x", pa.int64()), ("y", pa.int64()), ("w", pa.string())])
Row = dict[str, Any]
Merge = Callable[[Row, Row], Row]


def newer(_: Row, row: Row) -> Row:
    return row


def first(row: Row, _: Row) -> Row:
    return row


def filled(old: Row, row: Row) -> Row:
    """partial-update: a null changes nothing."""
    return {name: old[name] if row[name] is None else row[name] for name in row}


def _both(function: Callable[[int, int], int]) -> Callable[[Any, Any], Any]:
    return lambda old, new: new if old is None else old if new is None else function(old, new)


def aggregated(**functions: Callable[[Any, Any], Any]) -> Merge:
    def merge(old: Row, row: Row) -> Row:
        return {name: functions.get(name, lambda _, new: new)(old[name], row[name]) for name in row}

    return merge


def _functions(**functions: str) -> dict[str, str]:
    return {f"fields.{column}.aggregate-function": function for column, function in functions.items()}


SUMS = _functions(x="sum", y="max", w="min")
BY_SUMS = aggregated(x=_both(lambda a, b: a + b), y=_both(max), w=_both(min))
AT = {"sequence.field": "at"}
TABLES: dict[str, tuple[dict[str, Any], Merge]] = {
    "deduplicate": ({}, newer),
    "deduplicate by a field": ({"options": AT}, newer),
    "deduplicate by a field, descending": ({"options": AT | {"sequence.field.sort-order": "descending"}}, newer),
    "deduplicate by two fields": ({"options": {"sequence.field": "at,y"}}, newer),
    "first-row": ({"merge_engine": "first-row"}, first),
    "partial-update": ({"merge_engine": "partial-update"}, filled),
    "aggregation": ({"merge_engine": "aggregation", "options": SUMS | _functions(at="last_value")}, BY_SUMS),
    "aggregation, first values": (
        {
            "merge_engine": "aggregation",
            "options": _functions(at="last_value", x="first_value", y="first_non_null_value"),
        },
        aggregated(x=lambda old, _: old, y=lambda old, new: new if old is None else old, w=lambda old, new: new or old),
    ),
    "aggregation by a field": ({"merge_engine": "aggregation", "options": AT | SUMS}, BY_SUMS),
    "aggregation by a field, descending": (
        {"merge_engine": "aggregation", "options": AT | SUMS | {"sequence.field.sort-order": "descending"}},
        BY_SUMS,
    ),
    "aggregation by a field, last values": (
        {"merge_engine": "aggregation", "options": AT | _functions(x="last_value", y="product", w="last_value")},
        aggregated(y=_both(lambda a, b: a * b)),
    ),
}


def in_order(rows: Sequence[Row], options: dict[str, str]) -> list[Row]:
    """Oldest first; the order of arrival decides between equals, as sorting is stable."""
    sign = -1 if options.get("sequence.field.sort-order") == "descending" else 1
    names = options["sequence.field"].split(",") if "sequence.field" in options else []

    def place(row: Row) -> list[tuple[bool, int]]:
        return [(row[name] is not None, 0 if row[name] is None else sign * row[name]) for name in names]

    return sorted(rows, key=place)


def wanted(rows: Sequence[Row], options: dict[str, str], merge: Merge) -> list[Row]:
    keys = sorted({row["k"] for row in rows})
    return [reduce(merge, in_order([row for row in rows if row["k"] == key], options)) for key in keys]


def found(folder: Path, epochs: Sequence[Sequence[Row]], settings: dict[str, Any]) -> list[Row]:
    """The rows, epoch by epoch, written and read back."""
    sink = Paimon(str(folder), "db.t", primary_key=["k"], buckets=1, **settings)
    sink.check(SCHEMA)
    committer = sink.open_committer("me")
    for checkpoint, rows in enumerate(epochs, 1):
        batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
        commit(committer, checkpoint, write(sink, checkpoint, batch, schema=SCHEMA))
    return sorted(merged_by_pypaimon(sink), key=lambda row: row["k"])


def cut(rows: Sequence[Row], places: Sequence[int]) -> list[Sequence[Row]]:
    edges = [0, *places, len(rows)]
    return [rows[low:high] for low, high in itertools.pairwise(edges) if low < high]


def some_rows(choose: random.Random, count: int) -> list[Row]:
    def maybe(value: Any) -> Any:
        return None if choose.random() < 0.3 else value

    return [
        {
            "k": choose.randint(0, 1),
            "at": maybe(choose.randint(0, 3)),
            "x": maybe(choose.randint(-5, 5)),
            "y": maybe(choose.randint(-5, 5)),
            "w": maybe(choose.choice("abc")),
        }
        for _ in range(count)
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_cut_of_four_rows_shows_what_the_rows_one_by_one_mean(name: str, tmp_path: Path) -> None:
    settings, merge = TABLES[name]
    rows = some_rows(random.Random(name), 4)
    expected = wanted(rows, settings.get("options", {}), merge)
    cuts = itertools.chain.from_iterable(itertools.combinations((1, 2, 3), count) for count in range(4))
    for number, places in enumerate(cuts):
        assert found(tmp_path / str(number), cut(rows, places), settings) == expected, f"cut at {places}: {rows}"


@pytest.mark.parametrize("name", TABLES)
def test_random_cuts_of_random_rows_show_what_the_rows_one_by_one_mean(name: str, tmp_path: Path) -> None:
    settings, merge = TABLES[name]
    for seed in [1, 2, 3, *(random.randrange(10**9) for _ in range(3))]:
        choose = random.Random(seed)
        rows = some_rows(choose, choose.randint(5, 25))
        places = sorted(choose.sample(range(1, len(rows)), choose.randint(1, 4)))
        expected = wanted(rows, settings.get("options", {}), merge)
        assert found(tmp_path / str(seed), cut(rows, places), settings) == expected, f"seed {seed}: cut at {places}"


REFUSED: dict[str, dict[str, Any]] = {
    "partial-update": {"merge_engine": "partial-update", "options": AT},
    "last_non_null_value, which is the default": {"merge_engine": "aggregation", "options": AT},
    "first_value": {
        "merge_engine": "aggregation",
        "options": AT | {"fields.default-aggregate-function": "max"} | _functions(x="first_value"),
    },
    "listagg": {
        "merge_engine": "aggregation",
        "options": AT | {"fields.default-aggregate-function": "max"} | _functions(w="listagg"),
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_table_whose_rows_would_depend_on_the_cuts_is_refused_at_start(name: str, tmp_path: Path) -> None:
    """Three rows in two epochs: (at=1, x=1), (at=3, x=null) | (at=2, x=5). One by one x is 5, folded it was 1."""
    with pytest.raises(TableRefused, match=r"sequence\.field"):
        Paimon(str(tmp_path), "db.t", primary_key=["k"], buckets=1, **REFUSED[name]).check(SCHEMA)
    assert not (tmp_path / "db.db" / "t").exists()
