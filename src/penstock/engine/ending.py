"""Ends the parts of a query one after another. Each has a limit and a name, so no wait is endless or silent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence

from penstock.engine.background import Pause, Spawn
from penstock.engine.commitevents import CommitCall
from penstock.engine.feed import Feed
from penstock.errors import CommitFailed, OtherProcess, QueryEnded, StopTimeout

_log = logging.getLogger("penstock")

PART_S = 60.0
"""The limit for a part that should end at once. The next driver finishes what it leaves undone."""
COPYING_S = 600.0
"""The limit for a savepoint without a copied file."""


class Ending:
    """The part that is ending right now, for messages to waiting threads."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self.waits_for: str | None = None

    def feed(self, feed: Feed) -> None:
        """Stops the feed in a thread of its own, because Spark may take any time."""

        def stop() -> Pause:
            feed.stop()
            return None

        def failed(error: BaseException) -> None:
            _log.warning("Structured Streaming did not stop cleanly: %s", error)

        self.waits_for = "Structured Streaming, which was asked to stop"
        stopping = self._spawn("penstock-feed-close", stop, failed)
        stopping.start()
        if not stopping.join(PART_S):
            _log.warning("Structured Streaming has not stopped within %g s; the query ends without it", PART_S)

    def part(self, name: str, finish: Callable[[float], bool], limit_s: float = PART_S) -> None:
        """`finish` gets the limit, and says whether it kept it."""
        self.waits_for = name
        if not finish(limit_s):
            _log.warning("%s has not ended within %g s; the query ends without it", name, limit_s)


def described(busy: CommitCall, now_s: float) -> str:
    """
    >>> described(CommitCall("totals", "commit", 3, 5, 10.0), 22.0)
    'the commit of checkpoints 3 to 5 at sink totals, for 12 s'
    """
    of = f" of checkpoints {busy.first} to {busy.last}" if busy.last else ""
    return f"the {busy.what}{of} at sink {busy.sink}, for {now_s - busy.since_s:.0f} s"


def not_ended(query: str, waited_s: float, waits_for: str) -> StopTimeout:
    return StopTimeout(
        f"{query} was asked to stop, and after {waited_s:g} s waits for {waits_for}",
        cause="whatever it waits for is slow, or does not answer",
        next_step="call stop again to wait longer, or end the program: nothing published is lost,"
        " and a restart commits what is in the checkpoint",
        query=query,
    )


def query_ended(query: str, call: str) -> QueryEnded:
    return QueryEnded(
        f"{call} of {query}, which has ended",
        cause="it was stopped, it failed (query.exception() tells), or its input ended",
        next_step="start it again with another parallelism: start(checkpoint=…, parallelism=…)",
        query=query,
    )


def other_process(query: str, method: str, process: int) -> OtherProcess:
    return OtherProcess(
        f"{method}() was called in process {os.getpid()}, {query} runs in process {process}",
        cause="os.fork, or multiprocessing with the start method fork, copied the handle, but no thread of the query",
        next_step=f"call it in process {process}; a child that wants the query to stop has to tell its parent so",
        query=query,
    )


def given_up(busy: Sequence[CommitCall], now_s: float) -> CommitFailed:
    """The error of a query that ended without its last commits."""
    return CommitFailed(
        "; ".join(described(one, now_s) for one in busy) + ": no answer (commit_timeout)",
        cause="the table's storage or catalog does not answer, or a commit listener hangs",
        next_step="start again once it answers: the committables are in the checkpoint, the table is asked what it has",
        sink=", ".join(one.sink for one in busy),
    )
