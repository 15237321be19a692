"""A table with snapshots, as several processes see it: slow, failing, written to by others, outcome sometimes unknown.

A commit goes as on a local Paimon warehouse: look, prepare, look again and ask for leadership, then publish by
create-if-absent, which fails when anybody published in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from penstock.errors import CommitFailed, Fenced, StorageFailed
from penstock.protocol.commit import CommitPermit, CommitReceipt, TableHistory
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Committable
from penstock.sinks.base import SinkDefaults, WriterContext
from penstock.testing.simulate.faults import Fault
from penstock.testing.simulate.fibers import Process

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

FOREIGN = "somebody else"
STALL_LOOK_S = 0.2


class Written(msgspec.Struct, frozen=True):
    """The payload of a committable: a data file and who wrote it."""

    file: int
    attempt: str
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of one user."""

    user: str
    checkpoint: int
    files: tuple[int, ...]
    rows: int = 0


@dataclass(eq=False, slots=True)
class SimTable:
    """What all processes share."""

    name: str
    sink: str
    world: World
    files: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    snapshots: list[Snapshot] = field(default_factory=list)
    fenced_below: int = 0
    files_begun: int = 0
    made_too_late: set[int] = field(default_factory=set)
    """Files that zombies made, or may still make, after whoever judged their attempts had removed them."""

    def next_file(self) -> int:
        self.files_begun += 1
        return self.files_begun

    def rows(self) -> list[dict[str, Any]]:
        return [row for snapshot in self.snapshots for file in snapshot.files for row in self.files[file]]

    def call(self, process: Process, what: str) -> Fault:
        world = self.world
        fault = world.outside_call(process, f"{self.name} {what}")
        if world.faults.table_delays(what):
            world.scheduler.pause(3 * world.rng.random() * world.epoch_s)
        while self.name in world.table_stalls and what.startswith(("prepare", "publish")):
            world.scheduler.pause(STALL_LOOK_S)
        if fault is Fault.NONE:
            fault = world.faults.on_table(what)
        if fault is Fault.FAIL_BEFORE:
            raise _failure(f"{self.name}: simulated failure of {what}")
        return fault

    def after(self, process: Process, fault: Fault, what: str) -> None:
        if fault is Fault.CRASH_AFTER:
            self.world.crash(process)
        if fault is Fault.FAIL_AFTER:
            raise _failure(f"{self.name}: simulated loss of the answer to {what}")


@dataclass(frozen=True, slots=True)
class SimSink(SinkDefaults):
    """A sink into a table of the world."""

    table: SimTable

    @property
    def description(self) -> str:
        return f"simulated table {self.table.name}"

    def check(self, schema: pa.Schema) -> None:
        """Nothing to prepare."""

    def open_writer(self, context: WriterContext, schema: pa.Schema) -> SimTableWriter:
        del schema
        return SimTableWriter(self.table, context)

    def open_committer(self, commit_user: str) -> SimCommitter:
        return SimCommitter(self.table, commit_user)


class SimTableWriter:
    """Writes one data file."""

    def __init__(self, table: SimTable, context: WriterContext) -> None:
        self._table, self._context = table, context
        self._batches: list[pa.RecordBatch] = []

    def write(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)

    def prepare(self) -> list[Committable]:
        rows = [row for batch in self._batches for row in batch.to_pylist()]
        if not rows:
            return []
        table = self._table
        process = table.world.scheduler.current.process
        number = table.next_file()
        self._context.announce(str(number))
        fault = table.call(process, "write")
        table.files[number] = rows
        table.after(process, fault, "write")
        payload = msgspec.json.encode(Written(number, process.name, int(self._context.checkpoint)))
        return [Committable(payload, len(rows), len(payload))]

    def abort(self) -> None:
        self._batches.clear()


class SimCommitter:
    """Commits for one user, in the process that opened it."""

    def __init__(self, table: SimTable, user: str) -> None:
        self._table, self._user = table, user
        self._process = table.world.scheduler.current.process
        self._known: int | None = None

    def fence(self, generation: Generation) -> None:
        fault = self._table.call(self._process, f"fence {generation}")
        self._table.fenced_below = max(self._table.fenced_below, int(generation))
        self._table.after(self._process, fault, "fence")

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        del oldest_snapshot, floor
        fault = self._table.call(self._process, "ask")
        receipts, latest = self._receipts(), len(self._table.snapshots)
        self._known = int(receipts[-1].checkpoint) if receipts else 0
        self._table.after(self._process, fault, "ask")
        return TableHistory(receipts[-limit:], latest)

    def holds(self, committables: Sequence[Committable]) -> bool:
        """No snapshot expires here, so nobody asks."""
        raise AssertionError(committables)

    def commit(
        self,
        permit: CommitPermit,
        committables: Sequence[Committable],
        *,
        watermark: int | None,
        properties: Mapping[str, str],
        still_leader: Callable[[], bool],
    ) -> CommitReceipt:
        del properties, watermark
        table, world = self._table, self._table.world
        while True:
            base = len(table.snapshots)
            if (held := self._held(permit)) is not None:
                return held
            table.call(self._process, f"prepare {permit.checkpoint}")
            asked_at = world.scheduler.now
            leads = still_leader()
            if not leads:
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            fault = table.call(self._process, f"publish {permit.checkpoint}")
            if len(table.snapshots) != base:
                continue
            if permit.generation < table.fenced_below:
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            world.checks.before_commit(self._process, table, permit, committables, asked_at)
            files = tuple(msgspec.json.decode(c.payload, type=Written).file for c in committables)
            table.snapshots.append(
                Snapshot(self._user, int(permit.checkpoint), files, sum(c.rows for c in committables))
            )
            self._known = int(permit.checkpoint)
            world.log(
                f"{table.name} snapshot {len(table.snapshots)} holds checkpoint {permit.checkpoint}: files {files}"
            )
            table.after(self._process, fault, "publish")
            return self._receipts()[-1]

    def missing_files(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        numbers = [msgspec.json.decode(c.payload, type=Written).file for c in committables]
        return tuple(str(number) for number in numbers if number not in self._table.files)

    def partitions(self, committables: Sequence[Committable]) -> tuple[str, ...]:
        del committables
        return ()

    def abort(self, committables: Sequence[Committable]) -> None:
        self.remove([str(msgspec.json.decode(c.payload, type=Written).file) for c in committables])

    def remove(self, files: Sequence[str]) -> None:
        fault = self._table.call(self._process, f"remove {','.join(files)}")
        for file in map(int, files):
            if file in self._table.files:
                self._table.world.checks.before_removal(self._table, file)
                del self._table.files[file]
            else:
                self._table.made_too_late.add(file)
        self._table.after(self._process, fault, "remove")

    def close(self) -> None:
        """Nothing is open."""

    def _held(self, permit: CommitPermit) -> CommitReceipt | None:
        """The checkpoint if the table has it. What was chosen to be committed fits only what was known then."""
        receipts = self._receipts()
        found = int(receipts[-1].checkpoint) if receipts else 0
        if found >= permit.checkpoint:
            return receipts[-1]
        if self._known is not None and found != self._known:
            raise CommitFailed(f"checkpoint {found} appeared while {permit.checkpoint} was being committed")
        return None

    def _receipts(self) -> tuple[CommitReceipt, ...]:
        return tuple(
            CommitReceipt(CheckpointId(snapshot.checkpoint), number, snapshot.rows, len(snapshot.files), None, number)
            for number, snapshot in enumerate(self._table.snapshots, 1)
            if snapshot.user == self._user
        )


def _failure(seen: str) -> StorageFailed:
    return StorageFailed(seen, cause="the simulator", next_step="ask again")
