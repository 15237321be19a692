"""What a sink promises to the engine, one function each: it plays one story on a fresh table and says what broke.

The names are what users read in the report, so each is a sentence. `Untold` means that the sink cannot be asked this.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import Fenced, MissingFile
from penstock.protocol.manifest import Committable
from penstock.testing.sinks.scene import USER, Attempt, Broken, Rival, Scene, Untold, commit

Promise = Callable[[Scene], None]


def _written(scene: Scene, checkpoint: int, ids: Sequence[int]) -> Attempt:
    attempt = scene.write(checkpoint, ids)
    if not attempt.committables:
        raise Untold("its writers hand over nothing to commit")
    return attempt


def _of(*attempts: Attempt) -> list[Committable]:
    return [committable for attempt in attempts for committable in attempt.committables]


# -- the sink itself -----------------------------------------------------------------------------------------------


def travels(scene: Scene) -> None:
    try:
        scene.sink = copy.deepcopy(scene.sink)  # fails where sending it fails
    except Exception as error:
        raise Broken(f"the sink cannot be sent to a worker: {error}") from error
    attempt = _written(scene, 1, [1])
    commit(scene.driver(1), 1, attempt.committables)
    scene.require_rows([1], "after a commit of a sink that was sent to a worker")


def checks_again(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    commit(scene.driver(1), 1, attempt.committables)
    scene.sink.check(scene.rows(()).schema)
    scene.require_rows([1], "after `check` of a table that has rows")


# -- writers -------------------------------------------------------------------------------------------------------


def hides_rows(scene: Scene) -> None:
    attempt = _written(scene, 1, [1, 2])
    scene.require_rows([], "after `prepare`, before `commit`")
    commit(scene.driver(1), 1, attempt.committables)
    scene.require_rows([1, 2], "after `commit`")


def announces_files(scene: Scene) -> None:
    before = scene.files()
    attempt = _written(scene, 1, [1])
    made = {path.name for path in scene.files() - before}
    if scene.early:
        raise Broken(f"{scene.early[0]} was there before the writer announced it")
    silent = made - {name.rpartition("/")[2] for name in attempt.announced}
    if silent:
        raise Broken(f"the writer made {min(silent)} and never announced it: after a crash the driver cannot remove it")


def attempts_are_apart(scene: Scene) -> None:
    loser, winner = _written(scene, 1, [1]), _written(scene, 1, [1])
    shared = set(loser.announced) & set(winner.announced)
    if shared:
        raise Broken(f"two attempts at one checkpoint write to {min(shared)}")
    committer = scene.driver(1)
    commit(committer, 1, winner.committables)
    committer.remove(loser.announced)
    scene.require_rows([1], "after the files of a losing attempt were removed")


def killed_attempts_leave_nothing(scene: Scene) -> None:
    committer = scene.driver(1)
    before = scene.files()
    announced: list[str] = []
    writer = scene.sink.open_writer(scene.context(1, announced), scene.rows(()).schema)
    writer.write(scene.rows([1]))
    writer.prepare()
    committer.remove(announced)
    committer.remove(announced)  # a driver that crashed removes again
    _require_no_more_files(scene, before, "`remove` of what a killed attempt announced")


def aborted_attempts_leave_nothing(scene: Scene) -> None:
    before = scene.files()
    writer = scene.sink.open_writer(scene.context(1, []), scene.rows(()).schema)
    writer.write(scene.rows([1]))
    writer.abort()
    _require_no_more_files(scene, before, "`Writer.abort`")


def unwanted_committables_leave_nothing(scene: Scene) -> None:
    committer = scene.driver(1)
    before = scene.files()
    attempt = _written(scene, 1, [1])
    committer.abort(attempt.committables)
    _require_no_more_files(scene, before, "`Committer.abort`")
    scene.require_rows([], "after `Committer.abort`")


def _require_no_more_files(scene: Scene, before: set[Path], after: str) -> None:
    left = sorted(path.name for path in scene.files() - before)
    if left:
        raise Broken(f"{after} leaves {left[0]}")


def empty_writers_are_fine(scene: Scene) -> None:
    writer = scene.sink.open_writer(scene.context(1, []), scene.rows(()).schema)
    committables = writer.prepare()
    if committables:
        commit(scene.driver(1), 1, committables)
    scene.require_rows([], "after an epoch without rows")


# -- one driver ----------------------------------------------------------------------------------------------------


def commits_once(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    committer = scene.driver(1)
    first = commit(committer, 1, attempt.committables)
    again = commit(committer, 1, attempt.committables)
    if (first.checkpoint, again.checkpoint) != (1, 1):
        raise Broken(f"receipts name checkpoints {first.checkpoint} and {again.checkpoint}; both calls committed 1")
    scene.require_rows([1], "after the same commit twice")


def remembers_commits(scene: Scene) -> None:
    one, two = _written(scene, 1, [1]), _written(scene, 2, [2])
    committer = scene.driver(1)
    if scene.newest(committer) is not None:
        raise Broken(f"a new table shows checkpoint {scene.newest(committer)} of ours")
    commit(committer, 1, one.committables)
    _require_newest(scene, scene.sink.open_committer(USER), 1, "after a restart")
    commit(committer, 2, two.committables)
    _require_newest(scene, committer, 2, "after a second commit")
    shown = [int(receipt.checkpoint) for receipt in scene.sink.open_committer(USER).commits(None, 5).commits]
    if shown != [1, 2][-len(shown) :] or not shown:
        raise Broken(f"`commits` shows checkpoints {shown}; 1 and 2 were committed, oldest first")


def _require_newest(scene: Scene, committer: Any, wanted: int, when: str) -> None:
    found = scene.newest(committer)
    if found != wanted:
        raise Broken(f"{when} `commits` shows {found or 'nothing'}; the table holds checkpoint {wanted}")


def survives_restarts(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    commit(scene.driver(1), 1, attempt.committables)
    receipt = commit(scene.driver(2), 1, attempt.committables, generation=2)
    if receipt.checkpoint != 1:
        raise Broken(f"a commit that was made before is answered with checkpoint {receipt.checkpoint}")
    scene.require_rows([1], "after a second driver committed the same checkpoint again")


def takes_several_checkpoints(scene: Scene) -> None:
    attempts = [_written(scene, number, [number]) for number in (1, 2, 3)]
    committer = scene.driver(1)
    commit(committer, 3, _of(*attempts))
    scene.require_rows([1, 2, 3], "after three checkpoints in one commit")
    _require_newest(scene, committer, 3, "after three checkpoints in one commit")


def keeps_users_apart(scene: Scene) -> None:
    mine, other = _written(scene, 1, [1]), _written(scene, 1, [2])
    commit(scene.driver(1, "another-user"), 1, other.committables)
    committer = scene.driver(1)
    if scene.newest(committer) is not None:
        raise Broken("the commit of another commit user is taken for ours")
    commit(committer, 1, mine.committables)
    _require_newest(scene, scene.sink.open_committer("another-user"), 1, "beside another commit user")
    scene.require_rows([1, 2], "after two commit users committed their checkpoint 1")


def tells_what_it_holds(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    committer = scene.driver(1)
    if committer.holds(attempt.committables):
        raise Broken("`holds` claims committables that were never committed: their rows would be lost")


def answers_older_commits(scene: Scene) -> None:
    one, two = _written(scene, 1, [1]), _written(scene, 2, [2])
    committer = scene.driver(1)
    commit(committer, 2, _of(one, two))
    receipt = commit(scene.driver(2), 1, one.committables, generation=2)
    if receipt.checkpoint < 1:
        raise Broken(f"a commit that is part of a later one is answered with checkpoint {receipt.checkpoint}")
    scene.require_rows([1, 2], "after a commit that the table holds as part of a later one")


# -- failures ------------------------------------------------------------------------------------------------------


class _Crash(BaseException):
    """The driver is gone."""


def crashes_before_commits(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])

    def crash() -> bool:
        raise _Crash

    try:
        commit(scene.driver(1), 1, attempt.committables, crash)
    except _Crash:
        scene.require_rows([], "after a crash where `still_leader` is asked")
    committer = scene.driver(2)
    commit(committer, 1, attempt.committables, generation=2)
    scene.require_rows([1], "after a crash inside `commit`, and the commit of the next driver")


def unknown_outcomes_are_told(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])

    def no_answer() -> bool:
        raise TimeoutError("the leader does not answer")

    committer = scene.driver(1)
    try:
        commit(committer, 1, attempt.committables, no_answer)
    except Exception:
        found = scene.newest(committer)
        scene.require_rows([1] if found == 1 else [], f"after a failed commit, when `commits` shows {found}")
        if found is None:
            commit(committer, 1, attempt.committables)
    scene.require_rows([1], "after a failed commit was tried again")


def missing_files_stop_commits(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    if not attempt.announced:
        raise Untold("its writers announce no files")
    committer = scene.driver(1)
    if committer.missing_files(attempt.committables):
        raise Broken(f"`missing_files` misses {committer.missing_files(attempt.committables)[0]}, which is there")
    committer.remove(attempt.announced)
    if not committer.missing_files(attempt.committables):
        raise Broken("`missing_files` misses nothing, though every file was deleted")
    try:
        commit(committer, 1, attempt.committables)
    except MissingFile:
        if scene.newest(scene.sink.open_committer(USER)) is not None:
            raise Broken("`commit` raised MissingFile, yet the table shows the checkpoint") from None
        scene.require_rows([], "after a commit with a missing file")
    else:
        raise Broken("`commit` lists a file that does not exist: readers of the table fail, or rows are lost")


# -- two drivers ---------------------------------------------------------------------------------------------------


def asks_for_leadership(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    try:
        commit(scene.driver(1), 1, attempt.committables, lambda: False)
    except Fenced:
        scene.require_rows([], "after a commit of a driver that no longer leads")
    except Exception as error:
        raise Broken(f"a driver that no longer leads gets {type(error).__name__} instead of Fenced") from error
    else:
        raise Broken("a driver that no longer leads commits")


def zombies_do_not_double(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])

    def newer() -> None:
        commit(scene.driver(2), 1, attempt.committables, generation=2)

    rival = Rival(newer)
    _try(lambda: commit(scene.driver(1), 1, attempt.committables, rival.still_leader))
    rival.finish()
    scene.require_rows([1], "after a newer driver committed while an older one was about to")


def zombies_do_not_commit_parts_again(scene: Scene) -> None:
    one, two = _written(scene, 1, [1]), _written(scene, 2, [2])
    old = scene.driver(1)
    newer = []

    def act() -> None:
        newer.append(scene.driver(2))
        commit(newer[0], 1, one.committables, generation=2)

    rival = Rival(act)
    _try(lambda: commit(old, 2, _of(one, two), rival.still_leader))
    rival.finish()
    if scene.newest(newer[0]) == 1:
        commit(newer[0], 2, two.committables, generation=2)
    scene.require_rows([1, 2], "after a newer driver committed a part of what an older one was about to")


def late_commits_are_seen(scene: Scene) -> None:
    attempt = _written(scene, 1, [1])
    newer = []
    rival = Rival(lambda: newer.append(scene.driver(2)))
    _try(lambda: commit(scene.driver(1), 1, attempt.committables, rival.still_leader))
    rival.finish()
    _try(lambda: commit(newer[0], 1, attempt.committables, generation=2))
    if scene.newest(newer[0]) is None:
        commit(newer[0], 1, attempt.committables, generation=2)
    scene.require_rows([1], "after an older driver committed behind the fence of a newer one")


def _try(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # noqa: S110 - whatever it is, the outcome is unknown and the table tells
        pass


PROMISES: Mapping[str, Promise] = {
    "A sink can be sent to a worker": travels,
    "`check` leaves the rows of a table alone": checks_again,
    "Rows are invisible until their commit": hides_rows,
    "A writer announces each file before it makes it": announces_files,
    "Attempts share no files": attempts_are_apart,
    "`remove` leaves nothing of a killed attempt": killed_attempts_leave_nothing,
    "`Writer.abort` leaves nothing": aborted_attempts_leave_nothing,
    "`Committer.abort` leaves nothing": unwanted_committables_leave_nothing,
    "An epoch without rows adds none": empty_writers_are_fine,
    "The same commit twice adds its rows once": commits_once,
    "`commits` tells what was committed, after a restart too": remembers_commits,
    "A commit that was made before a restart is not made again": survives_restarts,
    "Several checkpoints fit into one commit": takes_several_checkpoints,
    "Commit users are kept apart": keeps_users_apart,
    "`holds` claims nothing that was not committed": tells_what_it_holds,
    "A commit that is part of a later one is not made again": answers_older_commits,
    "A crash inside `commit` neither loses nor doubles rows": crashes_before_commits,
    "After a failed commit, `commits` tells its outcome": unknown_outcomes_are_told,
    "A missing file stops a commit": missing_files_stop_commits,
    "A driver that no longer leads commits nothing": asks_for_leadership,
    "A paused driver does not commit again what a newer one committed": zombies_do_not_double,
    "A paused driver does not commit again a part of its commit": zombies_do_not_commit_parts_again,
    "A commit behind the fence is seen by the newer driver": late_commits_are_seen,
}
"""What `check_sink` asks, in order."""
