"""Writes one subtask's output of one epoch as data files of a Delta table, in the Spark task.

A committable holds the log's entry for each file as JSON: its name, size, partition and statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa

from penstock.errors import PenstockError, SubtaskFailed
from penstock.sinks.base import Committable, WriterContext
from penstock.sinks.parquet.files import ParquetFiles, WrittenFile
from penstock.sinks.parquet.partitions import as_text, folder_of
from penstock.sinks.parquet.remote import open_folder
from penstock.sinks.parquet.stats import ColumnStats, FileStats

TEXT_MAX = 32
"""Longer strings are cut in statistics, as Delta Lake does."""


_stats_encoder = msgspec.json.Encoder(decimal_format="number")


class AddedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file that a commit adds to the table."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    modified_ms: int
    stats: str


def encode(files: Sequence[AddedFile]) -> bytes:
    return msgspec.json.encode(files)


def decode(payload: bytes) -> list[AddedFile]:
    """Raises: `msgspec.DecodeError`."""
    return msgspec.json.decode(payload, type=list[AddedFile])


class DeltaWriter:
    """One writer per attempt; file names hold a random part, so that attempts never meet."""

    def __init__(
        self, uri: str, partition_by: Sequence[str], schema: pa.Schema, context: WriterContext, target_bytes: int
    ) -> None:
        self._uri, self._partition_by = uri, tuple(partition_by)
        columns = pa.schema([field for field in schema if field.name not in self._partition_by])
        self._files = ParquetFiles(
            open_folder(uri),
            columns,
            self._partition_by,
            lambda values: folder_of(self._partition_by, [as_text(value) for value in values]),
            announce=context.announce,
            prefix=f"part-{context.checkpoint}-{context.subtask}",
            target_bytes=target_bytes,
        )

    def write(self, batch: pa.RecordBatch) -> None:
        try:
            self._files.add(batch)
        except PenstockError:
            raise
        except Exception as error:
            raise _failed(self._uri, error) from error

    def prepare(self) -> list[Committable]:
        try:
            files = [self._added(file) for file in self._files.finish()]
        except Exception as error:
            self.abort()
            raise _failed(self._uri, error) from error
        if not files:
            return []
        return [Committable(encode(files), sum(f.rows for f in files), sum(f.size for f in files))]

    def abort(self) -> None:
        self._files.abort()

    def _added(self, file: WrittenFile) -> AddedFile:
        values = [as_text(value) for value in file.partition]
        return AddedFile(
            path=file.name,
            size=file.bytes,
            rows=file.stats.rows,
            partition=dict(zip(self._partition_by, values, strict=True)),
            modified_ms=file.made_at_ms,
            stats=stats_json(file.stats),
        )


def stats_json(stats: FileStats) -> str:
    """Statistics of a file as Delta Lake's log has them."""
    bounded = {name: column for name, column in stats.columns.items() if column.low is not None and column.bounded}
    lows = {name: _low(column.low) for name, column in bounded.items()}
    highs = {name: high for name, column in bounded.items() if (high := _high(column.high)) is not None}
    nulls = {name: column.nulls for name, column in stats.columns.items() if _counted(column)}
    found = {"numRecords": stats.rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return _stats_encoder.encode(found).decode()


def _counted(column: ColumnStats) -> bool:
    """Where a column is nested, the log wants the counts of its leaves; so it gets none."""
    return column.bounded


def _low(value: Any) -> Any:
    match value:
        case str():
            return value[:TEXT_MAX]
        case datetime():
            return _moment(value)
        case date():
            return value.isoformat()
        case float() | int() | Decimal():
            return value
    raise AssertionError(f"no statistics of {type(value)}")


def _high(value: Any) -> Any:
    """A bound may be too high, never too low: what is cut is rounded up. None where that cannot be done."""
    match value:
        case str():
            return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}\U0010ffff"
        case datetime():
            return _moment(value if value.microsecond % 1000 == 0 else value + timedelta(milliseconds=1))
        case _:
            return _low(value)


def _moment(value: datetime) -> str:
    """In milliseconds, as the log wants it."""
    zone = "Z" if value.tzinfo is not None else ""
    moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"{moment.isoformat(timespec='milliseconds')}{zone}"


def _failed(uri: str, error: Exception) -> PenstockError:
    if isinstance(error, PenstockError):
        return error
    return SubtaskFailed(
        f"the writer of Delta table {uri} failed: {type(error).__name__}: {error}",
        cause="these rows cannot be written as Parquet, or the storage failed",
        next_step="look at the rows or the storage named above, then start again: nothing published was lost",
        path=uri,
    )
