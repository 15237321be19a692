"""What the tests of the Paimon sink share: a small stream, its epochs, and a table that counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pypaimon import CatalogFactory, Schema

from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import CommitPermit, CommitReceipt, Committable, WriterContext
from penstock.sinks.paimon.commit import PaimonCommitter
from penstock.sinks.paimon.read import listed_files, read_table
from penstock.sinks.paimon.sink import Paimon

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string())])


def make_table(warehouse: Path, schema: pa.Schema, **kwargs: Any) -> Paimon:
    """A table that somebody else made."""
    catalog = CatalogFactory.create({"warehouse": str(warehouse)})
    catalog.create_database("db", True)
    catalog.create_table("db.t", Schema.from_pyarrow_schema(schema, **kwargs), False)
    return Paimon(str(warehouse), "db.t")


def context(checkpoint: int, subtask: int = 0) -> WriterContext:
    return WriterContext(CheckpointId(checkpoint), Generation(1), subtask, 1, attempt="0")


def permit(checkpoint: int) -> CommitPermit:
    return CommitPermit(Generation(1), CheckpointId(checkpoint))


def rows(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(ids, pa.int64()), pa.array([f"word {i}" for i in ids])], schema=SCHEMA)


def write(sink: Paimon, checkpoint: int, *batches: pa.RecordBatch, schema: pa.Schema = SCHEMA) -> list[Committable]:
    writer = sink.open_writer(context(checkpoint), schema)
    for batch in batches:
        writer.write(batch)
    return writer.prepare()


def epoch(sink: Paimon, checkpoint: int) -> list[Committable]:
    """What one epoch of two subtasks hands over: ids ``2 * checkpoint`` and ``2 * checkpoint + 1``."""
    return [
        *write(sink, checkpoint, rows([2 * checkpoint])),
        *write(sink, checkpoint, rows([2 * checkpoint + 1])),
    ]


def ids_of(checkpoints: Sequence[int]) -> Counter[int]:
    return Counter(2 * checkpoint + part for checkpoint in checkpoints for part in (0, 1))


def ids_in(sink: Paimon) -> Counter[int]:
    return Counter(read_table(sink.warehouse, sink.table)["id"].to_pylist())


def assert_no_file_is_listed_twice(sink: Paimon) -> None:
    files = listed_files(sink.warehouse, sink.table)
    assert len(files) == len(set(files))


def commit(
    committer: PaimonCommitter,
    checkpoint: int,
    committables: Sequence[Committable],
    still_leader: Callable[[], bool] = lambda: True,
    *,
    watermark: int | None = None,
    **properties: str,
) -> CommitReceipt:
    return committer.commit(
        permit(checkpoint), committables, watermark=watermark, properties=properties, still_leader=still_leader
    )


def newest(committer: PaimonCommitter, oldest_snapshot: int | None = None) -> CommitReceipt | None:
    """The newest commit of the committer's user."""
    receipts = committer.commits(oldest_snapshot, 1).commits
    return receipts[-1] if receipts else None


def every_file(sink: Paimon) -> set[Path]:
    return {path for path in Path(sink.warehouse).rglob("*") if path.is_file()}


def data_files(sink: Paimon) -> set[str]:
    return {path.name for path in every_file(sink) if path.suffix == ".parquet"}
