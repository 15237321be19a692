"""What a restart makes of a table that other engines expired, compacted and rolled back: every small world.

The truth is kept beside what can be seen: a list of snapshots, each ours or not. The decision sees only what a table
shows. Whatever it decides, nothing may be doubled or lost; and it refuses only when two truths look the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from penstock.protocol.commit import (
    Agreed,
    CommitReceipt,
    HistoryGone,
    Remembered,
    SinkStanding,
    TableBehind,
    TableHistory,
    answered,
    floor_of,
    judge_table,
    marked,
    proven,
    reconcile,
    told,
    trusted,
)
from penstock.protocol.ids import CheckpointId
from penstock.protocol.manifest import Committable, PendingCommit, SinkState, TableMark

WORK = (Committable(b"x", 1, 1),)


@dataclass(frozen=True)
class Truth:
    """All snapshots by the checkpoint they hold, None for somebody else's; nobody can read the first `expired`."""

    snapshots: tuple[int | None, ...]
    expired: int

    def shown(self, sink: SinkState) -> TableHistory:
        """As a table shows it to a driver that starts."""
        latest, oldest = len(self.snapshots), sink.snapshot
        known = max(oldest or 0, trusted(floor_of(sink), latest))
        mine = {n: c for n, c in enumerate(self.snapshots, 1) if c is not None and n > self.expired}
        found = {n: c for n, c in mine.items() if n > (oldest or 0)} or {n: c for n, c in mine.items() if n == oldest}
        if oldest is None:
            remembered = Remembered.NOTHING
        elif oldest > latest or (oldest > self.expired and oldest not in mine):
            remembered = Remembered.LOST
        else:
            remembered = Remembered.PRESENT if oldest in mine else Remembered.EXPIRED
        gone = self.expired if self.expired > max([known, *found]) else None
        commits = tuple(CommitReceipt(CheckpointId(c), n, 1, 1) for n, c in sorted(found.items()))
        return TableHistory(commits, latest, gone, remembered)

    @property
    def held(self) -> set[int]:
        return {checkpoint for checkpoint in self.snapshots if checkpoint is not None}


def pending(*checkpoints: int) -> tuple[PendingCommit, ...]:
    return tuple(PendingCommit(checkpoint=c, committables=WORK) for c in checkpoints)


def worlds() -> Iterator[tuple[SinkState, Truth]]:
    """A query that started on a table with some snapshots, acknowledged some commits, and has others under way."""
    for before, acknowledged, waiting, landed in itertools.product(range(3), range(3), range(3), range(3)):
        if landed > waiting:
            continue
        for strangers in itertools.product((0, 1), repeat=acknowledged + landed + 1):
            snapshots: list[int | None] = [None] * before
            number, snapshot = 0, None
            for place in range(acknowledged + landed):
                snapshots += [None] * strangers[place]
                snapshots.append(number := number + 1)
                snapshot = len(snapshots) if number == acknowledged else snapshot
            snapshots += [None] * strangers[-1]
            sink = SinkState(
                committed=acknowledged or None,
                snapshot=snapshot,
                pending=pending(*range(acknowledged + 1, acknowledged + waiting + 1)),
            )
            if snapshot is None:
                sink = answered(SinkStanding(sink), Agreed((), before)).sink
            for expired in range(max(1, len(snapshots))):
                yield sink, Truth(tuple(snapshots), expired)


def same_sight(sink: SinkState, truth: Truth) -> bool:
    """Whether another truth, with more or fewer pending checkpoints in the table, would show the same."""
    floor = max(sink.snapshot or 0, floor_of(sink))
    hidden = range(floor, truth.expired)
    return bool(hidden) and not any(c is not None for c in truth.snapshots[max(floor, truth.expired) :])


def test_a_restart_neither_doubles_nor_loses_nor_refuses_without_reason() -> None:
    count = 0
    for sink, truth in worlds():
        count += 1
        verdict = reconcile(sink, truth.shown(sink))
        if isinstance(verdict, HistoryGone):
            assert sink.pending, "nothing waits, so nothing can be doubled"
            assert same_sight(sink, truth), f"{truth} can be told from all others by {sink}"
            continue
        assert isinstance(verdict, Agreed), f"{verdict}: {sink} {truth}"
        found = {one.checkpoint for landed in verdict.landed for one in landed.pending}
        waiting = {one.checkpoint for one in sink.pending}
        assert found == waiting & truth.held, f"{sink} {truth}"
    assert count > 500


def test_the_first_commit_of_a_query_that_expired_unseen_is_not_taken_for_never_made() -> None:
    """Fresh on a table with two snapshots; ours was the third; somebody made a fourth and expired three."""
    sink = answered(SinkStanding(SinkState()), Agreed((), 2)).sink
    sink = SinkState(floor=sink.floor, pending=pending(1))
    assert reconcile(sink, Truth((None, None, 1, None), 3).shown(sink)) == HistoryGone(3)
    never = Truth((None, None, None), 2)
    assert isinstance(reconcile(sink, never.shown(sink)), Agreed), "what was there before the query held nothing of it"


def test_a_checkpoint_from_before_floors_needs_the_whole_history_for_its_first_commit() -> None:
    sink = SinkState(pending=pending(1))
    assert isinstance(reconcile(sink, Truth((None, None), 1).shown(sink)), HistoryGone)
    assert isinstance(reconcile(sink, Truth((None, None), 0).shown(sink)), Agreed)


def test_where_nothing_waits_an_expired_snapshot_does_not_stop_a_restart() -> None:
    sink = SinkState(committed=3, snapshot=5)
    truth = Truth((None,) * 4 + (3,) + (None,) * 4, 7)
    verdict = reconcile(sink, truth.shown(sink))
    assert verdict == Agreed((), 9, 7)
    assert isinstance(reconcile(sink, truth.shown(sink), restored=True), HistoryGone), "an older one may be behind"


def test_a_later_pending_checkpoint_is_in_doubt_although_an_earlier_one_was_seen() -> None:
    """A driver had seen checkpoint 2 arrive; since then snapshots expired that may hold checkpoint 3."""
    sink = SinkState(committed=1, snapshot=1, pending=pending(2, 3))
    seen = (CommitReceipt(CheckpointId(2), 2, 1, 1),)
    assert reconcile(sink, TableHistory(seen, 5, 4, Remembered.EXPIRED)) == HistoryGone(4)
    seen = (CommitReceipt(CheckpointId(3), 2, 1, 1),)
    assert isinstance(reconcile(sink, TableHistory(seen, 5, 4, Remembered.EXPIRED)), Agreed)


def test_what_the_newest_snapshot_lists_is_acknowledged_without_a_snapshot_of_its_own() -> None:
    sink = SinkState(committed=1, snapshot=1, pending=pending(2, 3), floor=4)
    standing = answered(SinkStanding(sink), proven(sink, TableHistory((), 9, 8, Remembered.EXPIRED)))
    (landed,) = standing.landed
    assert (landed.first, landed.last, standing.sink.floor) == (2, 3, 4), "not before the listeners know it"
    after = told(standing, {}).sink
    assert (after.committed, after.snapshot, after.floor, after.pending) == (3, None, 9, ())
    assert isinstance(reconcile(after, TableHistory((), 9, None)), Agreed)
    assert isinstance(reconcile(after, TableHistory((), 7, None)), TableBehind), "rolled back behind what was seen"


def test_other_engines_may_roll_back_what_they_committed_themselves() -> None:
    """The floor was snapshot 9, the table ends with 7 now; our commit in snapshot 5 is there."""
    sink = SinkState(committed=1, snapshot=5, pending=pending(2), floor=9)
    truth = Truth((None,) * 4 + (1, None, None), 0)
    assert reconcile(sink, truth.shown(sink)) == Agreed((), 7)
    lost = Truth((None,) * 4, 0)
    assert isinstance(reconcile(sink, lost.shown(sink)), TableBehind)
    regrown = Truth((None,) * 4 + (1, None, None, 2, None), 0)
    verdict = reconcile(sink, regrown.shown(sink))
    assert isinstance(verdict, Agreed)
    assert [landed.last for landed in verdict.landed] == [2], "committed under a number that the floor had passed"
    overwritten = Truth((None,) * 12, 0)
    assert isinstance(reconcile(sink, overwritten.shown(sink)), TableBehind), "another one is in our snapshot's place"


ONE, MOVED, OTHER = (
    TableMark(name="shop.a", made_at_ms=1),
    TableMark(name="shop.b", made_at_ms=1),
    TableMark(name="shop.a", made_at_ms=2),
)


@pytest.mark.parametrize(
    ("sink", "there", "fits"),
    [
        (SinkState(), None, True),
        (marked(SinkState(), ONE), OTHER, True),
        (marked(SinkState(committed=1), ONE), ONE, True),
        (marked(SinkState(committed=1), ONE), MOVED, True),
        (marked(SinkState(committed=1), ONE), OTHER, False),
        (marked(SinkState(pending=pending(1)), ONE), OTHER, False),
        (marked(SinkState(committed=1), ONE), None, False),
        (SinkState(committed=1), None, False),
        (SinkState(committed=1), ONE, True),
        (marked(SinkState(committed=1), ONE), TableMark(name="shop.a"), True),
    ],
)
def test_a_sink_that_has_written_goes_on_with_the_same_table(
    sink: SinkState, there: TableMark | None, fits: bool
) -> None:
    assert (judge_table(sink, there) is None) == fits
