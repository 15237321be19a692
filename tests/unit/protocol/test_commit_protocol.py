"""The commit decisions in every small world: all orders of publishing, committing, losing answers, crashing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from penstock.protocol import commit as protocol
from penstock.protocol.attempts import REMEMBERED, judge_attempts, remembered
from penstock.protocol.commit import (
    Agreed,
    Ask,
    CommitBatch,
    CommitReceipt,
    Rest,
    SinkStanding,
    TableAhead,
    TableBehind,
    TableHistory,
    Tell,
    next_action,
    pause_s,
    reconcile,
    with_pending,
)
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.layout import Announcement, AttemptId
from penstock.protocol.manifest import Committable, PendingCommit, SinkState

WORK = (Committable(b"x", 1, 1),)
CHECKPOINTS_MAX = 3
ONE = Generation(1)


@dataclass(frozen=True)
class Small:
    """A driver, the newest manifest, and the table: per snapshot of ours the checkpoints in it."""

    driver: SinkStanding
    manifest: SinkState
    checkpoint: int
    table: tuple[tuple[int, ...], ...] = ()
    zombie: SinkStanding | None = None

    def receipts(self) -> list[CommitReceipt]:
        found = enumerate(self.table, 1)
        return [CommitReceipt(CheckpointId(part[-1]), number, len(part), len(part)) for number, part in found]

    def history(self) -> TableHistory:
        return TableHistory(tuple(self.receipts()), len(self.table))


def commit(world: Small, batch: CommitBatch, base: SinkState) -> Small:
    """What a table does: nothing twice, and nothing on top of a commit that the committer did not know."""
    newest = world.table[-1][-1] if world.table else None
    if newest is not None and newest >= batch.permit.checkpoint:
        return world
    assert newest == base.committed or newest in {p.checkpoint for p in base.pending} or newest is None
    if newest != base.committed:
        return world  # refused: choose anew
    return replace(world, table=(*world.table, tuple(pending.checkpoint for pending in batch.pending)))


def listened(state: bytes, batch: tuple[PendingCommit, ...]) -> bytes:
    return state + bytes(pending.checkpoint for pending in batch)


def publish(world: Small, *, rows: bool) -> Small:
    checkpoint = CheckpointId(world.checkpoint + 1)
    manifest = with_pending(world.driver.sink, checkpoint, WORK if rows else (), watermark=checkpoint * 10)
    return replace(
        world,
        checkpoint=checkpoint,
        manifest=manifest,
        driver=protocol.published(world.driver, checkpoint, manifest),
    )


def restart(world: Small) -> Small:
    """A new driver: from the newest manifest and what the table says; the old one may live on."""
    decision = reconcile(world.manifest, world.history())
    assert isinstance(decision, Agreed), f"{decision} in {world}"
    return replace(world, driver=SinkStanding(world.manifest, landed=decision.landed), zombie=world.driver)


def moves(world: Small) -> Iterator[Small]:
    """Everything that can happen next."""
    if world.checkpoint < CHECKPOINTS_MAX:
        yield publish(world, rows=True)
        yield publish(world, rows=False)
    yield restart(world)
    driver = replace(world.driver, retry_at_s=0.0, failures=min(world.driver.failures, 1))
    match next_action(driver, ONE, 1.0):
        case Tell(landed):
            state = listened(driver.sink.listeners.get("l", b""), landed.pending)
            yield replace(world, driver=protocol.told(driver, {"l": state}))
            yield replace(world, driver=protocol.failed(driver, 0.0))
        case Ask():
            decision = reconcile(driver.sink, world.history())
            assert isinstance(decision, Agreed), f"{decision} in {world}"
            yield replace(world, driver=protocol.answered(driver, decision))
            yield replace(world, driver=protocol.in_doubt(driver, 0.0))
        case CommitBatch() as batch:
            after = commit(world, batch, driver.sink)
            if after.table and after.table[-1][-1] >= batch.permit.checkpoint:
                receipt = after.receipts()[-1]
                yield replace(after, driver=protocol.committed(driver, batch, receipt))
            yield replace(after, driver=protocol.in_doubt(driver, 0.0))
            yield replace(world, driver=protocol.in_doubt(driver, 0.0))
        case Rest():
            pass
    # The zombie was paused right before its snapshot became visible.
    if world.zombie is not None:
        match next_action(replace(world.zombie, failures=0), ONE, 1.0):
            case CommitBatch() as batch:
                yield replace(commit(world, batch, world.zombie.sink), zombie=None)
            case _:
                yield replace(world, zombie=None)


def check(world: Small) -> None:
    """Holds at every moment, whatever happened before."""
    committed = [checkpoint for part in world.table for checkpoint in part]
    assert committed == sorted(set(committed)), f"doubled or out of order: {world}"
    for sink in (world.manifest, world.driver.sink):
        told = list(sink.listeners.get("l", b""))
        assert told == [c for c in committed if sink.committed is not None and c <= sink.committed]
        assert [p.checkpoint for p in sink.pending] == sorted({p.checkpoint for p in sink.pending})
        marks = [pending.watermark for pending in sink.pending]
        assert marks == sorted(mark for mark in marks if mark is not None)


def finish(world: Small, published: frozenset[int]) -> None:
    """Without faults everything that was published arrives, once."""
    for _ in range(20):
        driver = replace(world.driver, retry_at_s=0.0)
        match next_action(driver, ONE, 1.0):
            case Tell(landed):
                state = listened(driver.sink.listeners.get("l", b""), landed.pending)
                world = replace(world, driver=protocol.told(driver, {"l": state}))
            case Ask():
                decision = reconcile(driver.sink, world.history())
                assert isinstance(decision, Agreed)
                world = replace(world, driver=protocol.answered(driver, decision))
            case CommitBatch() as batch:
                world = commit(world, batch, driver.sink)
                last = world.receipts()[-1]
                if last.checkpoint >= batch.permit.checkpoint:
                    world = replace(world, driver=protocol.committed(driver, batch, last))
                else:
                    world = replace(world, driver=replace(driver, in_doubt=True))
            case Rest():
                break
    committed = [checkpoint for part in world.table for checkpoint in part]
    assert frozenset(committed) == published
    assert world.driver.sink.pending == ()


def test_no_order_of_events_doubles_or_loses_a_checkpoint() -> None:
    """C4, C8, C9: all worlds with three checkpoints, crashes and a zombie, lost commits, answers and listeners."""
    start = Small(SinkStanding(SinkState()), SinkState(), 0)
    seen = {(repr(start), frozenset[int]())}
    worlds: list[tuple[Small, frozenset[int]]] = [(start, frozenset())]
    while worlds:
        world, rows = worlds.pop()
        check(world)
        finish(world, rows)
        for after in moves(world):
            added = [pending.checkpoint for pending in after.manifest.pending if pending.checkpoint > world.checkpoint]
            known = rows | frozenset(added)
            key = (repr(after), known)
            if key not in seen:
                seen.add(key)
                worlds.append((after, known))
    assert len(seen) > 1000


def state(committed: int | None, *pending: int) -> SinkState:
    return SinkState(
        committed=committed, pending=tuple(PendingCommit(checkpoint=p, committables=WORK) for p in pending)
    )


def shown(*checkpoints: int) -> TableHistory:
    return TableHistory(tuple(CommitReceipt(CheckpointId(c), n, 1, 1) for n, c in enumerate(checkpoints, 1)))


def test_what_landed_is_told_snapshot_by_snapshot() -> None:
    """C12: four checkpoints went into two snapshots before the driver died."""
    decision = reconcile(state(1, 2, 3, 5, 6), shown(1, 3, 5))
    assert isinstance(decision, Agreed)
    assert [(landed.first, landed.last, landed.receipt.snapshot) for landed in decision.landed] == [
        (2, 3, 2),
        (5, 5, 3),
    ]
    assert all(landed.found for landed in decision.landed)


def test_a_snapshot_that_expired_leaves_its_checkpoints_to_the_next_one() -> None:
    decision = reconcile(state(1, 2, 3), shown(3))
    assert isinstance(decision, Agreed)
    assert [(landed.first, landed.last) for landed in decision.landed] == [(2, 3)]


@pytest.mark.parametrize(
    ("committed", "pending", "found", "kind"),
    [
        (3, (4,), (), TableBehind),
        (3, (4,), (2,), TableBehind),
        (3, (4,), (3, 5), TableAhead),
        (3, (4, 6), (5, 6), TableAhead),
        (None, (), (1,), TableAhead),
    ],
)
def test_table_and_checkpoint_that_cannot_both_be_right_are_refused(
    committed: int | None, pending: tuple[int, ...], found: tuple[int, ...], kind: type
) -> None:
    assert isinstance(reconcile(state(committed, *pending), shown(*found)), kind)


def test_a_watermark_never_goes_back() -> None:
    """C7."""
    sink = SinkState()
    for checkpoint, mark in enumerate((50, None, 40, 70), 1):
        sink = with_pending(sink, CheckpointId(checkpoint), WORK, mark)
    assert [pending.watermark for pending in sink.pending] == [50, 50, 50, 70]
    action = next_action(SinkStanding(sink), ONE, 0.0)
    assert isinstance(action, CommitBatch)
    assert action.watermark == 70


def test_an_epoch_without_rows_moves_the_watermark_all_the_same() -> None:
    sink = with_pending(SinkState(watermark=5), CheckpointId(2), (), 9)
    assert (sink.watermark, sink.pending) == (9, ())


def test_tries_are_spaced_out_and_a_success_forgets_failures() -> None:
    standing = SinkStanding(state(None, 1))
    for failures in (1, 2, 3):
        standing = protocol.in_doubt(standing, now_s=100.0)
        assert next_action(standing, ONE, 100.0) == Rest(100.0 + pause_s(failures))
        assert next_action(standing, ONE, standing.retry_at_s) == Ask()
    standing = protocol.answered(standing, Agreed(()))
    batch = next_action(standing, ONE, 0.0)
    assert isinstance(batch, CommitBatch)
    assert protocol.committed(standing, batch, shown(1).commits[0]).failures == 0


def judged(
    *paths: str, winners: Mapping[CheckpointId, frozenset[str]] = MappingProxyType({}), published: int = 12
) -> tuple[list[str], list[str]]:
    verdict = judge_attempts(
        paths,
        generation=Generation(3),
        taken_over=CheckpointId(10),
        owners={CheckpointId(8): Generation(1), CheckpointId(9): Generation(2)},
        published=CheckpointId(published),
        winners=winners,
    )
    return list(verdict.forget), list(verdict.lost)


def path(checkpoint: int, generation: int, attempt: str = "7") -> str:
    return Announcement("sink", AttemptId(checkpoint, generation, 0, attempt)).path


def test_only_attempts_that_can_never_count_have_lost() -> None:
    """C5: of this driver once their checkpoint is published, of older drivers if they were never published."""
    won = {CheckpointId(12): frozenset({"7"})}
    assert judged(path(12, 3), winners=won) == ([path(12, 3)], [])
    assert judged(path(12, 3, "8"), winners=won) == ([], [path(12, 3, "8")])
    assert judged(path(13, 3)) == ([], []), "its checkpoint is still being made"
    assert judged(path(10, 2)) == ([], [path(10, 2)])
    assert judged(path(9, 2)) == ([path(9, 2)], []), "it may have won, so its files stay"
    assert judged(path(8, 2)) == ([], [path(8, 2)]), "another driver published that checkpoint"
    assert judged(path(7, 2)) == ([path(7, 2)], []), "nobody knows any more who did"
    assert judged(path(13, 4)) == ([], []), "a newer driver's"


def test_a_list_that_turns_up_too_late_to_judge_is_only_forgotten() -> None:
    late = path(20, 3)
    assert judged(late, published=20 + REMEMBERED) == ([late], [])
    assert judged(late, published=19 + REMEMBERED) == ([], [late])
    winners = {CheckpointId(n): frozenset({"7"}) for n in range(1, 201)}
    assert set(remembered(winners, CheckpointId(200))) == set(range(101, 201))
