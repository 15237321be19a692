"""A table in memory that behaves like a real one: snapshots, commit users, exactly-once commits. For tests only."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import Fenced
from penstock.protocol.commit import CommitPermit, CommitReceipt
from penstock.protocol.ids import Generation
from penstock.protocol.manifest import Committable
from penstock.sinks.base import SinkDefaults, WriterContext


@dataclass(slots=True)
class Snapshot:
    """One commit."""

    user: str
    receipt: CommitReceipt
    batches: list[pa.RecordBatch]
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class MemoryTable:
    """The table itself; `on_commit` lets a test interfere with a commit before it becomes visible."""

    schema: pa.Schema | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    on_commit: Callable[[CommitPermit], None] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self) -> pa.Table:
        assert self.schema is not None
        return pa.Table.from_batches([b for s in self.snapshots for b in s.batches], schema=self.schema)


_tables: dict[str, MemoryTable] = {}


def memory_table(name: str) -> MemoryTable:
    return _tables.setdefault(name, MemoryTable())


@dataclass(frozen=True, slots=True)
class Memory(SinkDefaults):
    """A sink into the table of that name in this process."""

    name: str

    @property
    def description(self) -> str:
        return f"memory table {self.name}"

    def check(self, schema: pa.Schema) -> None:
        memory_table(self.name).schema = schema

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> MemoryWriter:
        del context
        return MemoryWriter(schema)

    def open_committer(self, commit_user: str) -> MemoryCommitter:
        return MemoryCommitter(memory_table(self.name), commit_user)


class MemoryWriter:
    """Keeps batches and hands them over as bytes."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def prepare(self) -> list[Committable]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as stream:
            for batch in self._batches:
                stream.write_batch(batch)
        payload = sink.getvalue().to_pybytes()
        return [Committable(payload, sum(batch.num_rows for batch in self._batches), len(payload))]

    def abort(self) -> None:
        self._batches.clear()


class MemoryCommitter:
    """Commits for one user."""

    def __init__(self, table: MemoryTable, user: str) -> None:
        self._table, self._user = table, user
        self._known: int | None = None

    def fence(self, generation: Generation) -> None:
        """Leadership is asked and the snapshot made under one lock: nothing can come between."""

    def commits(self, oldest_snapshot: int | None, limit: int) -> tuple[CommitReceipt, ...]:
        mine = [snapshot.receipt for snapshot in self._table.snapshots if snapshot.user == self._user]
        self._known = mine[-1].checkpoint if mine else None
        recent = [receipt for receipt in mine if (receipt.snapshot or 0) >= (oldest_snapshot or 0)]
        return tuple((recent or mine)[-limit:])

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        self._table.on_commit(permit)
        with self._table.lock:
            known = self._known
            held = self.commits(None, 1)
            if held and held[-1].checkpoint >= permit.checkpoint:
                return held[-1]
            if known != self._known:
                raise RuntimeError(f"checkpoint {self._known} appeared since the table was asked: choose anew")
            if not still_leader():
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            batches = [batch for c in committables for batch in pa.ipc.open_stream(c.payload)]
            rows = sum(batch.num_rows for batch in batches)
            number = len(self._table.snapshots) + 1
            receipt = CommitReceipt(permit.checkpoint, number, rows, len(committables), watermark, number)
            self._table.snapshots.append(Snapshot(self._user, receipt, batches, dict(properties)))
            self._known = permit.checkpoint
            return receipt

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        """Rows travel in the committables themselves."""
        del committables
        return ()

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        del committables
        return ()

    def remove(self, files: Sequence[str]) -> None:
        """Nothing was announced."""

    def abort(self, committables: Sequence[Committable]) -> None:
        """Nothing was stored."""

    def close(self) -> None:
        """Nothing is open."""
