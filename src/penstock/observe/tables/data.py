"""State and rows in flight of one checkpoint, typed, with the columns that say where each row is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.errors import ConfigError
from penstock.observe.tables.readable import MOMENT, Column, readable
from penstock.observe.tables.scan import free_names, picked
from penstock.observe.tables.segment_scan import FlightBatch, SegmentScan, stays_open
from penstock.observe.tables.shapes import StoredTable
from penstock.observe.tables.state_scan import StateScan
from penstock.observe.tables.types import schema_of
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import EdgeShape, Manifest, Segment
from penstock.state.layout import groups_of_orders
from penstock.state.runs import SortedRun
from penstock.store.arrowfile import ArrowFile
from penstock.store.base import Store

Key: TypeAlias = "Mapping[str, Any] | Sequence[Any] | Any"
"""One key: a value, several values in the order of the key columns, or a dictionary of them."""

KEY_GROUP = "_key_group"
_PLACES = ("_edge", KEY_GROUP, "_subtask", "_epoch", "_arrival", "_watermark")
_PLACE_TYPES = (pa.string(), pa.int32(), pa.int32(), pa.int64(), pa.int64(), MOMENT)


def key_arrays(key: Key, columns: pa.Schema) -> list[pa.Array]:
    """A key as arrays of one value. Raises: `ConfigError` for one that does not fit."""
    names = columns.names
    try:
        if isinstance(key, Mapping):
            if set(key) != set(names):
                raise ValueError(f"it has {', '.join(map(str, key)) or 'no columns'}")
            values = [key[name] for name in names]
        else:
            values = list(key) if isinstance(key, tuple | list) else [key]
        if len(values) != len(names) or not names:
            raise ValueError(f"it has {len(values)} values")
        return [pa.array([value], field.type) for value, field in zip(values, columns, strict=True)]
    except (ValueError, TypeError, OverflowError, pa.ArrowException) as error:
        wanted = ", ".join(f"{field.name} {field.type}" for field in columns) or "no columns"
        raise ConfigError(
            f"key={key!r:.100}: {error}",
            cause=f"the key has these columns: {wanted}",
            next_step="give one value for each, or a dictionary by column",
        ) from None


# -- state -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateRows:
    """What to read of a table of state."""

    store: Store
    manifest: Manifest
    table: StoredTable
    columns: Sequence[str] | None = None
    raw: bool = False

    @property
    def full_schema(self) -> pa.Schema:
        empty = [pa.array([], field.type) for field in (*self.table.schema.keys, *self.table.schema.values)]
        batch = self._shown(SortedRun(np.empty(0, np.uint64), empty, len(self.table.schema.keys)))
        return batch.schema

    @property
    def group_column(self) -> str:
        """What the key group is called, which is the last column."""
        return str(self.full_schema.names[-1])

    @property
    def schema(self) -> pa.Schema:
        """Raises: `ConfigError` for a column that is not there."""
        full = self.full_schema
        return pa.schema([full.field(place) for place in picked(full, self.columns)])

    def batches(self, groups: KeyGroupRange, key: Key | None = None) -> Iterator[pa.RecordBatch]:
        """Raises: `PenstockError`; `MissingFile` before the first batch, where the storage is a local disk."""
        places = picked(self.full_schema, self.columns)
        wanted = None if key is None else key_arrays(key, self.table.user_keys)
        scan = StateScan(self.store, self.table, self.manifest.max_parallelism, groups)
        with closing(scan):
            for run in scan.runs() if wanted is None else scan.find(wanted):
                batch = self._shown(run)
                if batch.num_rows:
                    yield batch.select(places)

    def _shown(self, run: SortedRun) -> pa.RecordBatch:
        groups = groups_of_orders(run.orders, self.manifest.max_parallelism).astype(np.int32)
        group = pa.array(groups, pa.int32())
        if self.raw:
            fields = [*self.table.schema.keys, *self.table.schema.values]
            columns, parents = [Column(f.name, part) for f, part in zip(fields, run.columns, strict=True)], None
        else:
            columns, parents = readable(self.table, run.columns, self.manifest.now)
        if parents is not None:
            group = group.take(parents)
        columns = [*columns, Column(KEY_GROUP, group, ours=True)]
        users = [column.name for column in columns if not column.ours]
        ours = iter(free_names(users, [column.name for column in columns if column.ours]))
        names = [next(ours) if column.ours else column.name for column in columns]
        return pa.RecordBatch.from_arrays([column.values for column in columns], names=names)


# -- rows in flight ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FlightRows:
    """What to read of an edge."""

    store: Store
    manifest: Manifest
    edge: str
    columns: Sequence[str] | None = None

    @property
    def shape(self) -> EdgeShape:
        """Raises: `ConfigError` for an edge that is not there."""
        shape = self.manifest.shape.edges.get(self.edge)
        if shape is None or self.edge not in self.manifest.edges:
            names = list(self.manifest.edges)
            raise ConfigError(
                f"there is no edge {self.edge!r}",
                cause="a typo; edges are named after what they connect, <producer>-to-<consumer>",
                next_step=f"checkpoint {self.manifest.checkpoint} has: {', '.join(names[:20]) or 'no edge'}",
            )
        return shape

    @property
    def segments(self) -> list[Segment]:
        """In the order in which they are to be read."""
        return sorted(self.manifest.edges[self.edge].segments, key=lambda segment: segment.age)

    @property
    def user_schema(self) -> pa.Schema:
        shape, segments = self.shape, self.segments
        found = None
        if segments:
            with ArrowFile(self.store, segments[-1].path, segments[-1].checksum, mapped=True) as file:
                found = file.schema
        return schema_of(shape.columns, found)

    @property
    def full_schema(self) -> pa.Schema:
        user = self.user_schema
        ours = zip(free_names(user.names, _PLACES), _PLACE_TYPES, strict=True)
        return pa.schema([*user, *(pa.field(name, kind) for name, kind in ours)])

    @property
    def group_column(self) -> str:
        """What the key group is called."""
        return free_names(self.user_schema.names, _PLACES)[_PLACES.index(KEY_GROUP)]

    @property
    def schema(self) -> pa.Schema:
        """Raises: `ConfigError` for a column that is not there."""
        full = self.full_schema
        return pa.schema([full.field(place) for place in picked(full, self.columns)])

    def batches(
        self, groups: KeyGroupRange, key: Key | None = None, segments: Sequence[Segment] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Raises: `PenstockError`; `MissingFile` before the first batch, where the storage is a local disk."""
        user, full = self.user_schema, self.full_schema
        places = picked(full, self.columns)
        keys = self.shape.keys
        wanted = None
        if key is not None:
            known = all(name in user.names for name in keys)
            wanted = key_arrays(key, pa.schema([user.field(name) for name in keys] if known else []))
        for segment, scan in self._scans(user, groups, self.segments if segments is None else segments):
            for waiting in scan.batches() if wanted is None else scan.find(keys, wanted):
                yield self._shown(segment, waiting, full).select(places)

    def _scans(
        self, schema: pa.Schema, groups: KeyGroupRange, segments: Sequence[Segment]
    ) -> Iterator[tuple[Segment, SegmentScan]]:
        """One after the other; where open files can be read on after they were deleted, all are opened first."""
        with ExitStack() as opened:

            def scan_of(segment: Segment) -> tuple[Segment, SegmentScan]:
                scan = SegmentScan(self.store, segment, schema, self.manifest.max_parallelism, groups)
                opened.callback(scan.close)
                return segment, scan

            scans = map(scan_of, segments)
            for segment, scan in list(scans) if stays_open(self.store) else scans:
                yield segment, scan
                scan.close()

    def _shown(self, segment: Segment, waiting: FlightBatch, schema: pa.Schema) -> pa.RecordBatch:
        rows = waiting.batch.num_rows
        parallelism = self.manifest.parallelism.get(self.shape.consumer, 1)
        subtasks = waiting.groups * parallelism // self.manifest.max_parallelism
        watermark = pa.scalar(segment.watermark, pa.int64())
        ours = [
            pa.repeat(self.edge, rows),
            pa.array(waiting.groups.astype(np.int32)),
            pa.array(subtasks.astype(np.int32)),
            pa.repeat(pa.scalar(segment.epoch, pa.int64()), rows),
            pa.repeat(pa.scalar(segment.arrived, pa.int64()), rows),
            pa.repeat(watermark, rows).view(MOMENT),
        ]
        return pa.RecordBatch.from_arrays([*waiting.batch.columns, *ours], schema=schema)
