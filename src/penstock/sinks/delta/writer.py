"""Writes one subtask's output of one epoch as data files of a Delta table, in the Spark task.

A committable holds the log's entry for each file as JSON: its name, size, partition and statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.sinks.base import WriterContext
from penstock.sinks.lake.keys import without_kind
from penstock.sinks.lake.writer import LakeWriter
from penstock.sinks.parquet.files import ParquetFiles, WrittenFile
from penstock.sinks.parquet.partitions import as_text, folder_of
from penstock.sinks.parquet.remote import open_folder
from penstock.sinks.parquet.stats import ColumnStats, ParquetStats

if TYPE_CHECKING:
    from penstock.sinks.delta.sink import Delta

TEXT_MAX = 32
"""Longer strings are cut in statistics, as Delta Lake does."""
LARGEST = "\U0010ffff"


_stats_encoder = msgspec.json.Encoder(decimal_format="number")


class AddedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One file that a commit adds to the table; with `deletes` it holds keys whose rows the commit takes away."""

    path: str
    size: int
    rows: int
    partition: dict[str, str | None]
    modified_ms: int
    stats: str
    deletes: bool = False


def encode(files: Sequence[AddedFile]) -> bytes:
    return msgspec.json.encode(files)


def decode(payload: bytes) -> list[AddedFile]:
    """Raises: `msgspec.DecodeError`."""
    return msgspec.json.decode(payload, type=list[AddedFile])


class DeltaWriter(LakeWriter[AddedFile]):
    """As `LakeWriter`."""

    def __init__(self, sink: Delta, schema: pa.Schema, context: WriterContext) -> None:
        columns = without_kind(schema, sink.row_kind)
        super().__init__(sink.description, sink.uri, columns, sink.primary_key, sink.row_kind)
        self._sink, self._context = sink, context

    def _stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(self._columns.names)

    def _new_files(self, columns: pa.Schema, *, deletes: bool) -> ParquetFiles:
        context, names = self._context, self._sink.partition_by
        kind = "gone" if deletes else "part"
        return ParquetFiles(
            open_folder(self._sink.uri),
            pa.schema([field for field in columns if field.name not in names]),
            names,
            lambda values: folder_of(names, [as_text(value) for value in values]),
            announce=context.announce,
            prefix=f"{kind}-{context.checkpoint}-{context.subtask}",
            target_bytes=self._sink.target_file_size,
            sort_by=self._sink.sort_by,
        )

    def _add(self, files: ParquetFiles, rows: pa.RecordBatch) -> None:
        files.add(rows)

    def _described(self, file: WrittenFile, *, deletes: bool) -> AddedFile:
        return added(file, self._sink.partition_by, [as_text(value) for value in file.partition], deletes=deletes)

    def _encoded(self, files: Sequence[AddedFile]) -> bytes:
        return encode(files)


def added(file: WrittenFile, names: Sequence[str], values: Sequence[str | None], *, deletes: bool = False) -> AddedFile:
    """A file as the log names it; `values` are the partition's, as text."""
    return AddedFile(
        path=file.name,
        size=file.bytes,
        rows=file.stats.rows,
        partition=dict(zip(names, values, strict=True)),
        modified_ms=file.made_at_ms,
        stats=stats_json(file.stats),
        deletes=deletes,
    )


def stats_json(stats: ParquetStats) -> str:
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
        case str() if len(value) <= TEXT_MAX:
            return value
        case str():
            return f"{value[:TEXT_MAX]}{LARGEST}" if value[TEXT_MAX] < LARGEST else None
        case datetime():
            rounded = value if value.microsecond % 1000 == 0 else later(value)
            return None if rounded is None else _moment(rounded)
        case _:
            return _low(value)


def later(value: datetime) -> datetime | None:
    """By a millisecond; None at the end of time."""
    try:
        return value + timedelta(milliseconds=1)
    except OverflowError:
        return None


def _moment(value: datetime) -> str:
    """In milliseconds, as the log wants it."""
    zone = "Z" if value.tzinfo is not None else ""
    moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    return f"{moment.isoformat(timespec='milliseconds')}{zone}"
