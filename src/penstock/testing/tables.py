"""A table in memory that behaves like a real one: snapshots, commit users, exactly-once commits. For tests only.

Other engines may write to it, expire and compact it, and roll it back, as they do with a real one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from penstock.errors import Fenced, TablePositionMismatch
from penstock.protocol.commit import CommitPermit, CommitReceipt, Remembered, TableHistory, trusted
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable
from penstock.sinks.base import SinkDefaults, WriterContext


@dataclass(slots=True)
class Snapshot:
    """One commit."""

    user: str
    receipt: CommitReceipt
    batches: list[pa.RecordBatch]
    properties: dict[str, str] = field(default_factory=dict)
    payloads: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class MemoryTable:
    """The table itself; `on_commit` lets a test interfere with a commit before it becomes visible.

    `snapshots` are all that were made. Those up to number `expired` cannot be read any more; their rows stay. The files
    of those up to number `compacted` have other names now.
    """

    schema: pa.Schema | None = None
    snapshots: list[Snapshot] = field(default_factory=list)
    expired: int = 0
    compacted: int = 0
    on_commit: Callable[[CommitPermit], None] = lambda _: None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def rows(self) -> pa.Table:
        assert self.schema is not None
        return pa.Table.from_batches([b for s in self.snapshots for b in s.batches], schema=self.schema)

    def clear(self) -> None:
        self.snapshots.clear()
        self.expired = self.compacted = 0

    def add(self, user: str, receipt: CommitReceipt, batches: list[pa.RecordBatch], payloads: Sequence[bytes]) -> None:
        self.snapshots.append(Snapshot(user, receipt, batches, payloads=frozenset(payloads)))

    def add_foreign(self) -> None:
        """A commit of another engine, without rows."""
        number = len(self.snapshots) + 1
        self.add("somebody else", CommitReceipt(CheckpointId(number), number, 0, 0), [], ())

    def expire(self, number: int) -> None:
        """Expires the snapshots up to this one. The newest one always stays."""
        self.expired = max(self.expired, min(number, len(self.snapshots) - 1))

    def compact(self) -> None:
        """Another engine rewrites all files, in a snapshot of its own."""
        self.add_foreign()
        self.compacted = len(self.snapshots)

    def roll_back(self, number: int) -> None:
        """Rolls back to a snapshot that is still there, as if later ones had never been made."""
        assert self.expired < number <= len(self.snapshots)
        del self.snapshots[number:]
        self.compacted = min(self.compacted, number)

    def readable(self, number: int) -> Snapshot | None:
        return self.snapshots[number - 1] if self.expired < number <= len(self.snapshots) else None


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
        self._seen: int | None = None
        self._last: CommitReceipt | None = None

    def fence(self, generation: Generation) -> None:
        """Leadership is asked and the snapshot made under one lock: nothing can come between."""

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        table = self._table
        latest = len(table.snapshots)
        self._require_no_rollback(latest)
        known = max(oldest_snapshot or 0, trusted(floor, latest))
        mine = self._mine(known)
        remembered = self._remembered(oldest_snapshot)
        if not mine and remembered is Remembered.PRESENT and oldest_snapshot is not None:
            mine = [table.snapshots[oldest_snapshot - 1].receipt]
        if not mine and self._last is not None and int(self._last.snapshot or 0) >= known:
            mine = [self._last]
        self._last = mine[-1] if mine else None
        newest = int(mine[-1].snapshot or 0) if mine else 0
        gone = table.expired if table.expired > max(known, newest) else None
        self._seen = latest
        self._known = mine[-1].checkpoint if mine else self._known
        return TableHistory(tuple(mine[-limit:]), latest, gone, remembered)

    def holds(self, committables: Sequence[Committable]) -> bool:
        listed = {p for s in self._table.snapshots[self._table.compacted :] for p in s.payloads}
        return any(committable.payload in listed for committable in committables)

    def _mine(self, above: int) -> list[CommitReceipt]:
        numbers = range(max(above, self._table.expired), len(self._table.snapshots))
        return [s.receipt for s in map(self._table.snapshots.__getitem__, numbers) if s.user == self._user]

    def _remembered(self, number: int | None) -> Remembered:
        if number is None:
            return Remembered.NOTHING
        if number > len(self._table.snapshots):
            return Remembered.LOST
        snapshot = self._table.readable(number)
        if snapshot is None:
            return Remembered.EXPIRED
        return Remembered.PRESENT if snapshot.user == self._user else Remembered.LOST

    def _require_no_rollback(self, latest: int) -> None:
        if self._seen is not None and latest < self._seen:
            raise TablePositionMismatch(
                f"the table lost snapshots: its newest is {latest}, it had {self._seen}",
                cause="it was rolled back while the query ran",
                next_step="start the query again",
            )

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        table = self._table
        table.on_commit(permit)
        with table.lock:
            self._require_no_rollback(len(table.snapshots))
            newest = self._mine(0)[-1:]
            if newest and newest[-1].checkpoint >= permit.checkpoint:
                return newest[-1]
            if newest and newest[-1].checkpoint > (-1 if self._known is None else self._known):
                found, self._known = newest[-1].checkpoint, newest[-1].checkpoint
                raise RuntimeError(f"checkpoint {found} appeared since the table was asked: choose anew")
            if not still_leader():
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            batches = self.batches_of(committables)
            rows = sum(batch.num_rows for batch in batches)
            number = len(table.snapshots) + 1
            receipt = CommitReceipt(permit.checkpoint, number, rows, len(committables), watermark, number)
            table.add(self._user, receipt, batches, [c.payload for c in committables])
            table.snapshots[-1].properties = dict(properties)
            self._known, self._seen, self._last = permit.checkpoint, number, receipt
            return receipt

    def batches_of(self, committables: Sequence[Committable]) -> list[pa.RecordBatch]:
        """The rows that travel in committables."""
        return [batch for committable in committables for batch in pa.ipc.open_stream(committable.payload)]

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
