"""A world so small that everything that can happen in it can be tried: drivers that start, publish, commit, retire
checkpoints and crash, in every order, with the real decisions of `protocol`.

A driver's steps are the calls that others can see. What it knows between two of them may be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import msgspec

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
from penstock.protocol.recover import TakeBatch, first_manifest, judge_batch, takeover

SINK = "t"


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
    batch: int | None
    sink: SinkState
    is_takeover: bool


@dataclass(frozen=True)
class Driver:
    """What one driver knows; `at` is its next step."""

    at: str = "claim"
    generation: int = 0
    manifest: Published | None = None
    sink: SinkState = SinkState()  # noqa: RUF009 - immutable
    seen_snapshots: int = 0
    crashed: bool = False

    @property
    def over(self) -> bool:
        return self.crashed or self.at in {"fenced", "finished", "refused"}


@dataclass(frozen=True)
class World:
    """Everything that is shared, and the drivers."""

    drivers: tuple[Driver, ...]
    generations: int = 0
    manifests: tuple[Published, ...] = ()
    table: tuple[tuple[int, tuple[int, ...]], ...] = ()
    """Snapshots: the checkpoint, and the micro-batches whose rows it added."""

    def at(self, checkpoint: int) -> Published | None:
        return next((m for m in self.manifests if m.checkpoint == checkpoint), None)


def explore(world: World, rules: Rules) -> Iterator[World]:
    """Every world in which nothing can happen any more."""
    seen: set[str] = set()
    todo = [world]
    while todo:
        world = todo.pop()
        if (written := repr(world)) in seen:
            continue
        seen.add(written)
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
            yield _with(world, number, replace(driver, crashed=True))
        for step in _steps(driver):
            yield from step(world, number, driver, rules)


Step = Callable[[World, int, Driver, Rules], Iterator[World]]


def _steps(driver: Driver) -> tuple[Step, ...]:
    """Starting goes step by step; then epochs, commits and the collector run beside each other."""
    match driver.at:
        case "claim":
            return (_claim,)
        case "read":
            return (_read,)
        case "take over":
            return (_take_over,)
        case "verify":
            return (_verify,)
        case "ask":
            return (_ask,)
        case "commit":
            return (_commit, _publish)
        case _:
            return (_publish, _prepare, _retire)


def _with(world: World, number: int, driver: Driver) -> World:
    drivers = (*world.drivers[:number], driver, *world.drivers[number + 1 :])
    return replace(world, drivers=drivers)


def _claim(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    generation = world.generations + 1
    yield _with(replace(world, generations=generation), number, replace(driver, at="read", generation=generation))


def _read(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    del rules
    newest = max(world.manifests, key=lambda m: m.checkpoint, default=None)
    if newest is not None and newest.generation > driver.generation:
        yield _with(world, number, replace(driver, at="fenced"))
    else:
        yield _with(world, number, replace(driver, at="take over", manifest=newest))


def _take_over(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    base = driver.manifest
    made = takeover(
        _as_manifest(base),
        newest=CheckpointId(0 if base is None else base.checkpoint),
        generation=Generation(driver.generation),
        shape=_empty().shape,
        parallelism={},
        library="",
        created_at="",
    )
    new = Published(made.checkpoint, made.generation, made.source.batch_id, made.sinks[SINK], is_takeover=True)
    if world.at(new.checkpoint) is not None and rules.exclusive_publish:
        yield _with(world, number, replace(driver, at="read"))
        return
    following = "verify" if rules.verify_takeover else "ask"
    yield _with(_added(world, new), number, replace(driver, at=following, manifest=new, sink=new.sink))


def _verify(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """The name may have been free only because retention freed it: then newer checkpoints of an older driver exist."""
    del rules
    newest = world.manifests[-1]
    if newest == driver.manifest:
        yield _with(world, number, replace(driver, at="ask"))
    elif newest.generation < driver.generation:
        kept = tuple(m for m in world.manifests if m != driver.manifest)
        yield _with(replace(world, manifests=kept), number, replace(driver, at="read"))
    else:
        yield _with(world, number, replace(driver, at="fenced"))


def _ask(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    if not rules.ask_before_commit:
        yield _with(world, number, replace(driver, at="run", seen_snapshots=len(world.table)))
        return
    match reconcile(driver.sink, TableHistory(_receipts(world)[-max(1, len(driver.sink.pending)) :])):
        case Agreed(landed):
            sink = driver.sink
            for commit in landed:
                sink = acknowledged(sink, commit.receipt)
            yield _with(world, number, replace(driver, at="run", sink=sink, seen_snapshots=len(world.table)))
        case _:
            # Only a driver that was replaced may meet a table that went on without it.
            replaced = world.generations > driver.generation
            yield _with(world, number, replace(driver, at="fenced" if replaced else "refused"))


def _publish(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """One epoch with the next micro-batch; its rows are handed over as one committable."""
    manifest = driver.manifest
    assert manifest is not None
    batch = BatchId(0 if manifest.batch is None else manifest.batch + 1)
    if batch >= rules.batches:
        if driver.at == "run" and not driver.sink.pending:
            yield _with(world, number, replace(driver, at="finished"))
        return
    assert judge_batch(_as_manifest(manifest), batch, None, None) == TakeBatch()
    checkpoint = CheckpointId(manifest.checkpoint + 1)
    committables = (Committable(f"{driver.generation}:{batch}".encode(), 1, 1),)
    new = Published(
        checkpoint,
        driver.generation,
        int(batch),
        with_pending(driver.sink, checkpoint, committables),
        is_takeover=False,
    )
    if world.at(checkpoint) is not None and rules.exclusive_publish:
        yield _with(world, number, replace(driver, at="fenced"))
        return
    after = replace(driver, manifest=new, sink=with_pending(driver.sink, checkpoint, committables))
    yield _with(_added(world, new), number, after)


def _prepare(world: World, number: int, driver: Driver, rules: Rules) -> Iterator[World]:
    """Looks at table and leadership; publishing the snapshot comes later."""
    if not driver.sink.pending:
        return
    if rules.check_leader and world.generations > driver.generation:
        yield _with(world, number, replace(driver, at="fenced"))
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
    old = [m for m in world.manifests if m.checkpoint < newest and not (m.is_takeover and rules.keep_takeovers)]
    if old:
        kept = tuple(m for m in world.manifests if m not in old)
        yield _with(replace(world, manifests=kept), number, driver)


def _added(world: World, new: Published) -> World:
    others = tuple(m for m in world.manifests if m.checkpoint != new.checkpoint)
    return replace(world, manifests=tuple(sorted((*others, new), key=lambda m: m.checkpoint)))


def _receipts(world: World) -> tuple[CommitReceipt, ...]:
    return tuple(
        CommitReceipt(CheckpointId(checkpoint), number, len(rows), 1)
        for number, (checkpoint, rows) in enumerate(world.table, 1)
    )


@cache
def _empty() -> Manifest:
    shape = PipelineShape(sources={}, operators={}, edges={}, sinks=(SINK,))
    return first_manifest(identity="i", library="", max_parallelism=1, shape=shape, created_at="")


def _as_manifest(published: Published | None) -> Manifest:
    if published is None:
        return _empty()
    return msgspec.structs.replace(
        _empty(),
        checkpoint=published.checkpoint,
        generation=published.generation,
        source=SourcePosition(batch_id=published.batch),
        sinks={SINK: published.sink},
    )


def wrong(world: World, rules: Rules) -> str | None:
    """What is wrong with a world in which nothing can happen any more."""
    rows = [row for _, added in world.table for row in added]
    checkpoints = [checkpoint for checkpoint, _ in world.table]
    if len(rows) != len(set(rows)):
        return f"rows twice: {world.table}"
    if checkpoints != sorted(set(checkpoints)):
        return f"checkpoints out of order: {world.table}"
    if any(driver.at == "refused" for driver in world.drivers):
        return f"table and checkpoint disagree: {world.table}"
    last = world.drivers[-1]
    newest = max(driver.generation for driver in world.drivers)
    if last.at == "finished" and rows != list(range(rules.batches)):
        return f"the last driver finished with {world.table}"
    if last.generation == newest and last.at != "finished":
        return f"the newest driver ended {last.at}"
    return None
