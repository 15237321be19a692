"""Columns that a stream gained are added to a Paimon table that exists."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

import penstock as pen
from penstock.errors import TableMismatch
from penstock.sinks.paimon.read import read_table
from penstock.testing.inline import InlineRun, stream_of
from tests.support.engine_jobs import FakeClock

ORDERS = pa.schema({"user": pa.int64(), "number": pa.int64()})
MORE = pa.schema(
    [
        *ORDERS,
        pa.field("price", pa.decimal128(10, 2), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("at", pa.date32()),
    ]
)


def rows(schema: pa.Schema, numbers: Sequence[int]) -> pa.Table:
    made = pa.table({"user": [n % 3 for n in numbers], "number": numbers}, schema=ORDERS)
    for field in list(schema)[2:]:
        values = [None if field.nullable and n % 2 else _value(field.name, n) for n in numbers]
        made = made.append_column(field, pa.array(values, field.type))
    return made


def _value(name: str, n: int) -> object:
    return {"price": Decimal(n), "tags": [str(n)], "at": date(2026, 1, 1 + n % 28)}[name]


def run(folder: Path, schema: pa.Schema, batches: list[Sequence[int]], accepted: int, **options: object) -> None:
    """One micro-batch for each; those up to `accepted` were read by an earlier program."""
    tables = [{"orders": rows(schema, numbers)} for numbers in batches]
    inline = InlineRun(tables, FakeClock())
    inline.accepted[:] = list(range(accepted))
    sink = pen.Paimon(str(folder / "lake"), "shop.orders", **options)  # type: ignore[arg-type]
    output = stream_of(schema, "orders").map_batches(lambda batch: batch, name="same").write(sink, name="out")
    inline.start(output, checkpoint=folder / "checkpoint", epoch=0.1).await_termination(60)


@pytest.mark.parametrize("key", [(), ("number",)], ids=["append", "primary key"])
def test_columns_that_the_stream_gained_are_added_and_null_for_older_rows(tmp_path: Path, key: Sequence[str]) -> None:
    """F1: "a column is added to the table of a sink". The checkpoint goes on, with another table schema."""
    keyed = {"primary_key": key, "buckets": 1} if key else {}
    first, second = range(10), range(10, 20)
    run(tmp_path, ORDERS, [first], 0, **keyed)
    with pytest.raises(TableMismatch, match="evolve_table=True"):
        run(tmp_path, MORE, [first, second], 1, **keyed)
    run(tmp_path, MORE, [first, second], 1, evolve_table=True, **keyed)
    found = sorted(read_table(str(tmp_path / "lake"), "shop.orders").to_pylist(), key=lambda row: row["number"])
    old = [{**row, "price": None, "tags": None, "at": None} for row in rows(ORDERS, first).to_pylist()]
    assert found == [*old, *rows(MORE, second).to_pylist()]


def test_a_column_of_another_type_is_refused_still(tmp_path: Path) -> None:
    run(tmp_path, ORDERS, [range(3)], 0)
    other = pa.schema({"user": pa.int64(), "number": pa.string()})
    sink = pen.Paimon(str(tmp_path / "lake"), "shop.orders", evolve_table=True)
    with pytest.raises(TableMismatch, match="number"):
        sink.check(other)
