"""Several committers on one table: zombies under the same commit user, strangers under another (C9)."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.errors import Fenced, TablePositionMismatch
from penstock.protocol.commit import Remembered
from penstock.protocol.ids import Generation
from penstock.sinks.base import Committable
from penstock.sinks.paimon import local as paimon_local
from penstock.sinks.paimon.open import open_table
from penstock.sinks.paimon.sink import Paimon
from tests.support.tables import assert_no_file_is_listed_twice, commit, epoch, every_file, ids_in, ids_of, newest

CHECKPOINTS = range(1, 61)


def commit_all(sink: Paimon, user: str, epochs: dict[int, list[Committable]]) -> None:
    committer = sink.open_committer(user)
    for checkpoint, committables in epochs.items():
        commit(committer, checkpoint, committables)


def together(*jobs: threading.Thread) -> None:
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()


def snapshots(sink: Paimon) -> Sequence[object]:
    return open_table(sink.warehouse, sink.table).snapshot_manager().list_snapshots()


def test_two_threads_with_one_commit_user_add_each_row_once(sink: Paimon) -> None:
    epochs = {checkpoint: epoch(sink, checkpoint) for checkpoint in CHECKPOINTS}
    together(*(threading.Thread(target=commit_all, args=(sink, "me", epochs)) for _ in range(2)))
    assert ids_in(sink) == ids_of(CHECKPOINTS)
    assert len(snapshots(sink)) == len(CHECKPOINTS)
    assert_no_file_is_listed_twice(sink)


def _commit_in_process(
    warehouse: str, user: str, epochs: dict[int, list[bytes]], start: multiprocessing.synchronize.Barrier
) -> None:
    sink = Paimon(warehouse, "shop.words")
    sink.open_committer("warm up")
    start.wait(timeout=60)
    commit_all(sink, user, {checkpoint: [Committable(p, 1, 1) for p in ps] for checkpoint, ps in epochs.items()})


def run_processes(sink: Paimon, jobs: Sequence[tuple[str, dict[int, list[Committable]]]]) -> None:
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(len(jobs))
    processes = [
        spawn.Process(
            target=_commit_in_process,
            args=(sink.warehouse, user, {n: [c.payload for c in cs] for n, cs in epochs.items()}, start),
        )
        for user, epochs in jobs
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(jobs)


def test_two_processes_with_one_commit_user_add_each_row_once(sink: Paimon) -> None:
    epochs = {checkpoint: epoch(sink, checkpoint) for checkpoint in CHECKPOINTS}
    run_processes(sink, [("me", epochs), ("me", epochs)])
    assert ids_in(sink) == ids_of(CHECKPOINTS)
    assert_no_file_is_listed_twice(sink)


def test_two_processes_with_two_commit_users_lose_nothing(sink: Paimon) -> None:
    """A snapshot is published create-if-absent: by rename, acknowledged commits vanish here."""
    halves = [range(1, 41), range(41, 81)]
    run_processes(sink, [(f"user {i}", {n: epoch(sink, n) for n in half}) for i, half in enumerate(halves)])
    assert ids_in(sink) == ids_of(range(1, 81))
    assert len(snapshots(sink)) == 80
    assert_no_file_is_listed_twice(sink)


def test_a_zombie_that_wakes_up_after_its_successor_committed_doubles_nothing(sink: Paimon) -> None:
    """The zombie has asked, was told 'not committed', and is paused right before it publishes."""
    committables = epoch(sink, 1)
    zombie, successor = sink.open_committer("me"), sink.open_committer("me")
    assert newest(zombie) is None

    def paused() -> bool:
        commit(successor, 1, committables)
        return True

    receipt = commit(zombie, 1, committables, still_leader=paused)
    assert receipt == newest(successor)
    assert ids_in(sink) == ids_of([1])
    assert_no_file_is_listed_twice(sink)
    assert len(snapshots(sink)) == 1


def test_a_zombie_that_was_told_it_leads_commits_nothing_once_its_successor_has_closed_the_door(sink: Paimon) -> None:
    """C9: paused between asking for leadership and publishing; the successor has committed nothing yet."""
    committables = epoch(sink, 1)
    zombie, successor = sink.open_committer("me"), sink.open_committer("me")
    answers = iter([True, False])

    def paused() -> bool:
        answer = next(answers)
        if answer:
            successor.fence(Generation(2))
        return answer

    before = every_file(sink)
    with pytest.raises(Fenced):
        commit(zombie, 1, committables, still_leader=paused)
    assert newest(successor) is None
    assert every_file(sink) == before, "nothing is left behind"
    commit(successor, 1, committables)
    assert ids_in(sink) == ids_of([1])


def test_closing_the_door_leaves_other_committers_alone(sink: Paimon) -> None:
    committables = epoch(sink, 1)
    stranger = sink.open_committer("stranger")

    def paused() -> bool:
        sink.open_committer("me").fence(Generation(2))
        return True

    assert commit(stranger, 1, committables, still_leader=paused).snapshot == 1


def test_a_zombie_far_behind_its_successor_doubles_nothing(sink: Paimon) -> None:
    epochs = {checkpoint: epoch(sink, checkpoint) for checkpoint in (1, 2, 3)}
    zombie = sink.open_committer("me")
    newest(zombie)

    def paused() -> bool:
        commit_all(sink, "me", epochs)
        return True

    assert commit(zombie, 1, epochs[1], still_leader=paused).checkpoint == 3
    assert ids_in(sink) == ids_of([1, 2, 3])


def test_a_commit_of_two_checkpoints_stops_when_a_zombie_committed_the_first_meanwhile(sink: Paimon) -> None:
    """C3: what to commit was chosen before the zombie's commit; part of it is in the table now."""
    first, second = epoch(sink, 1), epoch(sink, 2)
    leader, zombie = sink.open_committer("me"), sink.open_committer("me")
    newest(leader)
    commit(zombie, 1, first)
    with pytest.raises(TablePositionMismatch, match="checkpoint 1 appeared"):
        commit(leader, 2, [*first, *second])
    assert ids_in(sink) == ids_of([1])
    commit(leader, 2, second)
    assert ids_in(sink) == ids_of([1, 2])


def test_a_commit_of_two_checkpoints_stops_when_a_zombie_commits_the_first_just_before_it(sink: Paimon) -> None:
    first, second = epoch(sink, 1), epoch(sink, 2)
    leader, zombie = sink.open_committer("me"), sink.open_committer("me")
    newest(leader)

    def paused() -> bool:
        commit(zombie, 1, first)
        return True

    with pytest.raises(TablePositionMismatch, match="checkpoint 1 appeared"):
        commit(leader, 2, [*first, *second], still_leader=paused)
    assert ids_in(sink) == ids_of([1])
    assert_no_file_is_listed_twice(sink)


def test_a_stranger_that_commits_first_only_delays_ours(sink: Paimon) -> None:
    ours, strange = epoch(sink, 1), epoch(sink, 2)
    stranger = sink.open_committer("stranger")
    turns: list[int] = []

    def paused() -> bool:
        if not turns:
            commit(stranger, 7, strange)
        turns.append(1)
        return True

    receipt = commit(sink.open_committer("me"), 1, ours, still_leader=paused)
    assert (receipt.snapshot, len(turns)) == (2, 2)
    assert ids_in(sink) == ids_of([1, 2])


def test_losing_a_race_leaves_no_manifest_behind(sink: Paimon) -> None:
    stranger = sink.open_committer("stranger")
    ours, strange = epoch(sink, 1), epoch(sink, 2)
    once = iter([True])

    def paused() -> bool:
        if next(once, False):
            commit(stranger, 7, strange)
        return True

    commit(sink.open_committer("me"), 1, ours, still_leader=paused)
    # Per snapshot: one manifest, one list of older manifests, one list of new ones.
    assert len(list(Path(sink.warehouse, "shop.db/words/manifest").iterdir())) == 2 * 3


def test_a_killed_committer_leaves_a_table_that_the_next_one_completes(sink: Paimon) -> None:
    """C9: killed right before the snapshot becomes visible, with manifests and temporary file written."""
    committables = epoch(sink, 1)
    script = (
        "import os, sys; from penstock.sinks.base import Committable; from penstock.sinks.paimon.sink import Paimon\n"
        "from tests.support.tables import commit\n"
        "ready = [Committable(bytes.fromhex(p), 1, 1) for p in sys.argv[2:]]\n"
        "commit(Paimon(sys.argv[1], 'shop.words').open_committer('me'), 1, ready, lambda: os.kill(os.getpid(), 9))"
    )
    payloads = [committable.payload.hex() for committable in committables]
    died = subprocess.run([sys.executable, "-c", script, sink.warehouse, *payloads], check=False)
    assert died.returncode == -9
    committer = sink.open_committer("me")
    assert newest(committer) is None
    commit(committer, 1, committables)
    assert ids_in(sink) == ids_of([1])


def test_a_table_that_was_rolled_back_is_noticed(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    for checkpoint in (1, 2):
        commit(committer, checkpoint, epoch(sink, checkpoint))
    open_table(sink.warehouse, sink.table).rollback_to(1)
    with pytest.raises(TablePositionMismatch, match="lost commits"):
        commit(committer, 3, epoch(sink, 3))
    assert sink.open_committer("me").commits(2, 1).remembered is Remembered.LOST


def test_a_commit_that_another_engine_overwrote_is_noticed(sink: Paimon) -> None:
    committer = sink.open_committer("me")
    commit(committer, 1, epoch(sink, 1))
    snapshot = Path(sink.warehouse, "shop.db/words/snapshot/snapshot-1")
    text = snapshot.read_text()
    uuid = open_table(sink.warehouse, sink.table).snapshot_manager().get_latest_snapshot().uuid
    snapshot.write_text(text.replace('"me"', '"rival"').replace(uuid, "0"))
    with pytest.raises(TablePositionMismatch, match="overwritten"):
        commit(committer, 2, epoch(sink, 2))
    assert sink.open_committer("me").commits(1, 1).remembered is Remembered.LOST


def test_snapshots_that_expired_unseen_are_not_guessed_about(sink: Paimon) -> None:
    for checkpoint in (1, 2, 3):
        commit(sink.open_committer("me" if checkpoint < 3 else "other"), checkpoint, epoch(sink, checkpoint))
    for expired in (1, 2):
        Path(sink.warehouse, f"shop.db/words/snapshot/snapshot-{expired}").unlink()
    history = sink.open_committer("me").commits(1, 1)
    assert (history.commits, history.gone, history.remembered) == ((), 2, Remembered.EXPIRED)
    history = sink.open_committer("me").commits(2, 1)
    assert (history.commits, history.gone, history.remembered) == ((), None, Remembered.EXPIRED)
    assert sink.open_committer("me").commits(None, 1, floor=2).gone is None
    with pytest.raises(TablePositionMismatch, match="snapshot 2 is gone"):
        commit(sink.open_committer("me"), 2, epoch(sink, 2))


def test_a_snapshot_never_replaces_another_even_if_it_looked_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking first and renaming then is how pypaimon loses acknowledged commits."""
    taken = tmp_path / "snapshot-1"
    taken.write_text("theirs")
    hidden = paimon_local.write_hidden(taken, "ours")
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert not paimon_local.link(hidden, taken)
    assert taken.read_text() == "theirs"


def test_a_link_whose_answer_was_lost_counts_as_made(tmp_path: Path) -> None:
    path = tmp_path / "snapshot-1"
    hidden = paimon_local.write_hidden(path, "ours")
    path.hardlink_to(hidden)
    assert paimon_local.link(hidden, path)
