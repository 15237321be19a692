"""A world of drivers that commit to tables, run from one seed: crashes, pauses, rivals, lost answers, other engines.

Checkpoints, generations, decisions, committers and listeners are the real ones. Only epochs are made up (each publishes
a batch of rows per sink), and nothing runs in a thread: the world makes every step, so a seed says everything. A driver
is paused by running others inside one of its calls, at a point where a real one could be paused. At the same points
other engines commit to the tables, expire, compact and tag snapshots, and roll tables back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from penstock.engine.agreement import agree
from penstock.engine.attempts import AttemptFiles
from penstock.engine.checkpoints import Checkpoints, Driver
from penstock.engine.commitevents import CommitEvents
from penstock.engine.commits import CommitCoordinator, SinkCommits
from penstock.engine.startpoint import StartPoint
from penstock.engine.takeover import Survey, take_over
from penstock.errors import Fenced, PenstockError, TablePositionMismatch
from penstock.observe.events import CommitRetried, Committed
from penstock.protocol.commit import with_pending
from penstock.protocol.ids import NO_GENERATION, BatchId, CheckpointId, Generation
from penstock.protocol.layout import Announcement, AttemptId
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SinkState, SourcePosition
from penstock.protocol.recover import first_manifest
from penstock.protocol.takeover import Wish
from penstock.sinks.base import Committer, Sink, WriterContext
from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from penstock.testing.sinks.parts import Crash, Faulty, Instance, Listed, Others, Steps

SCHEMA = pa.schema([("id", pa.int64())])
PAUSES_DEEP_MAX = 2


def plain_rows(ids: Sequence[int]) -> pa.RecordBatch:
    """Rows of one column."""
    return pa.record_batch([pa.array(ids, pa.int64())], schema=SCHEMA)


class Claimed(Checkpoints):
    """A driver may crash or be paused when it has claimed its generation."""

    def __init__(self, store: Store, world: World) -> None:
        super().__init__(store)
        self._world = world

    def claim_generation(self, driver: Driver, above: Generation = NO_GENERATION) -> Generation:
        generation = super().claim_generation(driver, above)
        self._world.point("after the claim", answers=False)
        return generation


@dataclass
class World:
    """Everything that survives a crash, and the drivers that are alive."""

    seed: int
    sinks: dict[str, Sink]
    faults: bool = True
    clock_s: float = 0.0
    events: list[str] = field(default_factory=list)
    log: list[Committed] = field(default_factory=list)
    instances: list[Instance] = field(default_factory=list)
    running: list[Instance] = field(default_factory=list)
    fenced: dict[str, Generation] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    written: dict[str, tuple[Generation, CheckpointId]] = field(default_factory=dict)
    """Table files by the attempt that made them."""
    published_by: dict[CheckpointId, Generation] = field(default_factory=dict)
    files: dict[tuple[str, Generation, CheckpointId], set[str]] = field(default_factory=dict)
    """Table files of the last attempt at a checkpoint."""
    won: set[str] = field(default_factory=set)
    """Table files of attempts that counted."""
    others: dict[str, Others] = field(default_factory=dict)
    others_act: bool = False
    paused: int = 0
    """Drivers that are paused now, those that are about to start included: a world must come to its end."""
    rolled_back: bool = False
    """Whether another engine took commits of ours out of a table."""
    refused: TablePositionMismatch | None = None
    """A restart was refused: the story ends, nothing may be doubled."""
    rows: Callable[[Sequence[int]], pa.RecordBatch] = plain_rows
    """Rows with these ids, as the sinks get them."""
    probe: bool = False
    """Faults also where a committer asks whether its driver still leads."""

    def __post_init__(self) -> None:
        self.choose = random.Random(self.seed)
        self.checkpoints = Claimed(MemoryStore(), self)
        shape = PipelineShape(sources={}, operators={}, edges={}, sinks=tuple(self.sinks))
        self.empty = first_manifest(
            identity=f"world{self.seed}", library="0", max_parallelism=8, shape=shape, created_at=""
        )

    # -- faults ----------------------------------------------------------------------------------------------------

    def point(self, where: str, *, answers: bool = True, pauses: bool = True) -> None:
        """A point at which a driver may crash, be paused, or, where a call `answers`, get no answer."""
        if not self.faults or self.others_act:
            return
        self.disturb()
        weights = (82, 8 if answers else 0, 3, 7 if pauses else 0)
        match self.choose.choices(("go on", "fail", "crash", "pause"), weights)[0]:
            case "fail":
                self.note(f"failure at {where}")
                raise TimeoutError(f"no answer at {where}")
            case "crash":
                self.note(f"crash at {where}")
                raise Crash
            case "pause" if self.paused <= PAUSES_DEEP_MAX:
                self._pause(where)
            case _:
                pass

    def disturb(self) -> None:
        """Other engines may do something to a table now."""
        if self.others and self.choose.random() < 0.04:
            name = self.choose.choice(sorted(self.others))
            self.others_act = True
            try:
                self.note(f"{name}: {self.others[name].act(self.choose)}")
            finally:
                self.others_act = False

    def lose(self) -> None:
        """Another engine takes commits of ours out of a table."""
        self.rolled_back = True

    def _pause(self, where: str) -> None:
        self.note(f"pause at {where}")
        self.paused += 1
        try:
            if self.choose.random() < 0.5:
                self.start()  # what people do with a driver that hangs
            for _ in range(self.choose.randint(1, 6)):
                self.act()
        finally:
            self.paused -= 1
        self.note(f"resume at {where}")
        if self.running and self.running[-1].crashed:
            raise Crash

    def visible(self, name: str) -> None:
        """A snapshot appeared: an older driver must not have made it once a newer one has closed the door."""
        if self.others_act:
            return
        by = self.running[-1].generation if self.running else self.fenced[name]
        if by < self.fenced[name]:
            self.late.append(f"generation {by} committed to {name} after {self.fenced[name]} took over")

    def note(self, what: str) -> None:
        self.events.append(what)

    @contextmanager
    def _living(self, instance: Instance, part: str) -> Iterator[None]:
        """A crash or the error of a fenced driver ends the driver; any other error ends the world."""
        instance.busy.add(part)
        self.running.append(instance)
        try:
            yield
        except Crash:
            instance.dead = instance.crashed = True
        except Fenced as error:
            self.note(f"generation {instance.generation} is fenced: {error.seen}")
            instance.dead = True
        finally:
            self.running.pop()
            instance.busy.discard(part)

    # -- drivers ---------------------------------------------------------------------------------------------------

    def start(self) -> Instance | None:
        """What a driver does first, in the order of `start_query`; None when it did not get that far."""
        try:
            owned = take_over(self.checkpoints, Wish(self.empty.shape, {}, library="0"), self._survey)
            self.point("after the takeover", answers=False)
            instance = self._instance(owned.generation, owned.manifest, owned.committers)
        except (Crash, TimeoutError, Fenced):
            return None
        except TablePositionMismatch as error:
            if not self.others:
                raise
            self.note(f"refused: {error.seen}")
            return self._start_in_peace(error)
        self.note(f"generation {owned.generation} starts from checkpoint {owned.manifest.checkpoint}")
        self.instances.append(instance)
        return instance

    def _start_in_peace(self, error: TablePositionMismatch) -> Instance | None:
        """A table that changed in the middle of a start is no reason to refuse the next one."""
        if not self.faults:
            self.refused = error
            return None
        self.faults = False
        try:
            return self.start()
        finally:
            self.faults = True

    def _survey(self) -> Survey:
        parent = self.checkpoints.newest() or self.empty
        committers: dict[str, Committer] = {
            name: Faulty(sink.open_committer(f"{parent.identity}-{name}"), self) for name, sink in self.sinks.items()
        }
        told = {name: agree(name, parent.sinks[name], committer).sink for name, committer in committers.items()}
        return Survey(StartPoint(parent), committers, told)

    def _instance(self, generation: Generation, manifest: Manifest, committers: dict[str, Committer]) -> Instance:
        def committed(event: Committed) -> None:
            self.point("before the log", answers=False)
            self.log.append(event)
            self.point("after the log", answers=False)

        def retried(event: CommitRetried) -> None:
            self.note(f"{event.sink} tries again: {event.message}")

        def fail(error: PenstockError) -> None:
            raise error

        sinks = {}
        for name, committer in committers.items():
            committer.fence(generation)
            self.fenced[name] = max(generation, self.fenced.get(name, generation))
            try:
                standing = agree(name, manifest.sinks[name], committer)
            except PenstockError:
                self.checkpoints.require_leader(generation)
                raise
            sinks[name] = SinkCommits(
                name,
                standing,
                committer,
                generation=generation,
                still_leader=lambda: not self.checkpoints.superseded(generation),
                events=CommitEvents(committed, retried, fail),
                spawn=Steps,
                listeners=(Listed(self),),
                attempts=AttemptFiles(
                    self.checkpoints.store,
                    name,
                    generation=generation,
                    taken_over=CheckpointId(manifest.checkpoint),
                    owners=self.checkpoints.owners(),
                ),
                clock=lambda: self.clock_s,
                wall_ms=lambda: int(self.clock_s * 1000),
            )
        return Instance(generation, manifest, sinks, CommitCoordinator(sinks))

    # -- actions ---------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """One action of some driver, or a new driver."""
        alive = [instance for instance in self.instances if not instance.dead]
        if not alive or self.choose.random() < 0.06:
            self.start()
            return
        # Mostly the newest; the others are zombies that do not know it.
        instance = alive[-1] if self.choose.random() < 0.8 else self.choose.choice(alive)
        free = sorted({"epochs", *instance.sinks} - instance.busy)
        part = self.choose.choice(free) if free else None
        if part == "epochs" and instance.coordinator.uncommitted() < 4:
            with self._living(instance, part):
                self.epoch(instance)
        elif part is not None and part != "epochs":
            with self._living(instance, part):
                self.step(instance, part)

    def step(self, instance: Instance, name: str) -> None:
        self.clock_s += 1.0
        try:
            instance.sinks[name].step()
        except Fenced:
            raise
        except PenstockError as error:
            # Given up after too many tries: the query stops; a restart goes on from the checkpoint.
            self.note(f"generation {instance.generation} stops: {error.code} {error.seen}")
            if error.code not in {"PEN-043", "PEN-044", *(["PEN-042"] if self.others else [])}:
                raise
            instance.dead = True

    def epoch(self, instance: Instance) -> None:
        """Publishes the next batch, as the winning attempts wrote it; losers leave files."""
        checkpoint = CheckpointId(instance.manifest.checkpoint + 1)
        last = instance.manifest.source.batch_id
        batch = 0 if last is None else last + 1
        winners: set[str] = set()
        pending: dict[str, tuple[Committable, ...]] = {}
        for name in self.sinks:
            if self.choose.random() < 0.15:
                self._attempt(instance, name, batch, checkpoint)  # killed, or slower than its twin
            if (batch + len(name)) % 4:  # a sink that gets no rows in this epoch has nothing to commit
                attempt, pending[name] = self._attempt(instance, name, batch, checkpoint)
                winners.add(attempt)
        try:
            self.point("before publish")
        except TimeoutError:
            return  # the epoch failed; the next one has the same id and other attempts
        states = instance.coordinator.states()
        self.point("between states and publish", answers=False)
        manifest = msgspec.structs.replace(
            instance.manifest,
            checkpoint=int(checkpoint),
            parent=instance.manifest.checkpoint,
            source=SourcePosition(batch_id=BatchId(batch)),
            sinks={
                name: with_pending(state, checkpoint, pending.get(name, ()), watermark=batch * 1000)
                for name, state in states.items()
            },
        )
        self.checkpoints.publish(manifest)
        self.published_by[checkpoint] = instance.generation
        self.won |= {file for name in pending for file in self.files[name, instance.generation, checkpoint]}
        instance.manifest = manifest
        self.note(f"generation {instance.generation} publishes checkpoint {checkpoint} with batch {batch}")
        self.point("after publish", answers=False)
        instance.coordinator.published(manifest, frozenset(winners))

    def _attempt(
        self, instance: Instance, name: str, batch: int, checkpoint: CheckpointId
    ) -> tuple[str, tuple[Committable, ...]]:
        instance.attempts += 1
        attempt = f"{instance.attempts}"
        path = Announcement(name, AttemptId(checkpoint, instance.generation, 0, attempt)).path

        made: set[str] = set()
        self.files[name, instance.generation, checkpoint] = made

        def announce(file: str) -> None:
            self.checkpoints.store.append(path, file.encode())
            self.written[file.rpartition("/")[2]] = (instance.generation, checkpoint)
            made.add(file.rpartition("/")[2])

        context = WriterContext(checkpoint, instance.generation, 0, 1, attempt, announce)
        rows = self.rows(ids_of(batch))
        writer = self.sinks[name].open_writer(context, rows.schema)
        writer.write(rows)
        return attempt, tuple(writer.prepare())

    # -- a whole run -----------------------------------------------------------------------------------------------

    def run(self, actions: int) -> None:
        """Faults for a while, then none: the last driver must finish everything."""
        for _ in range(actions):
            self.disturb()
            self.act()
            if self.refused is not None:
                return
        self.faults = False
        zombies = [instance for instance in self.instances if not instance.dead]
        instance = self.start()
        if self.refused is not None:
            return
        assert instance is not None
        for zombie in zombies:
            for name in sorted(zombie.sinks):
                with self._living(zombie, name):
                    self.step(zombie, name)
        self.epoch(instance)
        for commits in instance.sinks.values():
            while commits.step() not in {None, float("inf")}:
                self.clock_s += 1.0

    def states(self) -> dict[str, SinkState]:
        """Where the last driver stands."""
        return self.instances[-1].coordinator.states()

    def check(self, ids_in: Callable[[Sink], Counter[int]]) -> None:
        """Each published batch is in its tables once; log and listeners know each checkpoint once."""
        assert self.late == []
        newest = self.checkpoints.newest()
        if self.refused is not None or self.rolled_back:
            for name, sink in self.sinks.items():
                doubled = {number: count for number, count in ids_in(sink).items() if count > 1}
                assert doubled == {}, f"{name}: doubled {doubled}"
            return
        assert newest is not None
        (instance,) = self.instances[-1:]
        batches = range((newest.source.batch_id or 0) + 1)
        for name, sink in self.sinks.items():
            state = instance.sinks[name].state
            assert state.pending == (), f"{name}: {state.pending} was never committed"
            wanted = Counter(number for batch in batches if (batch + len(name)) % 4 for number in ids_of(batch))
            assert ids_in(sink) == wanted, f"{name}: lost {wanted - ids_in(sink)}, doubled {ids_in(sink) - wanted}"
            told = told_of(state)
            assert told == sorted(told), f"{name}: listeners were told out of order: {told}"
            logged = {(event.first, event.last): event.rows for event in self.log if event.sink == name}
            assert set(told) <= set(logged), f"{name}: told {told}, logged {logged}"
            assert sum(logged[commit] for commit in told) == wanted.total(), f"{name}: rows of {told} in {logged}"

    def must_be_gone(self, file: str) -> bool:
        """Whether a file that no table lists should have been removed.

        Only those stay that a driver which died had no time to judge: of its attempts at a checkpoint that it did
        publish, others cannot tell losers from winners.
        """
        if file not in self.written or file in self.won:
            return False  # another engine's, or one whose rows were rewritten
        generation, checkpoint = self.written[file]
        return generation == self.instances[-1].generation or self.published_by.get(checkpoint) != generation


def told_of(state: SinkState) -> list[tuple[CheckpointId, CheckpointId]]:
    """The commits that the listener was told of: first and last checkpoint of each."""
    parts = [part.split("-") for part in state.listeners["listed"].decode().split(";")[:-1]]
    return [(CheckpointId(int(first)), CheckpointId(int(last))) for first, last in parts]


def ids_of(batch: int) -> list[int]:
    return [3 * batch, 3 * batch + 1, 3 * batch + 2]
