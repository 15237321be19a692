"""The handle of a running query: progress, rescaling, savepoints, stopping, and the error that ended it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from html import escape
from typing import Literal, overload

from penstock.engine.background import in_background, wait_for
from penstock.engine.ending import other_process, query_ended
from penstock.engine.feed import source_progress
from penstock.engine.savepoint import Savepoint, SavepointJob
from penstock.engine.showing import follow, follow_beside
from penstock.engine.sigterm import Terminated
from penstock.engine.supervisor import Supervisor
from penstock.errors import PenstockError
from penstock.observe.events import Committed, EpochPublished, SourceProgress
from penstock.observe.folder import Folder
from penstock.observe.model import QueryView
from penstock.observe.notebook.panel import panel
from penstock.observe.notebook.screen import screen_here
from penstock.plain import plain_methods
from penstock.protocol.ids import Generation
from penstock.protocol.manifest import Manifest
from penstock.text import printable, redacted
from penstock.units import Duration, parse_duration


@plain_methods
class Query:
    """A running query. Its methods may be called from any thread."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._folder: Folder | None = None

    def __repr__(self) -> str:
        """Shows only what is known without reading the storage."""
        runner, error = self._supervisor.runner, self.exception()
        how = "active" if self.is_active else "ended" if error is None else f"ended with {error.code}"
        return (
            f"<Query {self.name!r}, {how}, checkpoints in {redacted(runner.checkpoints.store.url)}, "
            f"generation {runner.generation}, last checkpoint {runner.manifest.checkpoint}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        try:
            return panel(self._look())
        except PenstockError:
            return f"<pre>{escape(printable(repr(self)))}</pre>"

    def _look(self) -> QueryView:
        if self._folder is None:
            self._folder = Folder(self._supervisor.runner.checkpoints.store)
        return self._folder.look()

    def watch(self, every: Duration = "1 s", *, wait: bool = True) -> None:
        """Shows the query live: as a panel in a notebook, as lines in a terminal.

        Returns when the query has ended, or after Ctrl-C, which ends the view and not the query. With ``wait=False`` it
        returns at once and a notebook's panel goes on by itself.

        Raises: `ConfigError` for a duration that is none; `OtherProcess` in a forked child.
        """
        self._require_process("watch")
        every_s = parse_duration(every)
        screen, ended = screen_here(), self._supervisor.ended
        if not wait:
            follow_beside(self._look, screen, every_s, ended)
            return
        with suppress(KeyboardInterrupt):
            follow(self._look, screen, every_s, ended)

    @property
    def name(self) -> str:
        return self._supervisor.name

    @property
    def is_active(self) -> bool:
        """Whether the query still runs."""
        return not self._supervisor.ended.is_set()

    @property
    def generation(self) -> Generation:
        """The number of this start on its checkpoint folder."""
        return self._supervisor.runner.generation

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        return self._supervisor.waiting_for

    def progress(self) -> EpochPublished | None:
        """The last epoch of this run."""
        return self._supervisor.history.last_epoch

    def sources(self) -> tuple[SourceProgress, ...]:
        """How far each source was read, and how far it is behind: offsets as Structured Streaming tells them."""
        return source_progress(self._supervisor.feed)

    def checkpoints(self) -> list[int]:
        """Ids of the checkpoints that can be restored."""
        return [int(number) for number in self._supervisor.runner.checkpoints.ids()]

    def commits(self) -> list[Committed]:
        """The commit log of the folder, of earlier runs too: which table snapshot holds which checkpoints."""
        return self._supervisor.history.commits()

    def manifest(self) -> Manifest:
        """The newest checkpoint."""
        return self._supervisor.runner.manifest

    def exception(self) -> PenstockError | None:
        """The error that ended the query, if one did."""
        return self._supervisor.loop.error

    def rescale(self, parallelism: int | Mapping[str, int]) -> None:
        """Changes the number of subtasks from the next epoch on, without a restart: of all operators, or by name.

        A micro-batch that Spark has already planned still runs with the old number.

        Autoscaling leaves the stages of these operators alone until the next start.

        Raises: `ConfigError`; `QueryEnded`.
        """
        self._require_process("rescale")
        if not self.is_active:
            raise query_ended(self.name, f"rescale({parallelism!r:.100})")
        self._supervisor.rescale(parallelism)

    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[True] = True) -> Savepoint: ...
    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[False]) -> SavepointJob: ...
    def savepoint(self, path: str | os.PathLike[str], *, wait: bool = True) -> Savepoint | SavepointJob:
        """Copies the newest checkpoint, with its in-flight data, into a new folder while epochs go on.

        With ``wait=False`` it returns a handle at once; its ``result()`` waits.

        Raises: `SavepointRefused` for a folder that holds something; `StorageFailed` and others when it fails, and
        then nothing is under that name.
        """
        self._require_process("savepoint")
        job = self._supervisor.savepoints.begin(os.fspath(path))
        return job.result() if wait else job

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits for the end; True when the query ended in time.

        Ctrl-C stops the query after its running epoch, a second one at once. SIGTERM does the same.

        Raises: the `PenstockError` that ended the query; `KeyboardInterrupt` after Ctrl-C; `SystemExit` with code 143
        after SIGTERM.
        """
        self._require_process("await_termination")
        try:
            ended = wait_for(self._supervisor.ended, timeout)
        except (KeyboardInterrupt, Terminated) as signalled:
            self._supervisor.stop_signalled(signalled)
            raise
        error = self.exception()
        if ended and error is not None:
            raise error
        return ended

    def stop(
        self,
        *,
        drain: bool = False,
        savepoint: str | os.PathLike[str] | None = None,
        timeout: float | None = None,
    ) -> Savepoint | None:
        """Ends the query after its running epoch; with `drain`, after everything in flight was processed.

        With `savepoint`, the last checkpoint is copied there once everything was committed, also when the query has
        ended already, or is ending with another savepoint or without one. A listener may call it:
        then it requests the end and returns at once. `timeout` is how many seconds it waits for the end.

        Raises: the `PenstockError` that ended the query before; that of the savepoint, the query has stopped then;
        `StopTimeout`, and then the query ends as soon as it can: call `stop` again to wait on; `OtherProcess` in a
        forked child.
        """
        self._require_process("stop")
        supervisor = self._supervisor
        place = None if savepoint is None else os.fspath(savepoint)
        supervisor.request_stop(drain=drain, savepoint=place)
        if in_background():
            return None  # A listener runs in our own thread, so waiting for that thread would never end.
        if not wait_for(supervisor.ended, timeout):
            raise supervisor.not_ended(timeout or 0.0)
        error = self.exception()
        if error is not None:
            raise error
        match supervisor.stopped_with:
            case PenstockError() as failure:
                raise failure
            case SavepointJob() as job if place in (None, job.path):
                return job.result()
            case _ if place is not None:
                return supervisor.savepoints.begin(place).result()
            case _:
                return None

    def _require_process(self, method: str) -> None:
        """Raises: `OtherProcess`: locks may be held and events are never set where the query's threads are not."""
        if os.getpid() != self._supervisor.process:
            raise other_process(self.name, method, self._supervisor.process)
