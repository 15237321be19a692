"""Segments with exactly the batches a test wants, and what reading them gives."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from hypothesis import strategies as st

from penstock.inflight.reader import PrefetchingReader, SpanReader
from penstock.inflight.segment import edge_schema
from penstock.protocol.keygroups import groups_of
from penstock.protocol.reads import ReadSpan
from penstock.store import MemoryStore
from penstock.store.arrowfile import ArrowFileWriter

GROUPS = 16
SCHEMA = edge_schema(pa.schema([("number", pa.int64()), ("text", pa.string())]))


def batch_of(first: int, hashes: Sequence[int] | npt.NDArray[np.int64], size: int = 3) -> pa.RecordBatch:
    rows = len(hashes)
    columns = [pa.array(np.arange(first, first + rows)), pa.array([str(first)[-1] * size] * rows, pa.string())]
    return pa.record_batch([*columns, pa.array(hashes, pa.int64())], schema=SCHEMA)


def store_batches(store: MemoryStore, batches: Sequence[Sequence[int]], path: str = "s", size: int = 3) -> ReadSpan:
    """A segment with exactly these batches; row numbers are also in the column `number`. Whole, from the start."""
    meta: dict[str, str | int | None] = {"max_parallelism": GROUPS}
    writer = ArrowFileWriter(store, path, SCHEMA, kind="segment", compression="lz4", meta=meta)
    first = 0
    for hashes in batches:
        writer.write(batch_of(first, hashes, size), groups_of(np.array(hashes, np.int64), GROUPS))
        first += len(hashes)
    return ReadSpan(path, writer.close().checksum, 0, GROUPS, 0)


def at(span: ReadSpan, lo: int, hi: int, cursor: int = 0) -> ReadSpan:
    return ReadSpan(span.path, span.checksum, lo, hi, cursor)


def drain(reader: SpanReader | PrefetchingReader, step: int = 1 << 30) -> list[int]:
    """The numbers of all rows to come, consumed `step` rows at a time."""
    found: list[int] = []
    while (batch := reader.peek()) is not None:
        taken = batch.slice(0, step)
        found += taken.column("number").to_pylist()
        reader.advance(taken.num_rows)
    return found


hashes = st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 2)
# A spill writes mixed batches, an exchange writes batches with the rows of a key group together.
mixed = st.lists(hashes, min_size=1, max_size=30)
together = st.lists(st.tuples(st.integers(0, GROUPS - 1), st.integers(1, 10)), min_size=1, max_size=4).map(
    lambda runs: [group for group, rows in runs for _ in range(rows)]
)
segments = st.lists(mixed | together, min_size=1, max_size=6)
