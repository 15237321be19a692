"""`penstock.open(folder)`: what a checkpoint folder holds, as Arrow, of a running query or a dead one.

A running query goes on meanwhile and deletes files of old checkpoints. On a local disk a reader has all files open
before its first row, and keeps them so. Elsewhere it asks the query to keep them (`holding`). A reader that finds one
gone before it has given a row begins again with the newest checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from penstock.errors import ConfigError, MissingFile, NoSuchCheckpoint
from penstock.observe.tables.data import FlightRows, Key, StateRows, key_arrays
from penstock.observe.tables.holding import Holding
from penstock.observe.tables.lists import checkpoint_list, commit_list, epoch_list, file_list
from penstock.observe.tables.manifests import checkpoint_ids, newest_manifest, read_manifest
from penstock.observe.tables.scan import Scan
from penstock.observe.tables.segment_scan import stays_open
from penstock.observe.tables.shapes import state_names, state_table
from penstock.plain import plain_errors
from penstock.protocol.ids import CheckpointId
from penstock.protocol.keygroups import KeyGroupRange
from penstock.protocol.manifest import Manifest
from penstock.records import MAIN_STATE
from penstock.store import open_store
from penstock.store.base import Store

_TRIES = 20
T = TypeVar("T")


class StateName(NamedTuple):
    """A table of state."""

    operator: str
    table: str


class OpenFolder:
    """A checkpoint folder to look into; `penstock.open` makes one."""

    def __init__(self, store: Store, checkpoint: int | None = None) -> None:
        self._store = store
        self._checkpoint = None if checkpoint is None else CheckpointId(checkpoint)

    @property
    def url(self) -> str:
        """Where the folder is."""
        return self._store.url

    @property
    def manifest(self) -> Manifest:
        """The checkpoint that is looked at: the one that was named, or the newest of this moment.

        Raises: `NoSuchCheckpoint`, `CorruptFile`, `FormatTooNew`.
        """
        if self._checkpoint is None:
            return newest_manifest(self._store)
        return read_manifest(self._store, self._checkpoint)

    @property
    def edges(self) -> list[str]:
        """Names for `in_flight`. Raises: as `manifest`."""
        return list(self.manifest.edges)

    @property
    def states(self) -> list[StateName]:
        """Names for `state`: operators, and their tables. Raises: as `manifest`."""
        return [StateName(*names) for names in state_names(self.manifest)]

    def state(
        self,
        operator: str,
        table: str = MAIN_STATE,
        *,
        columns: Sequence[str] | None = None,
        key: Key | None = None,
        key_groups: tuple[int, int] | None = None,
        raw: bool = False,
    ) -> Scan:
        """The state of an operator, decoded: one row per key, session, pane or place in a list.

        `key` is one key: a value, a tuple, or a dictionary. Only what may hold it is read. `key_groups` are the first
        and the one behind the last. With `raw` columns are as FORMAT.md has them.

        Raises: `ConfigError` for a name that is not there, and as `manifest`.
        """

        def rows(manifest: Manifest) -> StateRows:
            return StateRows(self._store, manifest, state_table(manifest, self._store, operator, table), columns, raw)

        def read(manifest: Manifest) -> Iterator[pa.RecordBatch]:
            return rows(manifest).batches(_range(manifest, key_groups), key)

        first = self.attempt(rows)
        if key is not None:
            key_arrays(key, first.table.user_keys)
        _range(first.manifest, key_groups)
        return self._scan(first.schema, read)

    def in_flight(
        self,
        edge: str | None = None,
        *,
        columns: Sequence[str] | None = None,
        key: Key | None = None,
        key_groups: tuple[int, int] | None = None,
    ) -> Scan:
        """The rows that wait on an edge, in the order in which they will be read. A query with one edge needs no name.

        Behind the columns of the edge: `_edge`, `_key_group`, `_subtask` (which will read it), `_epoch` (in which it
        was written down), `_arrival` (in which the source delivered it), `_watermark` (in effect when it arrived).

        Raises: `ConfigError` for a name that is not there, and as `manifest`.
        """

        def rows(manifest: Manifest) -> FlightRows:
            return FlightRows(self._store, manifest, only_edge(manifest) if edge is None else edge, columns)

        def read(manifest: Manifest) -> Iterator[pa.RecordBatch]:
            return rows(manifest).batches(_range(manifest, key_groups), key)

        first = self.attempt(rows)
        _range(first.manifest, key_groups)
        return self._scan(first.schema, read)

    def checkpoints(self) -> Scan:
        """All checkpoints that are retained, one row each. One that cannot be read has an `error`."""
        return checkpoint_list(self._store, checkpoint_ids(self._store))

    def epochs(self) -> Scan:
        """Every epoch of the history, one row each, oldest first."""
        return epoch_list(self._store)

    def commits(self) -> Scan:
        """Every commit of the history, one row each, oldest first."""
        return commit_list(self._store)

    def files(self) -> Scan:
        """The files that the checkpoint names, one row each. Raises: as `manifest`."""
        return file_list(self.manifest)

    def __repr__(self) -> str:
        which = "" if self._checkpoint is None else f", checkpoint={self._checkpoint}"
        return f"penstock.open({self.url!r}{which})"

    def attempt(self, what: Callable[[Manifest], T]) -> T:
        """Does something with the checkpoint; begins again with a newer one when files of it are gone."""
        for last_try in (*[False] * (_TRIES - 1), True):
            manifest = self.manifest
            try:
                return what(manifest)
            except (MissingFile, NoSuchCheckpoint) as error:
                if last_try or not self._went_on(manifest):
                    raise lost(manifest, error) from error
        raise AssertionError("the last try returns or raises")

    def _scan(self, schema: pa.Schema, read: Callable[[Manifest], Iterator[pa.RecordBatch]]) -> Scan:
        def batches() -> Iterator[pa.RecordBatch]:
            for last_try in (*[False] * (_TRIES - 1), True):
                manifest, begun = self.manifest, False
                try:
                    for batch in self._held(manifest, read(manifest)):
                        begun = True
                        yield batch
                    return
                except (MissingFile, NoSuchCheckpoint) as error:
                    if begun or last_try or not self._went_on(manifest):
                        raise lost(manifest, error) from error

        return Scan(schema, batches)

    def _held(self, manifest: Manifest, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return batches if stays_open(self._store) else holding(self._store, manifest, batches)

    def _went_on(self, manifest: Manifest) -> bool:
        return self._checkpoint is None and checkpoint_ids(self._store)[-1:] != [manifest.checkpoint]


@plain_errors
def open_folder(folder: str | os.PathLike[str], checkpoint: int | None = None) -> OpenFolder:
    """Looks into a checkpoint folder: rows in flight, state, checkpoints, epochs, commits and files as Arrow.

    `folder` is what was given as ``checkpoint=``, or a savepoint. `checkpoint` is the id of a retained one; without it
    every call reads the newest. Needs no Spark, and never disturbs a query that runs.

    Raises: `ConfigError` for a location that cannot be read.
    """
    return OpenFolder(open_store(os.fspath(folder)), checkpoint)


def _range(manifest: Manifest, key_groups: tuple[int, int] | None) -> KeyGroupRange:
    everything = KeyGroupRange(0, manifest.max_parallelism)
    if key_groups is None:
        return everything
    lo, hi = key_groups
    if not 0 <= lo < hi <= manifest.max_parallelism:
        raise ConfigError(
            f"key_groups={key_groups!r:.100}",
            cause=f"the query has the key groups 0 to {manifest.max_parallelism - 1}",
            next_step="give the first and the one behind the last",
        )
    return KeyGroupRange(lo, hi)


def only_edge(manifest: Manifest) -> str:
    """The name of the only edge. Raises: `ConfigError` if there are several."""
    names = list(manifest.edges)
    if len(names) == 1:
        return names[0]
    shown = ", ".join(f"{name} ({edge.rows_in_flight:,} rows)" for name, edge in list(manifest.edges.items())[:20])
    raise ConfigError(
        f"the query has {len(names)} edges, and none was named",
        cause="each edge has columns of its own",
        next_step=f"name one: {shown or 'there is none'}",
    )


def holding(store: Store, manifest: Manifest, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches of a checkpoint whose files the query keeps meanwhile. Raises: `NoSuchCheckpoint` before the first."""
    hold = Holding(store, manifest.checkpoint)
    try:
        for batch in batches:
            hold.renew()
            yield batch
    finally:
        hold.release()


def lost(manifest: Manifest, error: MissingFile | NoSuchCheckpoint) -> MissingFile:
    """What it means that a file of a checkpoint is gone while it is read."""
    return MissingFile(
        error.seen,
        cause=f"the query went on and deleted files of checkpoint {manifest.checkpoint} before or while they were read:"
        " the reader may not write its lease there, or read for more than an hour. Or a file was deleted by hand",
        next_step="read again (load() again with Spark); for longer reads take a savepoint and read that, or let the"
        " query retain more",
        **error.fields,
    )
