"""Where a rehearsal writes: nowhere, or into files beside its checkpoint, to be compared and removed afterwards.

Rows are counted either way. Files belong to an attempt; a file per commit names those that count, by create-if-absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from penstock.protocol.ids import CheckpointId, Generation
from penstock.sinks.base import (
    CommitPermit,
    CommitReceipt,
    Committable,
    NamedFiles,
    SinkDefaults,
    TableHistory,
    TableMark,
    WriterContext,
    no_longer_leader,
)
from penstock.store import open_store
from penstock.store.base import AlreadyExists, Store


class _Taken(msgspec.Struct, frozen=True):
    """One commit: the files with its rows, and how many rows there are."""

    rows: int
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Rehearsed(SinkDefaults):
    """Stands in for a sink. `folder` is the URL of a store of its own; `keeps`: whether rows are stored."""

    folder: str
    keeps: bool

    @property
    def description(self) -> str:
        return "a rehearsal"

    def mark(self) -> TableMark | None:
        """It is nobody's table."""
        return None

    def check(self, schema: pa.Schema) -> None:
        """Every schema can be written."""

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> RehearsedWriter:
        return RehearsedWriter(open_store(self.folder) if self.keeps else None, context, schema)

    def open_committer(self, commit_user: str) -> RehearsedCommitter:
        del commit_user  # there is one only
        return RehearsedCommitter(open_store(self.folder))

    def rows(self) -> Iterator[pa.Table]:
        """What was committed, in order."""
        store = open_store(self.folder)
        for _, taken in _commits(store):
            for file in taken.files:
                yield pa.ipc.open_stream(store.read(file)).read_all()

    def count(self) -> int:
        """How many rows were committed."""
        return sum(taken.rows for _, taken in _commits(open_store(self.folder)))


class RehearsedWriter:
    """Counts the rows of one attempt, and keeps them where there is a store."""

    def __init__(self, store: Store | None, context: WriterContext, schema: pa.Schema) -> None:
        self._store, self._context, self._schema = store, context, schema
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        self._rows += batch.num_rows
        if self._store is not None:
            self._batches.append(batch)

    def prepare(self) -> list[Committable]:
        if not self._rows:
            return []
        if self._store is None:
            return [Committable(b"", self._rows, 0)]
        by = self._context
        path = f"rows/{by.checkpoint:010d}-g{by.generation}-s{by.subtask}-a{by.attempt}.arrow"
        by.announce(path)
        target = pa.BufferOutputStream()
        with pa.ipc.new_stream(target, self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        data = target.getvalue().to_pybytes()
        self._store.create(path, data)
        return [Committable(path.encode(), self._rows, len(data))]

    def abort(self) -> None:
        self._batches.clear()


class RehearsedCommitter(NamedFiles):
    """One commit is one small file."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fence(self, generation: Generation) -> None:
        """Nobody else writes here."""

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        del oldest_snapshot, floor
        receipts = tuple(_receipt(number, taken) for number, taken in _commits(self._store))
        return TableHistory(receipts[-limit:], receipts[-1].snapshot if receipts else 0)

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        del watermark, properties
        if not still_leader():
            raise no_longer_leader(permit.checkpoint)
        taken = _Taken(sum(made.rows for made in committables), tuple(self._all_names(committables)))
        try:
            self._store.create(_commit_path(permit.checkpoint), msgspec.json.encode(taken))
        except AlreadyExists:
            pass  # the answer was lost
        return _receipt(permit.checkpoint, taken)

    def _names(self, committable: Committable) -> Sequence[str]:
        """Nothing where rows are only counted."""
        return [committable.payload.decode()] if committable.payload else []

    def _exists(self, file: str) -> bool:
        return self._store.exists(file)

    def remove(self, files: Sequence[str]) -> None:
        self._store.delete(files)


def _commit_path(checkpoint: CheckpointId) -> str:
    return f"commits/{checkpoint:010d}.json"


def _commits(store: Store) -> Iterator[tuple[CheckpointId, _Taken]]:
    for entry in store.list("commits"):
        number = CheckpointId(int(entry.path.removeprefix("commits/").removesuffix(".json")))
        yield number, msgspec.json.decode(store.read(entry.path), type=_Taken)


def _receipt(checkpoint: CheckpointId, taken: _Taken) -> CommitReceipt:
    return CommitReceipt(checkpoint, snapshot=int(checkpoint), rows=taken.rows, files=len(taken.files))
