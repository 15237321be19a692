"""What must hold: looked at whenever something becomes visible outside of a process, and once more at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import PenstockError
from penstock.protocol.codec import decode_manifest
from penstock.protocol.commit import CommitPermit
from penstock.protocol.layout import (
    ATTEMPTS,
    DATA_FOLDERS,
    HUNG,
    Announcement,
    read_announcement,
    read_generation_path,
    read_manifest_path,
    read_retired_path,
    top_of,
)
from penstock.protocol.manifest import Committable, Manifest
from penstock.protocol.plan import StagePlan
from penstock.testing.simulate.fibers import Process
from penstock.testing.simulate.jobs import group_of
from penstock.testing.simulate.table import SimTable, Written

if TYPE_CHECKING:
    from penstock.testing.simulate.world import World

EXPECTED = {"StorageFailed", "Fenced", "StageFailed", "CommitFailed"}
"""Errors that faults of the surroundings may end a query with; any other one is a fault of our own."""

TOO_LATE = frozenset({"RestoreRefused"})
"""What a driver says that wants to restore into a folder in which a rival has just done that."""
CANCELLED = "simulated: cancelled"
"""What a job says that the query gave up because an attempt of it hung."""
PACE_KNOWN_AFTER = 1
LATENCY_MAX_S = 0.1
"""The least share of each stage and one step beyond the barrier may add to an epoch, and so do calls of the store. The
takeover and the first epoch do not count: what a row costs is not known then."""


class Checks:
    """All checkers of one world; each failure names the checker first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._origin: Manifest | None = None
        self._manifests: dict[int, Manifest] = {}
        self._claimed_at: dict[int, float] = {}
        self._newest = 0
        self._took_over: set[int] = set()
        self._mistaken: set[int] = set()
        self._accepted: dict[tuple[int, int], dict[int, frozenset[str]]] = defaultdict(dict)
        self._undecidable: set[tuple[str, int]] = set()
        self._published_payloads: set[bytes] = set()
        self._groups: dict[int, int] = {}
        self.publishes = 0

    def elsewhere(self, origin: Manifest) -> Checks:
        """Checkers of a new folder into which a checkpoint is restored."""
        checks = Checks(self._world)
        checks._origin, checks._newest = origin, origin.checkpoint
        checks._published_payloads, checks._undecidable = self._published_payloads, self._undecidable
        checks.publishes = self.publishes
        return checks

    def _parent(self, manifest: Manifest) -> Manifest | None:
        if self._origin is not None and manifest.parent == self._origin.checkpoint:
            return self._origin
        return self._manifests.get(manifest.parent or 0)

    def newest(self) -> Manifest:
        return self._manifests[self._newest]

    def _fail(self, checker: str, message: str) -> None:
        self._world.scheduler.fail(f"{checker}: {message}")

    # -- the store -----------------------------------------------------------------------------------------------

    def before_create(self, process: Process, path: str, data: bytes) -> None:
        if (generation := read_generation_path(path)) is not None:
            process.generation = generation
            self._claimed_at[generation] = self._world.scheduler.now
        if (checkpoint := read_retired_path(path)) is not None:
            self._retire(process, checkpoint)
        elif read_manifest_path(path) is not None:
            manifest = decode_manifest(data)
            if not isinstance(manifest, Manifest):
                self._fail("manifest", f"{path} cannot be read back: {manifest}")
                return
            if manifest.checkpoint <= self._newest and manifest.generation not in self._took_over:
                self._mistaken.add(manifest.checkpoint)  # a takeover under a name that retention freed: to be undone
                return
            self._publish(process, manifest)
            self._manifests[manifest.checkpoint] = manifest
            self._took_over.add(manifest.generation)

    def _publish(self, process: Process, manifest: Manifest) -> None:
        number = manifest.checkpoint
        if number != self._newest + 1:
            self._fail("ids", f"checkpoint {number} published after {self._newest}")
        previous = self._manifests.get(self._newest)
        if previous is not None and manifest.generation < previous.generation:
            self._fail("fence", f"generation {manifest.generation} published after {previous.generation} took over")
        if manifest.generation != process.generation:
            self._fail("fence", f"{process.name} published for generation {manifest.generation}")
        self._conserved(manifest)
        self._files_exist(manifest)
        self._only_winners(manifest)
        self._pending_kept(manifest)
        self._cadence(process, manifest)
        self._newest = number
        self.publishes += 1

    def _cadence(self, process: Process, manifest: Manifest) -> None:
        """Without faults, epochs take no longer than asked for, and with a backlog one follows the other, once the
        pace is known. No barrier interrupts a record, so each wave of subtasks may take one more."""
        world, now = self._world, self._world.scheduler.now
        previous = self._manifests.get(self._newest)
        before, process.published_at = process.published_at, now
        if previous is None:
            return
        known = process.paced >= PACE_KNOWN_AFTER
        # A stage's pace is learnt from rows that it worked on.
        consumed = {name: edge.consumed for name, edge in previous.edges.items()}
        process.paced += all(edge.consumed > consumed.get(name, 0) for name, edge in manifest.edges.items())
        if not (known and process.healthy and world.barrier) or world.shape.waits:
            return
        since = before if previous.rows_in_flight else process.epoch_began
        waves = -(-max(manifest.parallelism.values()) // world.slots)
        epochs_max = world.epochs_max + waves * world.shape.record_cost
        if now - since > epochs_max * world.epoch_s + LATENCY_MAX_S:
            self._fail(
                "cadence", f"{now - since:.3f} s for checkpoint {manifest.checkpoint}, an epoch is {world.epoch_s} s"
            )

    def job_planned(self, process: Process, plan: StagePlan, stage: int) -> None:
        """Stages of an epoch ascend, so this is the first job of one if they do not. Its processing time was read at
        this very moment."""
        if (
            process.planned is None
            or (plan.checkpoint, stage) <= process.planned
            or plan.checkpoint != process.planned[0]
        ):
            before = self._manifests.get(plan.checkpoint - 1)
            stored = before.now if before is not None and before.generation == plan.generation else None
            self._world.wall.epoch(process, plan.now, stored)
        process.planned = (plan.checkpoint, stage)

    def job_begins(self, process: Process, checkpoint: int) -> None:
        if process.epoch != checkpoint:
            process.epoch, process.epoch_began = checkpoint, self._world.scheduler.now

    def _conserved(self, manifest: Manifest) -> None:
        for name, edge in manifest.edges.items():
            in_flight = sum(span.rows_left for segment in edge.segments for span in segment.spans)
            if edge.accepted != edge.consumed + in_flight:
                self._fail(
                    "conservation", f"{name}: {edge.accepted} accepted, {edge.consumed} consumed, {in_flight} in flight"
                )
            for segment in edge.segments:
                for span in segment.spans:
                    if not (0 <= span.cursor <= segment.rows and 0 < span.rows_left <= segment.rows):
                        self._fail("conservation", f"{segment.path}: impossible span {span}")

    def _files_exist(self, manifest: Manifest) -> None:
        named: list[Any] = [segment for edge in manifest.edges.values() for segment in edge.segments]
        named += (file for files in manifest.state.values() for file in files)
        for wanted in named:
            file = self._world.disk.files.get(wanted.path)
            if file is None:
                self._fail("files", f"checkpoint {manifest.checkpoint} names {wanted.path}, which does not exist")
            elif not file.durable:
                self._fail("files", f"checkpoint {manifest.checkpoint} names {wanted.path}, which is not durable")
            elif len(file.data) != wanted.bytes:
                self._fail("files", f"{wanted.path} has {len(file.data)} bytes, {wanted.bytes} are named")

    def _only_winners(self, manifest: Manifest) -> None:
        parent = self._parent(manifest)
        known = {id_of(committable) for committable in pending_of(parent)} if parent is not None else set()
        winners = frozenset().union(*self._accepted[manifest.generation, manifest.checkpoint].values())
        for committable in pending_of(manifest):
            written = msgspec.json.decode(committable.payload, type=Written)
            if id_of(committable) not in known and written.attempt not in winners:
                self._fail("attempts", f"file {written.file} of attempt {written.attempt}, whose report was not taken")
            self._published_payloads.add(committable.payload)

    def _pending_kept(self, manifest: Manifest) -> None:
        """What the parent had pending is pending, or in the table."""
        parent = self._parent(manifest)
        if parent is None:
            return
        for sink, state in parent.sinks.items():
            now = {id_of(c) for pending in manifest.sinks[sink].pending for c in pending.committables}
            done = manifest.sinks[sink].committed or 0
            for pending in state.pending:
                for committable in pending.committables:
                    if pending.checkpoint > done and id_of(committable) not in now:
                        self._fail(
                            "pending", f"{sink}: checkpoint {manifest.checkpoint} lost what {pending.checkpoint} left"
                        )

    def before_delete(self, process: Process, path: str) -> None:
        if (checkpoint := read_manifest_path(path)) is not None:
            self._retire(process, checkpoint)
            return
        if (announcement := read_announcement(path)) is not None:
            self._forget_attempt(process, announcement)
            return
        for number, manifest in self._manifests.items():
            if path in manifest.files():
                self._fail("garbage", f"{process.name} deletes {path}, which checkpoint {number} needs")
        if path in self._world.savepoints.needed(process):
            self._fail("garbage", f"{process.name} deletes {path}, which it copies into a savepoint")

    def _forget_attempt(self, process: Process, announcement: Announcement) -> None:
        """A newer driver leaves the files of an older one alone if that one published the checkpoint, or may have."""
        by = announcement.by
        published = self._manifests.get(by.checkpoint)
        if by.generation < process.generation and (published is None or published.generation == by.generation):
            files = self._world.disk.files[announcement.path].data.split()
            self._undecidable |= {(announcement.sink, int(file)) for file in files}

    def _retire(self, process: Process, number: int) -> None:
        if number in self._mistaken:
            self._mistaken.discard(number)
            return
        if number > self._newest - self._world.retain:
            self._fail("garbage", f"{process.name} retires checkpoint {number} of {self._newest}")
        self._manifests.pop(number, None)

    # -- the cluster ---------------------------------------------------------------------------------------------

    def accepted(self, process: Process, checkpoint: int, stage: int, attempts: Iterable[str]) -> None:
        """A stage's reports were taken. When the epoch is tried again, those of later stages count for nothing."""
        before = self._accepted[process.generation, checkpoint]
        kept = {number: taken for number, taken in before.items() if number < stage}
        self._accepted[process.generation, checkpoint] = {**kept, stage: frozenset(attempts)}

    def key_group(self, key: int) -> None:
        """Records and state of a key are with the subtask that owns its key group."""
        groups: Any = self._world.scheduler.current.tags["groups"]
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = group_of(key, self._world.records.hashes, self._world.max_parallelism)
        if not groups.lo <= group < groups.hi:
            self._fail("key group", f"key {key} of group {group} is with the subtask of {groups}")

    # -- the tables ----------------------------------------------------------------------------------------------

    def before_commit(
        self,
        process: Process,
        table: SimTable,
        permit: CommitPermit,
        committables: Sequence[Committable],
        leader_at: float,
    ) -> None:
        mine = table.ours
        if mine and permit.checkpoint <= mine[-1].checkpoint:
            self._fail("commits", f"{table.name}: {permit.checkpoint} after {mine[-1].checkpoint}")
        newer = self._claimed_at.get(process.generation + 1)
        if newer is not None and newer < leader_at:
            self._fail("fence", f"{process.name} commits {permit.checkpoint}, a newer driver came before it asked")
        committed = table.committed()
        for committable in committables:
            written = msgspec.json.decode(committable.payload, type=Written)
            if committable.payload not in self._published_payloads:
                self._fail("commits", f"file {written.file} is in no published checkpoint")
            if written.file in committed:
                self._fail("exactly once", f"{table.name}: file {written.file} is committed twice")

    def before_removal(self, table: SimTable, file: int) -> None:
        committed = table.committed()
        wanted = {
            msgspec.json.decode(c.payload, type=Written).file
            for manifest in self._manifests.values()
            for c in pending_of(manifest, table.sink)
        }
        if file in committed | wanted:
            self._fail("garbage", f"{table.name}: file {file} is removed, a snapshot or a checkpoint needs it")

    # -- queries -------------------------------------------------------------------------------------------------

    def query_error(self, error: PenstockError, generation: int, *, restored: bool, refused: bool) -> None:
        """A driver that was replaced has to say so, unless the store failed when it asked.

        `restored`: some driver went back to an older checkpoint. `refused`: this one wanted to, and did not start.
        """
        kind = type(error).__name__
        if self._world.others.explains(kind):
            return
        could_not_ask = max(self._claimed_at, default=0) > generation and self._world.faults.rates.store_may_fail
        if could_not_ask and kind in {"MissingFile", "SourceMismatch", "TablePositionMismatch"}:
            return
        if kind == "SubtaskHung" and self._world.hanging.limit_s is not None:
            return  # what was cancelled had hung: that was looked at
        if kind == "StageFailed" and CANCELLED in str(error):
            self._fail("errors", f"an attempt hung, and the query says {error}")
        if restored and kind in {"NoSuchCheckpoint", "TablePositionMismatch"}:
            return
        if refused and kind in TOO_LATE:
            return
        if refused and kind == "SourceMismatch":
            return
        if kind not in EXPECTED or "another streaming query" in str(error):
            self._fail("errors", f"the query ended with {error}")

    # -- the end -------------------------------------------------------------------------------------------------

    def nothing_left_over(self) -> None:
        """After a start and an end without faults, every file is one that a retained checkpoint names."""
        needed: set[str] = set().union(*(manifest.files() for manifest in self._manifests.values()))
        present = {path for path in self._world.disk.files if top_of(path) in DATA_FOLDERS}
        if present - needed:
            self._fail("garbage", f"kept for ever: {sorted(present - needed)[:5]}")
        if needed - present:
            self._fail("garbage", f"missing: {sorted(needed - present)[:5]}")
        signs = sorted(path for path in self._world.disk.files if top_of(path) == HUNG)
        if signs:
            self._fail("garbage", f"kept for ever: {signs[:5]}")
        self._no_table_files_left()
        if self._mistaken:
            self._fail("ids", f"takeovers under used names were not undone: {self._mistaken}")
        if len(self._manifests) > self._world.retain:
            self._fail("garbage", f"{len(self._manifests)} manifests, {self._world.retain} are wanted")

    def _no_table_files_left(self) -> None:
        """Every file in a table's folder is in a snapshot; see docs/guarantees.md for the kinds that are not."""
        announced = sorted(path for path in self._world.disk.files if top_of(path) == ATTEMPTS)
        if announced:
            self._fail("garbage", f"kept for ever: {announced[:5]}")
        for table in self._world.tables.values():
            committed = table.committed()
            for file in set(table.files) - committed - table.made_too_late - table.merged:
                if (table.sink, file) not in self._undecidable:
                    self._fail("garbage", f"{table.name}: file {file} is in no snapshot, and nothing will remove it")


def id_of(committable: Committable) -> bytes:
    return committable.payload


def pending_of(manifest: Manifest, only: str | None = None) -> list[Committable]:
    return [
        committable
        for name, sink in manifest.sinks.items()
        if only in {None, name}
        for pending in sink.pending
        for committable in pending.committables
    ]
