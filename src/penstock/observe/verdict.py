"""How a query is, told from what its folder and its process say: a pure decision with a closed set of answers.

A driver that ends says so in its history. One that is killed cannot. It gives a sign of life every few seconds, so
a reader sees that the signs stopped; on the same machine, that the process is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.observe.events import (
    Alive,
    CommitSlow,
    EpochFailed,
    EpochPublished,
    QueryStarted,
    QueryStopped,
    SourceSlow,
    StartRefused,
    StorageRetried,
)
from penstock.protocol.ids import Generation

SIGNS_MISSED = 3
"""So many signs of life may be missing before a driver is taken for dead."""
SIGNS_LATE_S = 5.0
"""A sign may be on its way: an object store is written to about every second, clocks differ a little."""
SIGNLESS_S = 600.0
"""For drivers of a version that gave no signs."""


class Standing(Enum):
    """Everything that a query can be."""

    EMPTY = "empty"
    STARTING = "starting"
    RUNNING = "running"
    WAITING = "waiting"
    SOURCE_SILENT = "source silent"
    COMMIT_SLOW = "commit slow"
    STORAGE_FAILING = "storage failing"
    EPOCH_FAILING = "epoch failing"
    STUCK = "stuck"
    STOPPED = "stopped"
    DRAINED = "drained"
    FINISHED = "finished"
    FAILED = "failed"
    FENCED = "fenced"
    KILLED = "killed"
    LOST = "lost"
    REFUSED = "refused"


class Health(Enum):
    """What a supervisor wants to know; the value is the exit code of ``penstock status``."""

    WELL = 0
    ENDED = 3
    """As it was asked to."""
    HELD_UP = 4
    """Alive, but something does not answer or fails."""
    DEAD = 5
    EMPTY = 6


_HEALTH = {
    Health.EMPTY: {Standing.EMPTY},
    Health.WELL: {Standing.STARTING, Standing.RUNNING, Standing.WAITING},
    Health.HELD_UP: {
        Standing.SOURCE_SILENT,
        Standing.COMMIT_SLOW,
        Standing.STORAGE_FAILING,
        Standing.EPOCH_FAILING,
        Standing.STUCK,
    },
    Health.ENDED: {Standing.STOPPED, Standing.DRAINED, Standing.FINISHED},
    Health.DEAD: {Standing.FAILED, Standing.FENCED, Standing.KILLED, Standing.LOST, Standing.REFUSED},
}


@dataclass(frozen=True, slots=True)
class RunVerdict:
    """How a query is, since when, why, and what to do."""

    kind: Standing
    why: str
    next_step: str = ""
    since: str | None = None
    code: str | None = None
    """Of the error, if one is the reason."""
    generation: Generation | None = None

    @property
    def health(self) -> Health:
        return next(health for health, kinds in _HEALTH.items() if self.kind in kinds)

    @property
    def alive(self) -> bool:
        return self.health in (Health.WELL, Health.HELD_UP)


class Life(Enum):
    """What can be said about the driver's process from here."""

    ALIVE = "alive"
    GONE = "gone"
    UNKNOWN = "unknown"
    """It ran on another machine or in another container."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known of the newest run of a query. Troubles are those that nothing has ended since."""

    now_s: float
    generation: Generation | None = None
    """The newest that was claimed."""
    claimed_at: str | None = None
    started: QueryStarted | None = None
    stopped: QueryStopped | None = None
    life: Life = Life.UNKNOWN
    where: str = ""
    """Machine and process of the driver, for people."""
    last_sign: str | None = None
    last_sign_s: float | None = None
    alive: Alive | None = None
    epoch: EpochPublished | None = None
    heard: bool = False
    """Whether the sign of life is newer than the epoch."""
    refused: StartRefused | None = None
    """The last start, if it was refused."""
    source: SourceSlow | None = None
    commit: CommitSlow | None = None
    storage: StorageRetried | None = None
    failed: EpochFailed | None = None
    uncommitted: int = 0
    disk_full: bool = False
    has_checkpoint: bool = False


def judge(facts: RunFacts) -> RunVerdict:
    """The verdict on the newest run."""
    if facts.generation is None and facts.started is None and not facts.has_checkpoint:
        return RunVerdict(
            Standing.EMPTY, "no query has run on this folder", "name the folder that was given as checkpoint="
        )
    if facts.stopped is not None:
        return _ended(facts, facts.stopped)
    if facts.started is None and facts.generation is None:
        return RunVerdict(
            Standing.STOPPED,
            "the folder is a copy: a savepoint, or a checkpoint without its history",
            "start a query on it, or restore it with restore=",
        )
    if _is_dead(facts):
        return _silent(facts)
    return _troubled(facts) or _healthy(facts)


def _ended(facts: RunFacts, stopped: QueryStopped) -> RunVerdict:
    if facts.refused is not None:
        return _refused(facts, facts.refused)
    again = "start it again: it goes on from its last checkpoint"
    kind, why, next_step = {
        "stopped": (Standing.STOPPED, "it was asked to stop", again),
        "drained": (Standing.DRAINED, "it was asked to stop once nothing was in flight", again),
        "finished": (Standing.FINISHED, "its input was used up", "nothing; a start takes what has arrived since"),
        "failed": (Standing.FAILED, "it failed", again),
        "fenced": (Standing.FENCED, "another driver took over", "let the newer one run"),
    }[stopped.reason]
    why = f"{why}: {stopped.by}" if stopped.by else why
    code = None
    if stopped.error is not None:
        error = stopped.error
        code, next_step = error.code, error.next_step or next_step
        why = f"{error.seen}\nlikely cause: {error.cause}" if error.cause else error.seen
    return RunVerdict(kind, why, next_step, stopped.at, code, facts.generation)


def _refused(facts: RunFacts, refused: StartRefused) -> RunVerdict:
    error = refused.error
    why = f"its last start was refused: {error.seen}"
    why += f"\nlikely cause: {error.cause}" if error.cause else ""
    return RunVerdict(Standing.REFUSED, why, error.next_step, refused.at, error.code, facts.generation)


def _is_dead(facts: RunFacts) -> bool:
    if facts.life is Life.GONE:
        return True
    if facts.last_sign_s is None:
        return False
    every_s = SIGNLESS_S if facts.alive is None else facts.alive.every_s
    return facts.now_s - facts.last_sign_s > SIGNS_MISSED * every_s + SIGNS_LATE_S


def _silent(facts: RunFacts) -> RunVerdict:
    """A driver that died without a word."""
    if facts.refused is not None:
        return _refused(facts, facts.refused)
    doing = _doing(facts)
    if facts.disk_full:
        why = f"the disk of the folder is full, so {facts.where} could not even write down why it ended{doing}"
        return RunVerdict(
            Standing.FAILED,
            why,
            "free space, then start again: nothing published was lost",
            facts.last_sign,
            "PEN-032",
            facts.generation,
        )
    again = "start it again: it goes on from its last checkpoint, nothing published was lost"
    if facts.life is Life.GONE:
        why = (
            f"{facts.where} is gone and said nothing: SIGKILL, SIGTERM, the kernel for want of memory, "
            f"or a restart of the machine{doing}"
        )
        next_step = f"look into the machine's log (dmesg, journalctl, kubectl describe pod), then {again}"
        return RunVerdict(Standing.KILLED, why, next_step, facts.last_sign, None, facts.generation)
    lives = ", though its process lives" if facts.life is Life.ALIVE else ""
    every = "" if facts.alive is None else f"; one is due every {facts.alive.every_s:g} s"
    why = f"{facts.where or 'its driver'} has given no sign of life{lives}{every}{doing}"
    next_step = f"look at that machine and process; if it is gone, {again}. A driver that still lives is fenced off"
    return RunVerdict(Standing.LOST, why, next_step, facts.last_sign, None, facts.generation)


def _doing(facts: RunFacts) -> str:
    """What a driver did when it was last heard of."""
    alive = facts.alive
    if facts.failed is not None:
        return f"; before that, checkpoint {facts.failed.checkpoint} failed: {facts.failed.message}"
    if alive is not None and alive.stage is not None:
        return f"; it was last seen in stage {alive.stage}"
    if alive is not None and alive.waiting_for is not None:
        return f"; it was last seen waiting for {alive.waiting_for}"
    return ""


def _troubled(facts: RunFacts) -> RunVerdict | None:
    """Alive, and something does not answer or fails: what holds everything up comes first."""
    generation = facts.generation
    if facts.disk_full:
        why = f"the disk of the folder is full, so {facts.where or 'its driver'} can neither publish nor tell"
        next_step = "free space: the query tries again until storage_timeout, nothing is lost"
        return RunVerdict(Standing.STORAGE_FAILING, why, next_step, facts.last_sign, "PEN-032", generation)
    if (storage := facts.storage) is not None:
        why = f"the checkpoint's storage failed {storage.attempt} times to {storage.what}: {storage.message}"
        next_step = "make the storage answer: the query tries again until storage_timeout, nothing is lost"
        return RunVerdict(Standing.STORAGE_FAILING, why, next_step, storage.at, "PEN-032", generation)
    if (failed := facts.failed) is not None:
        why = f"attempt {failed.attempt} at checkpoint {failed.checkpoint} failed and is repeated: {failed.message}"
        next_step = "look at the message and at Spark's log; after epoch_retries attempts the query ends"
        return RunVerdict(Standing.EPOCH_FAILING, why, next_step, failed.at, failed.code, generation)
    if (commit := facts.commit) is not None:
        of = f" of checkpoints {commit.first} to {commit.last}" if commit.last else ""
        why = f"the {commit.what}{of} at sink {commit.sink} has not returned for {commit.waited_s:.0f} s and more"
        next_step = "look at the table's storage and catalog; epochs go on until max_uncommitted, nothing is lost"
        return RunVerdict(Standing.COMMIT_SLOW, why, next_step, commit.at, None, generation)
    if (source := facts.source) is not None:
        why = f"source {source.source} has not answered for {source.waited_s:.0f} s and more: {source.what}"
        next_step = "look at the source (is the broker or folder reachable?); the query goes on when it answers"
        return RunVerdict(Standing.SOURCE_SILENT, why, next_step, source.at, None, generation)
    return None


def _healthy(facts: RunFacts) -> RunVerdict:
    alive, epoch, generation = facts.alive, facts.epoch, facts.generation
    if epoch is None:
        since = facts.claimed_at if facts.started is None else facts.started.at
        if facts.started is None:
            return RunVerdict(Standing.STARTING, "a driver is taking over", since=since, generation=generation)
        if alive is None or alive.waiting_for is None:
            return RunVerdict(
                Standing.STARTING, "its first epoch has not ended yet", since=since, generation=generation
            )
    if facts.heard and alive is not None and alive.waiting_for is not None:
        why = f"it waits for {alive.waiting_for}"
        return RunVerdict(Standing.WAITING, why, since=None if epoch is None else epoch.at, generation=generation)
    assert epoch is not None
    if facts.heard and alive is not None and alive.stage is not None and alive.running_s > _long_s(epoch):
        usual = f"the last epoch took {epoch.duration_s:.1f} s"
        why = f"the job of stage {alive.stage} runs for {alive.running_s:.0f} s, {usual}"
        next_step = (
            "look at Spark's UI for tasks that do not end; epoch_timeout makes Penstock name the function and retry"
        )
        return RunVerdict(Standing.STUCK, why, next_step, epoch.at, None, generation)
    why = f"epoch {epoch.checkpoint} took {epoch.duration_s:.1f} s"
    started = None if facts.started is None else facts.started.at
    return RunVerdict(Standing.RUNNING, why, since=started, generation=generation)


STUCK_S = 60.0
STUCK_TIMES = 10.0
"""A job that takes so many times as long as the last epoch, and a minute at least, is worth a look."""


def _long_s(epoch: EpochPublished) -> float:
    return max(STUCK_S, STUCK_TIMES * epoch.duration_s)
