"""The handle of a running query: progress, rescaling, stopping, and the error that ended it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Literal, overload

import msgspec

from penstock.engine.active import remember
from penstock.engine.autoscale import Autoscaler
from penstock.engine.background import Pause, Spawn, wait_for
from penstock.engine.collect import Collector
from penstock.engine.commitevents import CommitCall, slow_event
from penstock.engine.commits import CommitCoordinator
from penstock.engine.ending import COPYING_S, Ending, described, given_up, not_ended, other_process
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.engine.feed import Demand, Feed, SourceCancelled, SourceContended, SourceStopped, source_stopped
from penstock.engine.history import History, epoch_event, savepoint_event, utc_now
from penstock.engine.loop import EpochLoop, LoopEvents
from penstock.engine.options import Config, subtasks_asked
from penstock.engine.savepoint import Savepoint, SavepointJob, Savepoints
from penstock.engine.sourcewatch import SourceWatch
from penstock.engine.upkeep import Upkeeping
from penstock.engine.watch import Watch
from penstock.errors import Fenced, PenstockError, StageFailed, StopTimeout, StorageFailed
from penstock.graph.pipeline import Pipeline
from penstock.observe.events import (
    Committed,
    EpochFailed,
    EpochPublished,
    QueryStopped,
    Rescaled,
    StopReason,
    StorageRetried,
)
from penstock.protocol.epoch import NO_INPUT
from penstock.protocol.ids import CheckpointId, Generation
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store

_log = logging.getLogger("penstock")

CONTENDED_MAX = 5
"""A driver that was replaced may write one entry of each of the source's logs before it notices."""
EXIT_S = 60.0
"""A program that ends waits so long for its running epoch, then cancels it and waits once more."""


class Query:
    """A running query. Its methods may be called from any thread."""

    def __init__(
        self,
        *,
        name: str,
        pipeline: Pipeline,
        config: Config,
        runner: EpochRunner,
        feed: Feed,
        history: History,
        open_target: Callable[[str], Store],
        spawn: Spawn,
    ) -> None:
        self.name = name
        self._savepoints = Savepoints(runner.checkpoints, self.manifest, open_target, spawn, self._on_savepoint)
        self._last_savepoint: str | None = None
        self._stopped_with: SavepointJob | PenstockError | None = None
        self._autoscaler: Autoscaler | None = None
        if config.autoscale is not None:
            self._autoscaler = Autoscaler(config.autoscale, lambda: runner.cluster.slots, runner.clock)
        self._pipeline, self._config, self._runner = pipeline, config, runner
        self._feed, self._history = feed, history
        self._contended = 0
        self._stopping = False
        self._drained = False
        self._ended = threading.Event()
        self._process = os.getpid()
        self._ending = Ending(spawn)
        self._loop: EpochLoop
        self._watch: Watch
        self._coordinator: CommitCoordinator
        self._collector: Collector
        self._upkeep: Upkeeping

    # -- for users -----------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    @property
    def generation(self) -> Generation:
        return self._runner.generation

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        why = self._loop.waiting_for
        if why == NO_INPUT:
            return self._watch.source.silent() or why
        busy = self._coordinator.busy() if why is not None and "commit" in why else []
        return "; ".join([why, *(described(one, self._runner.clock()) for one in busy)]) if why is not None else None

    def progress(self) -> EpochPublished | None:
        """The last epoch of this run."""
        return self._history.last_epoch

    def checkpoints(self) -> list[int]:
        """Ids of the checkpoints that can be restored."""
        return [int(number) for number in self._runner.checkpoints.ids()]

    def commits(self) -> list[Committed]:
        """The commit log of the folder, of earlier runs too: which table snapshot holds which checkpoints."""
        return self._history.commits()

    def manifest(self) -> Manifest:
        """The newest checkpoint."""
        return self._runner.manifest

    def exception(self) -> PenstockError | None:
        """The error that ended the query, if one did."""
        return self._loop.error

    def rescale(self, parallelism: int | Mapping[str, int]) -> None:
        """Changes the number of subtasks from the next epoch on, without a restart: of all operators, or by name.

        A micro-batch that is on offer already is still taken with the old number.

        Autoscaling leaves the stages of these operators alone until the next start.

        Raises: `ConfigError`.
        """
        self._require_process("rescale")
        wanted = subtasks_asked(parallelism, self._pipeline.stage_of(), self._runner.manifest.max_parallelism)
        if self._autoscaler is not None:
            self._autoscaler.leave_alone(wanted)
        for stage, count in wanted.items():
            old = self._runner.parallelism[stage]
            if old != count:
                self._history.record(Rescaled(at=utc_now(), stage=stage, old=old, new=count))
        self._loop.request_rescale(wanted)

    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[True] = True) -> Savepoint: ...
    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[False]) -> SavepointJob: ...
    def savepoint(self, path: str | os.PathLike[str], *, wait: bool = True) -> Savepoint | SavepointJob:
        """Copies the newest checkpoint, with what is in flight, into a new folder while epochs go on.

        With ``wait=False`` it returns at once; ``result()`` of what it returns waits.

        Raises: `SavepointRefused` for a folder that holds something; `StorageFailed` and others when it fails, and
        then nothing is under that name.
        """
        self._require_process("savepoint")
        job = self._savepoints.begin(os.fspath(path))
        return job.result() if wait else job

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits for the end; True when the query ended in time.

        Ctrl-C stops the query after its running epoch, a second one at once.

        Raises: the `PenstockError` that ended the query; `KeyboardInterrupt` after Ctrl-C.
        """
        self._require_process("await_termination")
        try:
            ended = wait_for(self._ended, timeout)
        except KeyboardInterrupt:
            self._stop_interrupted()
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

        With `savepoint`, the last checkpoint is copied there once everything was committed. Called from a listener it
        only asks for the end and returns at once. `timeout` is how many seconds it waits for the end.

        Raises: the `PenstockError` that ended the query before; that of the savepoint, the query has stopped then;
        `StopTimeout`, and then the query ends as soon as it can: call `stop` again to wait on; `OtherProcess` in a
        forked child.
        """
        self._require_process("stop")
        if savepoint is not None:
            self._savepoints.require_place(os.fspath(savepoint))
            self._last_savepoint = os.fspath(savepoint)
        self.request_stop(drain=drain)
        if threading.current_thread().name.startswith("penstock-"):
            return None  # called by a listener: waiting for our own thread would never end
        if not wait_for(self._ended, timeout):
            raise self._not_ended(timeout or 0.0)
        error = self.exception()
        if error is not None:
            raise error
        match self._stopped_with:
            case PenstockError() as failure:
                raise failure
            case SavepointJob() as job:
                return job.result()
            case None:
                return None

    # -- for the engine ------------------------------------------------------------------------------------------

    @property
    def loop(self) -> EpochLoop:
        return self._loop

    def begin(self, coordinator: CommitCoordinator, collector: Collector, upkeep: Upkeeping, spawn: Spawn) -> None:
        """Starts everything that runs in the background, the feed last."""
        self._coordinator, self._collector, self._upkeep = coordinator, collector, upkeep
        self._runner.discard = coordinator.discard
        events = LoopEvents(
            published=self._on_published,
            failed=self._on_failed,
            storage_failed=self._on_storage_failed,
            waiting=self._on_waiting,
        )
        self._watch = Watch(
            self._runner,
            coordinator.busy,
            self._source_watch(),
            epoch_timeout_s=self._config.epoch_timeout,
            commit_timeout_s=self._config.commit_timeout,
            slow_commit=self._on_slow_commit,
            spawn=spawn,
        )
        self._loop = EpochLoop(self._runner, coordinator, self._config, events, self._watch, spawn)
        collector.start(self._runner.manifest.checkpoint)
        collector.published(self._runner.manifest)
        coordinator.start()
        upkeep.start()
        self._watch.start()
        self._loop.start()
        spawn("penstock-query", self._close_at_end, self._on_closing_failure).start()
        try:
            self._start_feed()
        except Exception:
            self._loop.request_stop(drain=False)
            wait_for(self._ended)
            raise

    def _source_watch(self) -> SourceWatch:
        return SourceWatch(
            self._feed,
            [source.name for source in self._pipeline.sources],
            limit_s=self._config.source_timeout,
            clock=self._runner.clock,
            ending=lambda: self._loop.ended,
            record=self._history.record,
        )

    def _start_feed(self) -> None:
        pipeline, manifest = self._runner.pipeline, self._runner.manifest
        demand = Demand(pipeline.stages, manifest.max_parallelism, self._loop.wanted_parallelism)
        self._feed.start(self._loop.offer, self._loop.end_of_source, self._on_feed_failure, demand)

    def end_with_program(self) -> None:
        """A program that ends without `stop` ends its query after the running epoch, and not in the middle of it."""
        self._process = os.getpid()
        remember(self)
        atexit.register(self._stop_at_exit)

    def _require_process(self, method: str) -> None:
        """Raises: `OtherProcess`: locks may be held and events are never set where the query's threads are not."""
        if os.getpid() != self._process:
            raise other_process(self.name, method, self._process)

    def _stop_at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child has none of the threads that it would wait for, and the query is not its own
        self.request_stop(drain=False)
        if not wait_for(self._ended, EXIT_S):
            _log.warning("%s", self._not_ended(EXIT_S))
            self._runner.cluster.cancel()
            wait_for(self._ended, EXIT_S)

    def _stop_interrupted(self) -> None:
        """After Ctrl-C; Spark has cancelled the running job then. Another one while we wait ends the waiting."""
        try:
            self.request_stop(drain=False)
            _log.warning("%s stops after its running epoch; Ctrl-C once more stops it at once", self.name)
            wait_for(self._ended)
        except KeyboardInterrupt:
            atexit.unregister(self._stop_at_exit)
            self._runner.cluster.cancel()
            raise
        error = self.exception()
        if error is not None:
            _log.warning("%s", error)

    def _not_ended(self, waited_s: float) -> StopTimeout:
        return not_ended(self.name, waited_s, self._waits_for())

    def _waits_for(self) -> str:
        """Who keeps the query from ending."""
        now_s, job = self._runner.clock(), self._runner.running
        waits = [described(busy, now_s) for busy in self._coordinator.busy()]
        if self._ending.waits_for is not None:
            return "; ".join([self._ending.waits_for, *waits])
        if job is not None:
            running = f"the job of stage {job.stage} for checkpoint {job.checkpoint}"
            waits.insert(0, f"{running}, which runs for {now_s - job.started_s:.0f} s")
        elif self._loop.waiting_for is not None:
            waits.insert(0, self._loop.waiting_for)
        rows = self._runner.manifest.rows_in_flight
        if self._drained and rows:
            waits.append(f"{rows} rows in flight to be processed")
        return "; ".join(waits) or "the running epoch"

    def request_stop(self, *, drain: bool) -> None:
        """Asks for the end and returns at once."""
        self._drained = drain
        self._stopping = True
        self._loop.request_stop(drain=drain)

    def wake(self) -> None:
        self._loop.wake()

    def fail(self, error: PenstockError) -> None:
        self._loop.fail(self._loop.reason(error))

    def on_collector_failure(self, error: BaseException) -> None:
        _log.warning("files that nobody needs could not be removed: %s", error)

    def pinned_files(self) -> frozenset[str]:
        """Files that the collector must leave, because a savepoint is being copied from them."""
        return self._savepoints.pins.files()

    def _on_published(self, result: EpochResult) -> None:
        said, changes = ({}, []) if self._autoscaler is None else self._autoscaler.observe(result)
        scaling = dict(said)
        self._history.record(msgspec.structs.replace(epoch_event(result), scaling=scaling))
        self._collector.published(result.manifest)
        for change in changes:
            self._history.record(
                Rescaled(at=utc_now(), stage=change.stage, old=change.old, new=change.new, reason=change.why)
            )
        if changes:
            self._loop.request_rescale({change.stage: change.new for change in changes})

    def _on_savepoint(self, job: SavepointJob) -> None:
        self._history.record(savepoint_event(job))

    def _on_failed(self, checkpoint: CheckpointId, error: Exception, attempt: int) -> None:
        code = error.code if isinstance(error, PenstockError) else StageFailed.code
        self._history.record(
            EpochFailed(at=utc_now(), checkpoint=checkpoint, attempt=attempt, code=code, message=str(error))
        )

    def _on_storage_failed(self, what: str, error: StorageFailed, failures: int) -> None:
        _log.warning("%s: the storage failed to %s, trying again: %s", self.name, what, error.seen)
        self._history.record(StorageRetried(at=utc_now(), what=what, attempt=failures, message=str(error)))

    def _on_slow_commit(self, busy: CommitCall, waited_s: float) -> None:
        _log.warning("%s waits for %s", self.name, described(busy, busy.since_s + waited_s))
        self._history.record(slow_event(busy, waited_s))

    def _on_waiting(self, why: str) -> None:
        _log.debug("%s waits: %s", self.name, why)

    def _on_feed_failure(self, error: BaseException) -> None:
        if self._stopping or self._loop.error is not None:
            self._loop.end_of_source()
        elif isinstance(error, SourceStopped):
            self._stop_with_source()
        elif isinstance(error, SourceContended | SourceCancelled) and self._contended < CONTENDED_MAX:
            self._contended += 1
            self._read_again(error)
        else:
            self.fail(error if isinstance(error, PenstockError) else source_stopped(error))

    def _stop_with_source(self) -> None:
        """Stops, unless it is this driver that was replaced: Spark stops the reading of one that ran in its session."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
        except PenstockError as error:
            self.fail(error)
        else:
            _log.warning("%s stops: Spark's streaming query was stopped, not by query.stop(); start again", self.name)
            self.request_stop(drain=False)

    def _read_again(self, why: SourceContended | SourceCancelled) -> None:
        """Goes on from what the log says, unless it is this driver that was replaced."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
            seen = "another streaming query wrote to source/ at the same moment"
            if isinstance(why, SourceCancelled):
                seen = "somebody cancelled the job that reads the source"
            _log.warning("%s, reading again: %s", seen, why)
            self._start_feed()
        except Exception as error:
            self.fail(error if isinstance(error, PenstockError) else source_stopped(error))

    def _close_at_end(self) -> Pause:
        """One step: waits until the loop has ended for whatever reason, then ends everything else."""
        self._loop.join()
        ending = self._ending
        ending.feed(self._feed)
        ending.part("the upkeep of tables", self._upkeep.finish)
        ending.waits_for = "the last commits"
        busy = self._coordinator.finish(self._config.commit_timeout)
        if busy:
            self._loop.fail(given_up(busy, self._runner.clock()))
        ending.part("the watch over jobs", self._watch.finish)
        if self._last_savepoint is not None and self._loop.error is None:
            try:
                self._stopped_with = self._savepoints.begin(self._last_savepoint)
            except PenstockError as failure:
                self._stopped_with = failure
        ending.part("the savepoint", self._savepoints.finish, COPYING_S)
        ending.part("the removal of old files", self._collector.finish)
        error = self._loop.error
        self._history.record(
            QueryStopped(at=utc_now(), reason=self._reason(error), error=None if error is None else error.to_report())
        )
        atexit.unregister(self._stop_at_exit)
        self._ended.set()
        return None

    def _on_closing_failure(self, error: BaseException) -> None:
        self._loop.fail(PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock"))
        self._ended.set()

    def _reason(self, error: PenstockError | None) -> StopReason:
        if isinstance(error, Fenced):
            return "fenced"
        if error is not None:
            return "failed"
        if not self._stopping:
            return "finished"
        return "drained" if self._drained else "stopped"
