"""A table with snapshots, as several processes see it: slow, failing, written to by others, outcome sometimes unknown.

A commit goes as on a local Paimon warehouse: look, prepare, look again and ask for leadership, then publish by
create-if-absent, which fails when another committer published in between. Which commits the table holds is found out by
the code for Paimon tables (`paimon_history`), over snapshots that other engines expire, compact and roll back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa

from penstock.errors import Fenced, StorageFailed
from penstock.protocol.commit import CommitPermit, CommitReceipt, TableHistory
from penstock.protocol.ids import Generation
from penstock.protocol.manifest import Committable
from penstock.sinks.base import SinkDefaults, WriterContext
from penstock.sinks.paimon.history import CommitHistory
from penstock.testing.simulate.faults import Fault
from penstock.testing.simulate.fibers import Process
from penstock.testing.simulate.keeper import SimKeeper

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

STALL_LOOK_S = 0.2


class Written(msgspec.Struct, frozen=True):
    """The payload of a committable: a data file and who wrote it."""

    file: int
    attempt: str
    checkpoint: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of one user: everything the table holds since, and what it added. Named as Paimon names it, where
    `CommitHistory` asks."""

    id: int
    user: str
    checkpoint: int
    listed: tuple[int, ...]
    added: tuple[int, ...] = ()
    rows: int = 0
    commit_kind: str = "APPEND"
    time_millis: int = 0
    watermark: int | None = None

    @property
    def commit_user(self) -> str:
        return self.user

    @property
    def commit_identifier(self) -> int:
        return self.checkpoint

    @property
    def delta_record_count(self) -> int:
        return self.rows

    @property
    def uuid(self) -> int:
        return id(self)


@dataclass(eq=False, slots=True)
class SimTable:
    """What all processes share."""

    name: str
    sink: str
    world: World
    files: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    history: list[Snapshot] = field(default_factory=list)
    """All snapshots that count, from number 1 on."""
    expired: int = 0
    """So many of them cannot be read any more."""
    rolled_back: list[Snapshot] = field(default_factory=list)
    """Those that another engine took away, as long as nothing was published since."""
    merged: set[int] = field(default_factory=set)
    """Files that compaction wrote."""
    fenced_below: int = 0
    files_begun: int = 0
    made_too_late: set[int] = field(default_factory=set)
    """Files that zombies made, or may still make, after the driver that judged their attempts had removed them."""

    def next_file(self) -> int:
        self.files_begun += 1
        return self.files_begun

    @property
    def ours(self) -> list[Snapshot]:
        return [snapshot for snapshot in self.history if snapshot.checkpoint]

    @property
    def listed(self) -> tuple[int, ...]:
        return self.history[-1].listed if self.history else ()

    def committed(self) -> set[int]:
        """Files that were ever part of the table, and not rolled back."""
        return {file for snapshot in self.history for file in (*snapshot.added, *snapshot.listed)}

    def rows(self) -> list[dict[str, Any]]:
        return [row for file in self.listed for row in self.files[file]]

    def publish(self, user: str, *, checkpoint: int = 0, added: tuple[int, ...] = (), rows: int = 0) -> Snapshot:
        return self._append(Snapshot(len(self.history) + 1, user, checkpoint, (*self.listed, *added), added, rows))

    def compact(self, user: str, first: int, last: int) -> None:
        """Rewrites neighbours of the list as one file."""
        listed = self.listed
        merged = self.next_file()
        self.merged.add(merged)
        self.files[merged] = [row for file in listed[first:last] for row in self.files[file]]
        kept = (*listed[:first], merged, *listed[last:])
        self._append(Snapshot(len(self.history) + 1, user, 0, kept, commit_kind="COMPACT"))

    def _append(self, snapshot: Snapshot) -> Snapshot:
        made = replace(snapshot, time_millis=int(self.world.scheduler.now * 1000))
        self.history.append(made)
        self.rolled_back = []
        self.world.log(
            f"{self.name} snapshot {made.id} of {made.user[:8]}: {made.commit_kind} {made.checkpoint} {made.added}"
        )
        return made

    # -- as `CommitHistory` asks ------------------------------------------------------------------------------------

    def latest(self) -> Snapshot | None:
        return self.history[-1] if self.history else None

    def snapshot(self, number: int) -> Snapshot | None:
        return self.history[number - 1] if self.expired < number <= len(self.history) else None

    def files_added(self, snapshot: Snapshot) -> int:
        return len(snapshot.added)

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

    def open_keeper(self, commit_user: str, pending: Callable[[], Iterable[Committable]]) -> SimKeeper | None:
        del pending  # files that no snapshot lists are left alone
        return SimKeeper(self.table, commit_user) if self.table.world.upkeep else None


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
        payload = msgspec.json.encode(Written(number, process.name, self._context.checkpoint))
        return [Committable(payload, len(rows), len(payload))]

    def abort(self) -> None:
        self._batches.clear()


class SimCommitter:
    """Commits for one user, in the process that opened it."""

    def __init__(self, table: SimTable, user: str) -> None:
        self._table, self._user = table, user
        self._process = table.world.scheduler.current.process
        self._history = CommitHistory(cast("Any", table), user)

    def fence(self, generation: Generation) -> None:
        fault = self._table.call(self._process, f"fence {generation}")
        self._table.fenced_below = max(self._table.fenced_below, generation)
        self._history.close_door()
        self._table.after(self._process, fault, "fence")

    def commits(self, oldest_snapshot: int | None, limit: int, floor: int = 0) -> TableHistory:
        fault = self._table.call(self._process, "ask")
        self._history.ask(oldest_snapshot)
        told = self._history.told(oldest_snapshot, limit, floor)
        self._table.after(self._process, fault, "ask")
        return told

    def holds(self, committables: Sequence[Committable]) -> bool:
        files = {msgspec.json.decode(c.payload, type=Written).file for c in committables}
        listed = not files.isdisjoint(self._table.listed)
        if listed:
            self._history.prove()
        return listed

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
            if self._history.holds(permit.checkpoint):
                return self._receipt()
            base = table.latest()
            table.call(self._process, f"prepare {permit.checkpoint}")
            asked_at = world.scheduler.now
            leads = still_leader()
            if not leads:
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            fault = table.call(self._process, f"publish {permit.checkpoint}")
            if table.latest() is not base:
                continue
            if permit.generation < table.fenced_below:
                raise Fenced(f"commit of checkpoint {permit.checkpoint} by generation {permit.generation}")
            world.checks.before_commit(self._process, table, permit, committables, asked_at)
            files = tuple(msgspec.json.decode(c.payload, type=Written).file for c in committables)
            rows = sum(c.rows for c in committables)
            table.publish(self._user, checkpoint=permit.checkpoint, added=files, rows=rows)
            table.after(self._process, fault, "publish")
            self._history.ask()
            return self._receipt()

    def _receipt(self) -> CommitReceipt:
        receipt = self._history.receipt()
        assert receipt is not None
        return receipt

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


def _failure(seen: str) -> StorageFailed:
    return StorageFailed(seen, cause="the simulator", next_step="ask again")
