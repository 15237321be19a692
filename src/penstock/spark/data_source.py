"""``spark.read.format("penstock").load(folder)``: what a checkpoint folder holds, as DataFrames.

A thin face of `observe.tables`. Planning reads the manifest once and hands the part of it that matters to the tasks, so
all tasks read the same checkpoint. State is cut by key groups, rows in flight by files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import ConfigError, MissingFile, NoSuchCheckpoint
from penstock.observe.tables.data import FlightRows, StateRows, key_arrays
from penstock.observe.tables.holding import Holding
from penstock.observe.tables.opened import OpenFolder, holding, lost, only_edge
from penstock.observe.tables.scan import Scan
from penstock.observe.tables.shapes import state_table
from penstock.observe.tables.state_scan import StateScan, sections
from penstock.protocol.codec import decode_manifest, encode_manifest
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Manifest
from penstock.store import open_store

FORMAT = "penstock"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
"""Spark refuses sources that take filters unless this is set."""
_TABLES = ("state", "in_flight", "checkpoints", "epochs", "commits", "files")
_OPTIONS = frozenset({"path", "table", "checkpoint", "operator", "edge", "columns", "key", "raw"})
_PARTITION_ROWS = 4 << 20
_BATCH_ROWS = 1 << 17


def register(spark: SparkSession) -> None:
    """Makes ``spark.read.format("penstock")`` known to a session; `penstock.session` calls it.

    Filters on keys are pushed down to the files, so Spark's setting for that is switched on. Paths are relative to the
    folder in which Python is now, as those of `start` are; Spark's own process may be elsewhere.
    """
    spark.dataSource.register(type("CheckpointSource", (CheckpointSource,), {"home": str(Path.cwd())}))
    spark.conf.set(PUSHDOWN, "true")


@dataclass(frozen=True)
class _Asked:
    """The options of one read."""

    folder: str
    table: str
    checkpoint: CheckpointId | None = None
    operator: str = ""
    part: str = ""
    edge: str | None = None
    columns: tuple[str, ...] | None = None
    key: Any = None
    raw: bool = False

    @classmethod
    def of(cls, given: Mapping[str, str], home: str) -> _Asked:
        """Raises: `ConfigError`."""
        options = {name.lower(): value for name, value in given.items()}
        unknown = sorted(set(options) - _OPTIONS)
        table = options.get("table", "state" if "operator" in options else "in_flight")
        if unknown or table not in _TABLES or "path" not in options:
            seen = f"the option {unknown[0]!r}" if unknown else f"table={table!r}"
            raise ConfigError(
                seen if "path" in options else "no folder was named",
                cause=f"options are {', '.join(sorted(_OPTIONS - {'path'}))}; tables are {', '.join(_TABLES)}",
                next_step='spark.read.format("penstock").option("table", "state").option("operator", "totals")'
                ".load(folder)",
            )
        operator, _, part = options.get("operator", "").partition("/")
        columns = [name.strip() for name in options.get("columns", "").split(",") if name.strip()]
        return cls(
            _absolute(options["path"], home),
            table,
            _number(options.get("checkpoint")),
            operator,
            part,
            options.get("edge"),
            tuple(columns) or None,
            _key(options.get("key")),
            options.get("raw", "false").lower() == "true",
        )


def _absolute(path: str, home: str) -> str:
    return path if "://" in path or path.startswith("file:") else str(Path(home) / Path(path).expanduser())


def _number(text: str | None) -> CheckpointId | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 10:
        raise ConfigError(
            f"checkpoint={text!r:.100}", cause="a checkpoint has a number", next_step="leave it out for the newest"
        )
    return CheckpointId(int(text))


def _key(text: str | None) -> Any:
    """A key is JSON: ``7``, ``"ann"``, ``null``, ``{"user": 7, "shop": "a"}``."""
    if text is None:
        return None
    try:
        key = json.loads(text)
    except ValueError:
        return text
    return [None] if key is None else key  # None alone would mean every key


class CheckpointSource(DataSource):
    """The data source; Spark makes one for each read."""

    home = ""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._manifest: bytes | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        asked = _Asked.of(self.options, self.home)
        if asked.table not in ("state", "in_flight"):
            return from_arrow_schema(_listed(asked).schema)
        return from_arrow_schema(_spark_schema(self._rows(asked).schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        asked = _Asked.of(self.options, self.home)
        if asked.table not in ("state", "in_flight"):
            return ListReader(asked)
        return (StateReader if asked.table == "state" else FlightReader)(asked, self._held(asked, schema))

    def _rows(self, asked: _Asked) -> StateRows | FlightRows:
        """The first look decides for a checkpoint; a later one, in another process, takes the same."""
        if self._manifest is None:
            folder = OpenFolder(open_store(asked.folder), asked.checkpoint)
            self._manifest, rows = folder.attempt(lambda manifest: _trimmed(asked, manifest))
            return rows
        return _rows_of(asked, self._manifest)

    def _held(self, asked: _Asked, schema: StructType) -> bytes:
        """The manifest for the tasks. Spark does not say when they are done, so nobody releases this lease: it bridges
        the time until the tasks have theirs. A DataFrame that is older than its checkpoint goes on with the newest."""
        if self._manifest is None:
            self._rows(asked)
        assert self._manifest is not None
        manifest = decode_manifest(self._manifest)
        assert isinstance(manifest, Manifest)
        store = open_store(asked.folder)
        try:
            Holding(store, manifest.checkpoint)
            _rows_of(asked, self._manifest)
        except (NoSuchCheckpoint, MissingFile) as error:
            if asked.checkpoint is not None:
                raise lost(manifest, error) from error
            data, newer = OpenFolder(store).attempt(lambda newest: _held_part(asked, newest))
            if from_arrow_schema(_spark_schema(newer.schema)) != schema:
                raise lost(manifest, error) from error
            return data
        return self._manifest


def _trimmed(asked: _Asked, manifest: Manifest) -> tuple[bytes, StateRows | FlightRows]:
    """The part of a manifest that tasks need: one edge, or one table of state."""
    if asked.table == "state":
        name = f"{asked.operator}/{asked.part}" if asked.part else asked.operator
        part = msgspec.structs.replace(
            manifest, edges={}, sinks={}, state={name: manifest.state[name]} if name in manifest.state else {}
        )
    else:
        edge = only_edge(manifest) if asked.edge is None else asked.edge
        edges = {edge: manifest.edges[edge]} if edge in manifest.edges else {}
        part = msgspec.structs.replace(manifest, edges=edges, sinks={}, state={})
    data = encode_manifest(part)
    rows = _rows_of(asked, data)
    _ = rows.schema
    return data, rows


def _held_part(asked: _Asked, manifest: Manifest) -> tuple[bytes, StateRows | FlightRows]:
    Holding(open_store(asked.folder), manifest.checkpoint)
    return _trimmed(asked, manifest)


def _rows_of(asked: _Asked, data: bytes) -> StateRows | FlightRows:
    manifest = decode_manifest(data)
    assert isinstance(manifest, Manifest)
    store = open_store(asked.folder)
    if asked.table == "state":
        table = state_table(manifest, store, asked.operator, asked.part)
        return StateRows(store, manifest, table, asked.columns, asked.raw)
    return FlightRows(store, manifest, asked.edge or next(iter(manifest.edges), ""), asked.columns)


def _listed(asked: _Asked) -> Scan:
    folder = OpenFolder(open_store(asked.folder), asked.checkpoint)
    match asked.table:
        case "checkpoints":
            return folder.checkpoints()
        case "epochs":
            return folder.epochs()
        case "commits":
            return folder.commits()
    return folder.files()


class ListReader(DataSourceReader):
    """A list: one task."""

    def __init__(self, asked: _Asked) -> None:
        self._asked = asked

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        del partition
        return iter(_listed(self._asked))


@dataclass
class _Groups(InputPartition):
    lo: int
    hi: int


@dataclass
class _File(InputPartition):
    number: int


class _Pruned(DataSourceReader):
    """Knows which rows are asked for: a key, and a part of the key groups."""

    def __init__(self, asked: _Asked, manifest: bytes) -> None:
        self._asked, self._manifest = asked, manifest
        self._key: Any = asked.key
        self._lo, self._hi = 0, 1 << 15

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """What cannot be pruned by a filter is left to Spark, which looks at every row again in any case."""
        equal: dict[str, Any] = {}
        group = self._rows().group_column  # a column of the user may have the usual name
        for part in filters:
            match part:
                case EqualTo((name,), value) | EqualNullSafe((name,), value):
                    equal[name] = value
                    if name == group and isinstance(value, int):
                        self._lo, self._hi = max(self._lo, value), min(self._hi, value + 1)
                case GreaterThanOrEqual((name,), int(value)) if name == group:
                    self._lo = max(self._lo, value)
                case LessThan((name,), int(value)) if name == group:
                    self._hi = min(self._hi, value)
        names = self._key_names()
        if self._key is None and names.names and set(names.names) <= equal.keys():
            key = {name: equal[name] for name in names.names}
            try:
                key_arrays(key, names)
            except ConfigError:
                pass  # Spark compares values of types that this cannot: it looks for itself
            else:
                self._key = key
        return filters

    def _key_names(self) -> pa.Schema:
        """The key columns, if they are shown as they are stored."""
        rows = self._rows()
        if isinstance(rows, StateRows):
            shown = rows.full_schema.names
            return rows.table.user_keys if set(rows.table.user_keys.names) <= set(shown) else pa.schema([])
        user, keys = rows.user_schema, rows.shape.keys
        return pa.schema([user.field(name) for name in keys] if set(keys) <= set(user.names) else [])

    def _rows(self) -> StateRows | FlightRows:
        return _rows_of(self._asked, self._manifest)

    def _range(self, rows: StateRows | FlightRows) -> KeyGroupRange:
        hi = min(self._hi, rows.manifest.max_parallelism)
        return KeyGroupRange(min(max(0, self._lo), hi), max(0, hi))


class StateReader(_Pruned):
    """A table of state: a task for some millions of rows."""

    def partitions(self) -> list[InputPartition]:
        rows = self._rows()
        assert isinstance(rows, StateRows)
        groups = self._range(rows)
        if not len(groups):
            return []
        if self._key is not None:
            return [_Groups(groups.lo, groups.hi)]
        scan = StateScan(rows.store, rows.table, rows.manifest.max_parallelism, groups)
        try:
            return [_Groups(part.lo, part.hi) for part in sections(scan.files, groups, _PARTITION_ROWS)]
        finally:
            scan.close()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, _Groups):
            rows = self._rows()
            yield from _for_spark(rows, rows.batches(KeyGroupRange(partition.lo, partition.hi), self._key))


class FlightReader(_Pruned):
    """The rows of an edge: a task for each file."""

    def partitions(self) -> list[InputPartition]:
        rows = self._rows()
        assert isinstance(rows, FlightRows)
        return [_File(number) for number in range(len(rows.segments))] if len(self._range(rows)) else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if isinstance(partition, _File):
            rows = self._rows()
            assert isinstance(rows, FlightRows)
            own = rows.segments[partition.number : partition.number + 1]
            yield from _for_spark(rows, rows.batches(self._range(rows), self._key, own))


def _for_spark(rows: StateRows | FlightRows, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    schema = _spark_schema(rows.schema)
    try:
        for batch in holding(rows.store, rows.manifest, batches):
            if batch.schema.types != schema.types:
                batch = batch.cast(schema)  # noqa: PLW2901 - the same rows
            for begin in range(0, batch.num_rows, _BATCH_ROWS):
                yield batch.slice(begin, _BATCH_ROWS)
    except (MissingFile, NoSuchCheckpoint) as error:
        raise lost(rows.manifest, error) from error


def _spark_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _spark_type(field.type)) for field in schema])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    """Spark has no unsigned numbers: hashes of aggregates become decimals."""
    if pt.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pt.is_unsigned_integer(kind):
        return pa.int64()
    if pt.is_list(kind) and (inside := _spark_type(kind.value_type)) != kind.value_type:
        return pa.list_(inside)
    return kind
