"""Commit, epoch, recovery and garbage decisions, exhaustively where the world is small."""

import itertools
import random
from dataclasses import replace

import msgspec
import pytest

from penstock.protocol.codec import TooNew, UnreadableManifest, decode_manifest, encode_manifest
from penstock.protocol.commit import (
    Agreed,
    CommitReceipt,
    TableAhead,
    TableBehind,
    TableHistory,
    acknowledged,
    next_commit,
    reconcile,
    with_pending,
)
from penstock.protocol.epoch import Drain, Facts, Ingest, Stop, Stopping, Wait, decide
from penstock.protocol.garbage import garbage, retired
from penstock.protocol.ids import BatchId, CheckpointId, Generation
from penstock.protocol.layout import AttemptId, DataFile
from penstock.protocol.manifest import (
    Committable,
    Manifest,
    PendingCommit,
    PipelineShape,
    SinkState,
    SourcePosition,
)
from penstock.protocol.plan import stage_budget
from penstock.protocol.recover import (
    RefuseBatch,
    SkipBatch,
    TakeBatch,
    first_manifest,
    judge_batch,
)
from penstock.protocol.takeover import takeover_manifest

SHAPE = PipelineShape(sources={"s": (("a", "int64"),)}, operators={}, edges={}, sinks=("t",))


def manifest_of(**fields: object) -> Manifest:
    manifest = first_manifest(identity="i", library="0", max_parallelism=8, shape=SHAPE, created_at="now")
    return msgspec.structs.replace(manifest, **fields)


def receipt(checkpoint: int) -> CommitReceipt:
    return CommitReceipt(CheckpointId(checkpoint), 1, 0, 0)


# -- commits -------------------------------------------------------------------------------------------------------

WORK = (Committable(b"x", 1, 1),)


@pytest.mark.parametrize("crash_after", range(1, 8))
def test_every_crash_point_commits_each_checkpoint_once(crash_after: int) -> None:
    """C4, C9: publish, commit, acknowledge, with a crash after any step; the table and the last manifest remain."""
    table: list[int] = []
    stored = SinkState()
    steps = 0

    def step() -> bool:
        nonlocal steps
        steps += 1
        return steps >= crash_after

    def run(state: SinkState, first: int) -> SinkState:
        """Publishes three checkpoints, committing behind; returns the state in the newest published manifest."""
        published = state
        for checkpoint in range(first, first + 3):
            state = with_pending(state, CheckpointId(checkpoint), WORK)
            published = state
            if step():
                return published
            batch = next_commit(state, Generation(1))
            assert batch is not None
            table.extend(pending.checkpoint for pending in batch.pending)
            if step():
                return published
            state = acknowledged(state, receipt(batch.permit.checkpoint))
        return published

    stored = run(stored, 1)
    decision = reconcile(stored, TableHistory((receipt(table[-1]),) if table else ()))
    assert isinstance(decision, Agreed)
    steps = -100
    newest = max([pending.checkpoint for pending in stored.pending] + [stored.committed or 0])
    rest = stored
    for landed in decision.landed:
        rest = acknowledged(rest, landed.receipt)
    batch = next_commit(rest, Generation(2))
    if batch is not None:
        table.extend(pending.checkpoint for pending in batch.pending)
    assert table == list(range(1, newest + 1))


def test_reconcile_agrees_only_when_both_sides_can_be_right() -> None:
    """C4: all small worlds."""
    for committed, pending, found in itertools.product([None, 3], [(), (4,), (4, 6)], [None, 1, 3, 4, 5, 6, 7]):
        sink = SinkState(
            committed=committed, pending=tuple(PendingCommit(checkpoint=p, committables=WORK) for p in pending)
        )
        decision = reconcile(sink, TableHistory(() if found is None else (receipt(found),)))
        known = {committed, *pending} - {None}
        if committed is not None and (found is None or found < committed):
            assert isinstance(decision, TableBehind)
        elif found is not None and found not in known:
            assert isinstance(decision, TableAhead)
        else:
            assert isinstance(decision, Agreed)
            landed = [p.checkpoint for one in decision.landed for p in one.pending]
            assert landed == [p for p in pending if found is not None and p <= found]


def test_lagging_commits_go_into_one_snapshot_in_order() -> None:
    """C3."""
    sink = SinkState()
    for checkpoint in (4, 5, 9):
        sink = with_pending(sink, CheckpointId(checkpoint), WORK)
    batch = next_commit(sink, Generation(1))
    assert batch is not None
    assert [pending.checkpoint for pending in batch.pending] == [4, 5, 9]
    assert batch.permit.checkpoint == 9


def test_a_checkpoint_without_committables_is_never_pending() -> None:
    assert with_pending(SinkState(committed=3), CheckpointId(4), ()) == SinkState(committed=3)
    assert next_commit(SinkState(committed=3), Generation(1)) is None


# -- epochs --------------------------------------------------------------------------------------------------------


def all_facts() -> list[Facts]:
    return [
        Facts(
            batch_offered=offered,
            source_ended=ended,
            rows_in_flight=rows,
            bytes_in_flight=rows * 10,
            segments_in_flight=min(rows, segments),
            max_bytes_in_flight=50,
            max_segments_in_flight=2,
            uncommitted=uncommitted,
            max_uncommitted=2,
            stopping=stopping,
            backlog_s=rows * row_s,
            max_backlog_s=limit_s,
        )
        for offered, ended, rows, segments, uncommitted, stopping, row_s, limit_s in itertools.product(
            [False, True], [False, True], [0, 3, 9], [1, 3], [0, 2], Stopping, [0.0, 10.0], [None, 20.0]
        )
    ]


@pytest.mark.parametrize("facts", all_facts())
def test_the_loop_never_ingests_over_the_limit_and_never_stops_with_a_backlog_unless_told(facts: Facts) -> None:
    """A9, A11."""
    action = decide(facts)
    if isinstance(action, Ingest):
        assert facts.batch_offered
        assert facts.bytes_in_flight <= 50
        assert facts.segments_in_flight <= 2
        assert facts.max_backlog_s is None or facts.backlog_s <= facts.max_backlog_s
        assert facts.stopping is Stopping.NO
    if isinstance(action, Drain):
        assert facts.rows_in_flight > 0
    if isinstance(action, Stop):
        assert facts.stopping is Stopping.NOW or facts.rows_in_flight == 0
    if isinstance(action, Wait) and facts.uncommitted < facts.max_uncommitted:
        assert facts.rows_in_flight == 0
    if isinstance(action, Ingest | Drain):
        assert facts.uncommitted < facts.max_uncommitted


def test_a_backlog_drains_without_new_input() -> None:
    """A9."""
    facts = next(f for f in all_facts() if f.rows_in_flight == 3 and not f.batch_offered and f.uncommitted == 0)
    assert decide(facts) == Drain()


def test_a_micro_batch_stays_in_the_source_while_what_is_in_flight_is_worth_too_much_time() -> None:
    """A9: 3 rows of 10 s each, where 20 s of work may be in flight."""
    (facts,) = (
        facts
        for facts in all_facts()
        if (facts.rows_in_flight, facts.segments_in_flight, facts.backlog_s, facts.max_backlog_s) == (3, 1, 30.0, 20.0)
        and (facts.batch_offered, facts.source_ended, facts.uncommitted) == (True, False, 0)
        and facts.stopping is Stopping.NO
    )
    assert decide(facts) == Drain()
    assert decide(replace(facts, max_backlog_s=None)) == Ingest()
    assert decide(replace(facts, backlog_s=19.0)) == Ingest()


FOREVER = float("inf")


def budget(
    *needs_s: float, slots: int = 2, left_s: float = 1.0, stages_left: int = 1, overhead_s: float = 0.0
) -> float:
    return stage_budget(left_s=left_s, stages_left=stages_left, needs_s=needs_s, slots=slots, overhead_s=overhead_s)


def test_waves_share_the_budget_and_overhead_never_eats_more_than_half() -> None:
    assert budget(*[FOREVER] * 4) == 0.5
    assert budget(FOREVER, FOREVER, stages_left=2, overhead_s=0.1) == pytest.approx(0.4)
    assert budget(FOREVER, overhead_s=5.0) == 0.5


def test_a_subtask_with_a_hot_key_gets_the_time_that_others_do_not_need() -> None:
    assert budget(0.02, 0.02, 0.02, FOREVER) == pytest.approx(1.0 - 0.06 / 2)
    assert budget(0.2, 0.2) == 1.0
    assert budget(0.0, 0.0, 0.0, 0.0, 0.0, 0.7) == pytest.approx(0.7 * 1.25)


def test_a_burst_after_a_quiet_time_takes_two_epochs_at_most_however_many_waves_there_are() -> None:
    """A4."""
    assert budget(*[0.01] * 12) * 6 == pytest.approx(2.0)


@pytest.mark.parametrize("seed", range(200))
def test_no_schedule_with_the_chosen_budget_misses_the_end_of_the_epoch(seed: int) -> None:
    """A2: subtasks started in any order, each on the first free slot, end within the epoch."""
    rng = random.Random(seed)
    needs = [rng.choice([0.01, 0.1, 0.5, 3.0]) * rng.random() for _ in range(rng.randint(1, 9))]
    slots = rng.randint(1, 4)
    chosen = budget(*needs, slots=slots)
    free = [0.0] * slots
    for need in needs:
        free[free.index(min(free))] += min(need, chosen)
    assert max(free) <= 1.0 + 1e-9


# -- recovery ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "offered", "wanted"),
    [
        (None, 0, TakeBatch),
        (None, 1, RefuseBatch),
        (5, 6, TakeBatch),
        (5, 5, SkipBatch),
        (5, 4, RefuseBatch),
        (5, 7, RefuseBatch),
    ],
)
def test_a_micro_batch_is_taken_once(last: int | None, offered: int, wanted: type) -> None:
    """A12."""
    manifest = manifest_of(source=SourcePosition(batch_id=last, offsets_digest="d", query_id="q"))
    assert isinstance(judge_batch(manifest, BatchId(offered), "d", "q"), wanted)


def test_a_replay_with_other_offsets_or_of_another_query_is_refused() -> None:
    """A12: skipping it would lose records."""
    manifest = manifest_of(source=SourcePosition(batch_id=5, offsets_digest="d", query_id="q"))
    assert isinstance(judge_batch(manifest, BatchId(5), "other", "q"), RefuseBatch)
    assert isinstance(judge_batch(manifest, BatchId(6), "e", "other"), RefuseBatch)


def test_a_takeover_has_the_content_of_its_base_and_the_next_id() -> None:
    base = manifest_of(checkpoint=42, generation=3, parallelism={"s": 4})
    taken = takeover_manifest(
        base,
        newest=CheckpointId(50),
        generation=Generation(4),
        shape=SHAPE,
        parallelism={"s": 2},
        library="1",
        created_at="later",
    )
    assert taken.shape == SHAPE
    assert (taken.checkpoint, taken.parent, taken.generation, taken.parallelism) == (51, 42, 4, {"s": 2})
    assert taken.edges == base.edges


# -- manifests as bytes --------------------------------------------------------------------------------------------


def test_a_manifest_survives_its_bytes() -> None:
    sinks = {"t": SinkState(pending=(PendingCommit(checkpoint=1, committables=WORK),))}
    manifest = msgspec.structs.replace(manifest_of(sinks=sinks), checkpoint=1)
    assert decode_manifest(encode_manifest(manifest)) == manifest


def test_every_flipped_byte_and_every_truncation_is_noticed() -> None:
    """B12: a damaged manifest is never taken for a good one."""
    data = encode_manifest(manifest_of())
    for position in range(len(data) - 1):
        damaged = bytearray(data)
        damaged[position] ^= 0x04
        assert not isinstance(decode_manifest(bytes(damaged)), Manifest), position
    for length in range(len(data) - 1):
        assert isinstance(decode_manifest(data[:length]), UnreadableManifest), length


def test_a_newer_format_is_told_apart_from_damage() -> None:
    assert decode_manifest(encode_manifest(manifest_of(format=99))) == TooNew(99)


# -- garbage -------------------------------------------------------------------------------------------------------


def test_only_files_that_no_manifest_and_no_running_epoch_can_name_are_garbage() -> None:
    """B13: all small worlds."""
    for generation, checkpoint, needed in itertools.product([1, 2, 3], [4, 5, 6], [False, True]):
        path = DataFile("state", "o", AttemptId(checkpoint, generation, 0, "7"), 0).path
        found = garbage(
            [path], frozenset([path] if needed else []), generation=Generation(2), published=CheckpointId(5)
        )
        may_still_be_named = generation > 2 or (generation == 2 and checkpoint > 5)
        assert found == (() if needed or may_still_be_named else (path,))


def test_a_foreign_file_is_never_garbage() -> None:
    assert garbage(["state/o/readme.txt"], frozenset(), generation=Generation(9), published=CheckpointId(9)) == ()


def test_the_newest_checkpoints_are_retained() -> None:
    ids = [CheckpointId(number) for number in (4, 9, 7, 8)]
    assert retired(ids, 2) == (4, 7)
    assert retired(ids, 9) == ()
