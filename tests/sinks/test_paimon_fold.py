"""C10: rows of one key are folded as pypaimon's own merge functions do, one row at a time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pypaimon.write.writer.key_value_data_writer import KeyValueDataWriter

from penstock.sinks.paimon import private
from penstock.sinks.paimon.files import DataFiles, KeyedWriter
from penstock.sinks.paimon.kinds import Kind
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from penstock.sinks.paimon.stats import FileStats

SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("word", pa.string()),
        ("amount", pa.int32()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us")),
        ("share", pa.float64()),
    ]
)
FUNCTIONS = {
    "fields.amount.aggregate-function": "sum",
    "fields.price.aggregate-function": "max",
    "fields.at.aggregate-function": "min",
    "fields.word.aggregate-function": "first_non_null_value",
    "fields.share.aggregate-function": "last_value",
}
TABLES: dict[str, dict[str, Any]] = {
    "deduplicate": {},
    "deduplicate by a field": {"options": {"sequence.field": "amount"}},
    "first-row": {"merge_engine": "first-row"},
    "partial-update": {"merge_engine": "partial-update"},
    "aggregation": {"merge_engine": "aggregation", "options": FUNCTIONS},
    "aggregation, one by one": {
        "merge_engine": "aggregation",
        "options": FUNCTIONS | {"fields.word.aggregate-function": "listagg"},
    },
}
_rows = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.none() | st.text(min_size=1, max_size=3),
        st.none() | st.integers(-1000, 1000),
        st.none() | st.integers(-(10**6), 10**6).map(lambda value: Decimal(value) / 100),
        st.none() | st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1)),  # noqa: DTZ001
        st.none() | st.floats(allow_nan=False),
    ),
    min_size=1,
    max_size=30,
)


class _Both(KeyedWriter):
    """Compares our fold with pypaimon's of the same rows."""

    def _merge_pending_by_pk(self, data: pa.Table) -> pa.Table:
        self._merge_function = private.merge_function(self.table)
        wanted = KeyValueDataWriter._merge_pending_by_pk(self, data)
        found = super()._merge_pending_by_pk(data)
        assert found.to_pylist() == wanted.to_pylist()
        assert found.schema == wanted.schema
        return found


@pytest.fixture(scope="module", params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> private.Table:
    folder: Path = tmp_path_factory.mktemp("lake")
    sink = Paimon(str(folder), "db.t", primary_key=["user"], buckets=1, **TABLES[request.param])
    sink.check(SCHEMA)
    return open_table(sink.warehouse, sink.table)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_rows)
@example([(0, "\r", None, None, None, None), (1, None, None, None, None, None)])
def test_a_fold_is_what_pypaimon_makes_of_the_rows_one_by_one(table: private.Table, rows: list[Any]) -> None:
    files = DataFiles(table, Kind.of(table), lambda _: None, lambda: FileStats.of(table, {}))
    writer = _Both(table, (), 0, table.options, files._folds)
    columns = private.columns_of(table)
    batch = pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), columns, strict=True)],
        schema=columns,
    )
    numbers = np.arange(len(rows), dtype=np.int64) + (7 << 32)
    with_system = files._with_system_columns(batch, numbers, np.zeros(len(rows), dtype=np.int8))
    writer._buffer.append(pa.Table.from_batches([with_system]))
    written: list[pa.Table] = []
    writer._roll_write = written.append
    writer._flush_all()
    (data,) = written
    assert len({row["user"] for row in data.to_pylist()}) == data.num_rows
