"""A world so small that everything that can happen in it can be tried: drivers that start, publish, commit, retire
checkpoints and crash, in every order, with the real decisions of `protocol`.

A driver's steps are the calls that others can see. What it knows between two of them may be out of date. How a driver
takes over the folder is decided by `protocol.takeover`, as in the engine; the steps `list` to `undo` carry that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import assert_never

import msgspec

from penstock.protocol import takeover
from penstock.protocol.commit import (
    Agreed,
    CommitReceipt,
    TableHistory,
    acknowledged,
    next_commit,
    reconcile,
    with_pending,
)
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.manifest import Committable, Manifest, PipelineShape, SinkState, SourcePosition
from penstock.protocol.recover import TakeBatch, first_manifest, judge_batch
from penstock.protocol.takeover import Claim, Ids, Look, Wish

SINK = "t"
SHAPE = PipelineShape(sources={}, operators={}, edges={}, sinks=(SINK,))


@dataclass(frozen=True)
class Rules:
    """What the drivers are careful about; a test takes one rule away and expects to see it."""

    batches: int = 3
    """Micro-batches, each of which becomes a checkpoint."""
    keep_takeovers: bool = True
    ask_before_commit: bool = True
    check_leader: bool = True
    exclusive_publish: bool = True
    verify_takeover: bool = True


@dataclass(frozen=True)
class Published:
    """One manifest: what of it matters here."""

    checkpoint: int
    generation: int
    identity: str
    batch: int | None
    sink: SinkState = field(hash=False)  # it holds a dict
    is_takeover: bool
    retired: bool = False
    """It is no checkpoint any more, but its name stays taken."""


@dataclass(frozen=True)
class Driver:
    """What one driver knows; `at` is its next step."""

    at: str = "list"
    restore: int | None = None
    """A checkpoint to go back to."""
    overtaken: int = 0
    ids: Ids = ()
    parent: Published | None = None
    takeover: Published | None = None
    """The driver's own takeover: to be published, to be confirmed or to be undone."""
    generation: int = 0
    manifest: Published | None = None
    sink: SinkState = field(default=SinkState(), hash=False)
    seen_snapshots: int = 0

    @property
    def over(self) -> bool:
        return self.at in {"crashed", "fenced", "finished", "refused", "gave up"}

    def ended(self, how: str) -> Driver:
        """What it knew does not matter any more: worlds that differ in nothing else are one."""
        return Driver(at=how, restore=self.restore, generation=self.generation)

    @property
    def wish(self) -> Wish:
        return Wish(SHAPE, {}, library="", restore=self.restore)


@dataclass(frozen=True)
class World:
    """Everything that is shared, and the drivers."""

    drivers: tuple[Driver, ...]
    generations: int = 0
    manifests: tuple[Published, ...] = ()
    table: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Snapshots: the checkpoint, and the micro-batches whose rows it added."""

    def at(self, checkpoint: int) -> Published | None:
        """Whoever has that name, retired or not."""
        return next((m for m in self.manifests if m.checkpoint == checkpoint), None)

    @property
    def checkpoints(self) -> tuple[Published, ...]:
        return tuple(m for m in self.manifests if not m.retired)

    @property
    def ids(self) -> Ids:
        return tuple(CheckpointId(m.checkpoint) for m in self.checkpoints)

    def look(self) -> Look:
        return Look(self.ids, _as_manifest(self.checkpoints[-1]) if self.checkpoints else None, at="")


def explore(world: World, rules: Rules) -> Iterator[World]:
    """Every world in which nothing can happen any more."""
    seen: set[World] = set()
    todo = [world]
    while todo:
        world = todo.pop()
        if world in seen:
            continue
        seen.add(world)
        following = [*successors(world, rules)]
        if not following:
            yield world
        todo += following


def successors(world: World, rules: Rules) -> Iterator[World]:
    """Each driver may take any of its next steps, or crash instead; the last one never does."""
    for number, driver in enumerate(world.drivers):
        if driver.over:
            continue
        if number < len(world.drivers) - 1:
            yield _with(world, number, driver.ended("crashed"))
        for step in _STEPS.get(driver.at, (_publish, _prepare, _retire)):
            yield from step(world, number, driver, rules)


Step = Callable[[World, int, Driver, Rules], Iterator[World]]


def _with(world: World, number: int, driver: Driver) -> World:
    drivers = (*world.drivers[:number], driver, *world.drivers[number + 1 :])
    return replace(world, drivers=drivers)


# -- starting: step by step, each decision by `protocol.takeover` ------------------------------------------------------


def _list(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    yield _with(world, number, replace(driver, at="read", ids=world.ids))


def _read(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """The checkpoint to go on from: the newest, the named one, or none yet."""
    del rules
    found = [m for m in world.checkpoints if driver.restore in (None, m.checkpoint)]
    if driver.restore is not None and not found:
        yield _with(world, number, driver.ended("refused"))
    else:
        yield _with(world, number, replace(driver, at="survey", parent=found[-1] if found else None))


def _survey(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """Asks the table before anything is claimed. It knows nothing of a query that is about to begin."""
    del rules
    if driver.parent is not None and not _agrees(world, driver.parent.sink, restored=driver.restore is not None):
        yield _with(world, number, replace(driver, at="reconsider"))
    else:
        yield _with(world, number, replace(driver, at="claim"))


def _reconsider(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    match takeover.reconsider(driver.wish, driver.ids, world.ids, driver.overtaken):
        case takeover.LookAgain():
            yield _with(world, number, _again(driver, at="list"))
        case takeover.GiveUp():
            yield _with(world, number, driver.ended("gave up"))
        case takeover.Expired() | takeover.Stands():
            yield _with(world, number, driver.ended("refused"))
        case decision:
            assert_never(decision)


def _claim(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    generation = world.generations + 1
    yield _with(replace(world, generations=generation), number, replace(driver, at="look", generation=generation))


def _look(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """Before its takeover and after it. What is decided is done in the next step."""
    del rules
    parent = _as_manifest(driver.parent) if driver.parent is not None else _empty(f"query {number}")
    claim = Claim(driver.wish, Generation(driver.generation), driver.ids, parent, parent.sinks)
    mine = None if driver.takeover is None else _as_manifest(driver.takeover)
    match takeover.decide(claim, world.look(), mine, driver.overtaken):
        case takeover.Publish(made):
            yield _with(world, number, replace(driver, at="take over", takeover=_as_published(made)))
        case takeover.Done():
            yield _with(world, number, _began(driver))
        case takeover.Undo():
            yield _with(world, number, replace(driver, at="undo"))
        case takeover.LookAgain():
            yield _with(world, number, _again(driver, at="list"))
        case takeover.Replaced() | takeover.Unfollowable():
            yield _with(world, number, driver.ended("fenced"))
        case takeover.GiveUp():
            yield _with(world, number, driver.ended("gave up"))
        case decision:
            assert_never(decision)


def _take_over(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    made = driver.takeover
    assert made is not None
    if world.at(made.checkpoint) is not None and rules.exclusive_publish:
        yield _with(world, number, _again(driver, at="look"))
    elif rules.verify_takeover:
        yield _with(_added(world, made), number, replace(driver, at="look"))
    else:
        yield _with(_added(world, made), number, _began(driver))


def _undo(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    assert driver.takeover is not None
    kept = tuple(m for m in world.manifests if m.checkpoint != driver.takeover.checkpoint)
    yield _with(replace(world, manifests=kept), number, _again(driver, at="look"))


def _again(driver: Driver, at: str) -> Driver:
    return replace(driver, at=at, takeover=None, overtaken=driver.overtaken + 1)


def _began(driver: Driver) -> Driver:
    assert driver.takeover is not None
    made = driver.takeover
    return replace(driver, at="ask", manifest=made, sink=made.sink, ids=(), parent=None, takeover=None)


# -- running: epochs, commits and the collector beside each other ------------------------------------------------------


def _ask(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    if not rules.ask_before_commit:
        yield _with(world, number, replace(driver, at="run", seen_snapshots=len(world.table)))
        return
    match _told(world, driver.sink):
        case Agreed(landed):
            sink = driver.sink
            for commit in landed:
                sink = acknowledged(sink, commit.receipt)
            yield _with(world, number, replace(driver, at="run", sink=sink, seen_snapshots=len(world.table)))
        case _:
            # Only a driver that was replaced may meet a table that went on without it.
            replaced = world.generations > driver.generation
            yield _with(world, number, driver.ended("fenced" if replaced else "refused"))


def _publish(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """One epoch with the next micro-batch; its rows are handed over as one committable."""
    manifest = driver.manifest
    assert manifest is not None
    batch = BatchId(0 if manifest.batch is None else manifest.batch + 1)
    if batch >= rules.batches:
        if driver.at == "run" and not driver.sink.pending:
            yield _with(world, number, driver.ended("finished"))
        return
    assert judge_batch(_as_manifest(manifest), batch, None, None) == TakeBatch()
    checkpoint = CheckpointId(manifest.checkpoint + 1)
    committables = rows(driver.generation, batch)
    new = Published(
        checkpoint,
        driver.generation,
        manifest.identity,
        int(batch),
        with_pending(driver.sink, checkpoint, committables),
        is_takeover=False,
    )
    if world.at(checkpoint) is not None and rules.exclusive_publish:
        yield _with(world, number, driver.ended("fenced"))
        return
    after = replace(driver, manifest=new, sink=with_pending(driver.sink, checkpoint, committables))
    yield _with(_added(world, new), number, after)


def _prepare(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """Looks at table and leadership; publishing the snapshot comes later."""
    if not driver.sink.pending:
        return
    if rules.check_leader and world.generations > driver.generation:
        yield _with(world, number, driver.ended("fenced"))
    elif len(world.table) != driver.seen_snapshots:
        yield _with(world, number, replace(driver, at="ask"))
    else:
        yield _with(world, number, replace(driver, at="commit"))


def _commit(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """The snapshot becomes visible if nobody published one since the look; its answer may be lost."""
    if len(world.table) != driver.seen_snapshots and rules.ask_before_commit:
        yield _with(world, number, replace(driver, at="ask"))
        return
    batch = next_commit(driver.sink, Generation(driver.generation))
    assert batch is not None
    rows = tuple(int(c.payload.decode().partition(":")[2]) for c in batch.committables)
    committed = replace(world, table=(*world.table, (int(batch.permit.checkpoint), rows)))
    receipt = CommitReceipt(batch.permit.checkpoint, len(committed.table), len(rows), len(rows))
    known = replace(driver, at="run", sink=acknowledged(driver.sink, receipt), seen_snapshots=len(committed.table))
    yield _with(committed, number, known)
    if rules.ask_before_commit:
        yield _with(committed, number, replace(driver, at="ask"))


def _retire(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """Keeps the driver's newest checkpoint only; the names of takeovers stay taken."""
    assert driver.manifest is not None
    newest = driver.manifest.checkpoint
    if any(m.checkpoint < newest for m in world.checkpoints):
        kept = tuple(
            replace(m, retired=m.retired or m.checkpoint < newest)
            for m in world.manifests
            if m.checkpoint >= newest or (m.is_takeover and rules.keep_takeovers)
        )
        yield _with(replace(world, manifests=kept), number, driver)


_STEPS: dict[str, tuple[Step, ...]] = {
    "list": (_list,),
    "read": (_read,),
    "survey": (_survey,),
    "reconsider": (_reconsider,),
    "claim": (_claim,),
    "look": (_look,),
    "take over": (_take_over,),
    "undo": (_undo,),
    "ask": (_ask,),
    "commit": (_commit, _publish),
}


def rows(generation: int, batch: int) -> tuple[Committable, ...]:
    """What a driver has to commit of one micro-batch."""
    return (Committable(f"{generation}:{batch}".encode(), 1, 1),)


def _added(world: World, new: Published) -> World:
    others = tuple(m for m in world.manifests if m.checkpoint != new.checkpoint)
    return replace(world, manifests=tuple(sorted((*others, new), key=lambda m: m.checkpoint)))


def _agrees(world: World, sink: SinkState, *, restored: bool) -> bool:
    return isinstance(_told(world, sink, restored=restored), Agreed)


def _told(world: World, sink: SinkState, *, restored: bool = False) -> object:
    receipts = tuple(
        CommitReceipt(CheckpointId(checkpoint), number, len(rows), 1)
        for number, (checkpoint, rows) in enumerate(world.table, 1)
    )
    return reconcile(sink, TableHistory(receipts[-max(1, len(sink.pending)) :]), restored=restored)


@cache
def _empty(identity: str) -> Manifest:
    return first_manifest(identity=identity, library="", max_parallelism=1, shape=SHAPE, created_at="")


def _as_manifest(published: Published) -> Manifest:
    return msgspec.structs.replace(
        _empty(published.identity),
        checkpoint=published.checkpoint,
        generation=published.generation,
        source=SourcePosition(batch_id=published.batch),
        sinks={SINK: published.sink},
    )


def _as_published(made: Manifest) -> Published:
    return Published(
        made.checkpoint, made.generation, made.identity, made.source.batch_id, made.sinks[SINK], is_takeover=True
    )


def wrong(world: World, rules: Rules) -> str | None:
    """What is wrong with a world in which nothing can happen any more."""
    rows = [row for _, added in world.table for row in added]
    checkpoints = [checkpoint for checkpoint, _ in world.table]
    if len(rows) != len(set(rows)):
        return f"rows twice: {world.table}"
    if checkpoints != sorted(set(checkpoints)):
        return f"checkpoints out of order: {world.table}"
    # A driver that goes back on purpose may find that the table is ahead, or that its checkpoint was retired.
    if any(driver.at == "refused" and driver.restore is None for driver in world.drivers):
        return f"table and checkpoint disagree: {world.table}"
    last = world.drivers[-1]
    newest = max(driver.generation for driver in world.drivers)
    if last.at == "finished" and rows != list(range(rules.batches)):
        return f"the last driver finished with {world.table}"
    if last.generation == newest and last.at != "finished" and not (last.at == "refused" and last.restore is not None):
        return f"the newest driver ended {last.at}"
    return None
