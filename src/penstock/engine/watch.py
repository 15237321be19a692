"""Looks after whatever may hang: a job whose subtasks do not get on, a commit or a source that does not answer.

A job without a sign of life is cancelled; `verdict` then tells the loop why its job ended. A commit cannot be taken
back: it is told, and epochs go on until `max_uncommitted`. A source is told, too. Looking costs a question to Spark's
streaming query, and more once a job has lasted longer than `epoch_timeout`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.engine.background import Background, Pause, Spawn
from penstock.engine.commitevents import CommitCall
from penstock.engine.epochs import EpochRunner
from penstock.engine.runningjob import RunningJob
from penstock.engine.sourcewatch import SourceWatch
from penstock.errors import MissingFile, PenstockError, SubtaskHung
from penstock.protocol.hung import Stuck, belongs_to, decode_stuck, is_over, tells_why
from penstock.protocol.layout import HUNG

_log = logging.getLogger("penstock")

LOOK_S_MAX = 5.0
LOOKS = 4
"""So often within the shortest limit it looks."""
SILENT = 3
"""After this many times the limit the driver gives up a job without any sign from a subtask or a task of Spark."""
STACK_LINES_MAX = 12


@dataclass(slots=True)
class _Signs:
    """What was last seen of a job, and when it changed."""

    job: RunningJob
    seen: tuple[object, ...]
    changed_s: float


class Watch:
    """One per query; `step` looks once."""

    def __init__(
        self,
        runner: EpochRunner,
        commits: Callable[[], Sequence[CommitCall]],
        source: SourceWatch,
        *,
        epoch_timeout_s: float | None,
        commit_timeout_s: float | None,
        slow_commit: Callable[[CommitCall, float], None],
        spawn: Spawn,
    ) -> None:
        self._runner, self._commits, self._slow_commit = runner, commits, slow_commit
        self.source = source
        self._job_s, self._commit_s = epoch_timeout_s, commit_timeout_s
        limits = [limit for limit in (epoch_timeout_s, commit_timeout_s, source.limit_s) if limit is not None]
        self._every_s = min(LOOK_S_MAX, *(limit / LOOKS for limit in limits)) if limits else None
        self._signs: _Signs | None = None
        self._verdict: tuple[RunningJob, SubtaskHung] | None = None
        self._given_up: RunningJob | None = None
        self._told: set[CommitCall] = set()
        self._ending = False
        self._background: Background | None = None
        if limits:
            self._background = spawn("penstock-watch", self.step, self._die)

    def start(self) -> None:
        if self._background is not None:
            self._background.start()

    def finish(self, timeout_s: float) -> bool:
        self._ending = True
        if self._background is None:
            return True
        self._background.wake()
        return self._background.join(timeout_s)

    def verdict(self) -> SubtaskHung | None:
        """Why the job that has just failed was cancelled here, if it was; asked once.

        One that was judged may have ended well before it could be cancelled: what fails after it, did not hang.
        """
        verdict, self._verdict = self._verdict, None
        return None if verdict is None or verdict[0] is not self._runner.jobs.broken else verdict[1]

    def step(self) -> Pause:
        if self._ending:
            return None
        try:
            self.source.look()
            self._look_at_job()
            self._look_at_commits()
        except PenstockError as error:  # the storage may be out of reach: the next look may see more
            _log.warning("cannot see whether the running epoch gets on: %s", error)
        return self._every_s

    def _die(self, error: BaseException) -> None:
        _log.warning("the watch over the running epoch ended, a hung subtask goes unnoticed: %s", error)

    # -- the job ---------------------------------------------------------------------------------------------------

    def _look_at_job(self) -> None:
        job, limit_s, now_s = self._runner.jobs.running, self._job_s, self._runner.clock()
        if job is not None and self._given_up is not None and job is not self._given_up:
            self._forget_signs(self._given_up)
        if job is None or limit_s is None or now_s - job.started_s <= limit_s + (job.budget_s or 0.0):
            return
        if self._verdict is not None and self._verdict[0] is job:
            self._runner.jobs.cancel(job, self._runner.cluster)  # once more: it may have been between two jobs of Spark
            return
        store = self._runner.checkpoints.store
        paths = [entry.path for entry in store.list(HUNG)]
        mine = [path for path in paths if belongs_to(path, job.checkpoint, job.generation)]
        for path in filter(tells_why, mine):
            stuck = self._read(path)
            if stuck is not None and stuck.stage == job.stage:
                store.delete([path for path in paths if path in mine or is_over(path, job.checkpoint, job.generation)])
                self._give_up(job, _hung(job, stuck))
                return
        activity = self._runner.cluster.activity()
        signs = (activity, *mine)
        if self._signs is None or self._signs.job is not job or self._signs.seen != signs:
            self._signs = _Signs(job, signs, now_s)
        elif now_s - self._signs.changed_s > SILENT * limit_s:
            self._give_up(job, _silent(job, now_s - self._signs.changed_s, activity))

    def _forget_signs(self, job: RunningJob) -> None:
        """Attempts of a job that was given up may have left more: they must not speak for the next try."""
        store = self._runner.checkpoints.store
        paths = [entry.path for entry in store.list(HUNG)]
        store.delete([path for path in paths if belongs_to(path, job.checkpoint, job.generation)])
        self._given_up = None

    def _read(self, path: str) -> Stuck | None:
        try:
            return decode_stuck(self._runner.checkpoints.store.read(path))
        except MissingFile:
            return None

    def _give_up(self, job: RunningJob, verdict: SubtaskHung) -> None:
        self._verdict, self._given_up = (job, verdict), job
        self._runner.jobs.cancel(job, self._runner.cluster)

    # -- commits ---------------------------------------------------------------------------------------------------

    def _look_at_commits(self) -> None:
        if self._commit_s is None:
            return
        now_s = self._runner.clock()
        busy = set(self._commits())
        self._told &= busy
        for one in busy - self._told:
            if now_s - one.since_s > self._commit_s:
                self._told.add(one)
                self._slow_commit(one, now_s - one.since_s)


def _hung(job: RunningJob, stuck: Stuck) -> SubtaskHung:
    where = f"stage {stuck.stage}, subtask {stuck.subtask}, on {stuck.host} (process {stuck.pid})"
    lines = [f"{where} has not finished a step for {stuck.silent_s:.0f} s in checkpoint {job.checkpoint}"]
    if stuck.operator is not None:
        lines.append(f"  operator:     {stuck.operator}")
    if stuck.function is not None:
        lines.append(f"  function:     {stuck.function}")
    lines += [f"  {name + ':':13} {value}" for name, value in stuck.values.items()]
    stack = "\n".join(stuck.stack).splitlines()[-STACK_LINES_MAX:]
    lines += ["  its stack, the innermost call last:", *(f"  {line}" for line in stack)]
    return SubtaskHung(
        "\n".join(lines),
        cause="a function of the pipeline, or a library that it calls, waits without a limit of its own",
        next_step="give that call a timeout, or raise epoch_timeout if it may take so long;"
        " nothing published was lost, start again to go on",
        stage=stuck.stage,
        subtask=stuck.subtask,
        operator=stuck.operator or "",
        host=stuck.host,
    )


def _silent(job: RunningJob, silent_s: float, activity: str) -> SubtaskHung:
    return SubtaskHung(
        f"stage {job.stage}, checkpoint {job.checkpoint}: no task has ended, read or said anything for {silent_s:.0f} s"
        f" ({activity})",
        cause="Spark has no executor for its tasks, a source does not answer, or a worker cannot say that it hangs",
        next_step="look at the tasks in Spark's UI or log, or raise epoch_timeout; nothing published was lost",
        stage=job.stage,
    )
