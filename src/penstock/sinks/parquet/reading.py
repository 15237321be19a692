"""Reads files of a table batch by batch, with the columns that the table has now."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.sinks.parquet.files import TableFolder

BATCH_ROWS = 1 << 16


def read_parquet(folder: TableFolder, path: str, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of a file; a column that the table got later is null in it."""
    with folder.open(path) as source:
        file = pq.ParquetFile(source)
        there = set(file.schema_arrow.names)
        for batch in file.iter_batches(BATCH_ROWS, columns=[name for name in columns.names if name in there]):
            yield _fitted(batch, columns, there)


def _fitted(batch: pa.RecordBatch, columns: pa.Schema, there: set[str]) -> pa.RecordBatch:
    arrays = [
        batch.column(field.name).cast(field.type) if field.name in there else pa.nulls(batch.num_rows, field.type)
        for field in columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
