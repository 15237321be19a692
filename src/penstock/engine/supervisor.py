"""Runs the parts of one query: connects them in one phase, starts them, handles their events, and ends them.

`Query` is the handle that users hold; everything behind it is here.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from penstock.engine.autoscale import Autoscaler
from penstock.engine.background import Pause, Spawn, wait_for
from penstock.engine.collect import Collector
from penstock.engine.commitevents import CommitCall, CommitEvents, slow_event
from penstock.engine.commits import CommitCoordinator
from penstock.engine.ending import COPYING_S, Ending, described, given_up, not_ended
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.engine.feed import (
    Demand,
    Feed,
    Replans,
    SourceCancelled,
    SourceContended,
    SourceStopped,
    TellsLosses,
    source_stopped,
)
from penstock.engine.heldsignals import signals_held
from penstock.engine.history import History, epoch_event, savepoint_event, utc_now
from penstock.engine.latewatch import LateWatch, late_rows
from penstock.engine.loop import EpochLoop, LoopEvents
from penstock.engine.options import Config, subtasks_asked
from penstock.engine.savepoint import SavepointJob, Savepoints
from penstock.engine.sigterm import Terminated
from penstock.engine.sourcewatch import SourceWatch
from penstock.engine.upkeep import Upkeeping
from penstock.engine.watch import Watch
from penstock.errors import Fenced, PenstockError, StageFailed, StopTimeout, StorageFailed
from penstock.observe.events import (
    Committed,
    EpochFailed,
    QueryStopped,
    Rescaled,
    SourceLost,
    StopReason,
    StorageRetried,
)
from penstock.protocol.epoch import NO_INPUT
from penstock.protocol.ids import CheckpointId
from penstock.protocol.sourceloss import SourceLoss
from penstock.store.base import Store

_log = logging.getLogger("penstock")

CONTENDED_MAX = 5
"""A driver that was replaced may write one entry of each of the source's logs before it notices."""
EXIT_S = 60.0
"""How long a program that ends waits for its running epoch. Then it cancels the epoch and waits once more."""


@dataclass(frozen=True, slots=True)
class Makers:
    """How to make the parts that depend on each other and on the supervisor."""

    coordinator: Callable[[CommitEvents], CommitCoordinator]
    upkeep: Callable[[CommitCoordinator], Upkeeping]
    open_target: Callable[[str], Store]
    """Opens the folder of a savepoint."""


class Supervisor:
    """One per query. Its parts are made before any of them runs; `start` starts them, the feed last."""

    def __init__(
        self,
        *,
        name: str,
        config: Config,
        runner: EpochRunner,
        feed: Feed,
        history: History,
        makers: Makers,
        spawn: Spawn,
    ) -> None:
        self.name, self.config, self.runner, self.feed, self.history = name, config, runner, feed, history
        self.ended = threading.Event()
        self.process = os.getpid()
        self.stopped_with: SavepointJob | PenstockError | None = None
        self._spawn, self._ending = spawn, Ending(spawn)
        self._contended = 0
        self._stopping = self._drained = False
        self._stopped_by: str | None = None
        self._at_end: list[Callable[[], None]] | None = []
        self._at_end_lock = threading.Lock()
        self.beside: list[tuple[str, Callable[[float], bool]]] = []
        """What ends right before the last word: its name, and how to end it within some seconds."""
        self._last_savepoint: str | None = None
        self._autoscaler = None
        if config.autoscale is not None:
            self._autoscaler = Autoscaler(config.autoscale, lambda: runner.cluster.slots, runner.clock)
        self.savepoints = Savepoints(
            runner.checkpoints, lambda: runner.manifest, makers.open_target, spawn, self._on_savepoint
        )
        self.coordinator = makers.coordinator(
            CommitEvents(
                committed=self._on_committed,
                retried=history.record,
                failed=self.fail,
            )
        )
        runner.discard = self.coordinator.discard
        self._upkeep = makers.upkeep(self.coordinator)
        self._collector = Collector(
            runner.checkpoints,
            runner.generation,
            config.retain,
            self._on_collector_failure,
            spawn,
            self.savepoints.pins.files,
            runner.clock,
        )
        self.watch = Watch(
            runner,
            self.coordinator.busy,
            self._source_watch(),
            epoch_timeout_s=config.epoch_timeout,
            commit_timeout_s=config.commit_timeout,
            slow_commit=self._on_slow_commit,
            spawn=spawn,
        )
        events = LoopEvents(
            published=self._on_published,
            failed=self._on_failed,
            storage_failed=self._on_storage_failed,
            waiting=self._on_waiting,
        )
        self._late = LateWatch(self.name, runner.clock, late_rows(runner.manifest.counters))
        self.loop = EpochLoop(runner, self.coordinator, config, events, self.watch, spawn)

    def start(self) -> None:
        """Raises: what the feed says when it cannot be started; `KeyboardInterrupt` and `Terminated` for a signal in
        the meantime. Everything else has ended by then."""
        try:
            with signals_held():
                self._start_parts()
        except (KeyboardInterrupt, Terminated) as signalled:
            self.stop_signalled(signalled)
            raise

    def _start_parts(self) -> None:
        self._collector.start(self.runner.manifest.checkpoint)
        self._collector.published(self.runner.manifest)
        self.coordinator.start()
        self._upkeep.start()
        self.watch.start()
        self.loop.start()
        self._spawn("penstock-query", self._close_at_end, self._on_closing_failure).start()
        try:
            self._start_feed()
        except Exception:
            self.loop.request_stop(drain=False)
            wait_for(self.ended)
            raise

    def _source_watch(self) -> SourceWatch:
        return SourceWatch(
            self.feed,
            [source.name for source in self.runner.pipeline.sources],
            limit_s=self.config.source_timeout,
            clock=self.runner.clock,
            ending=lambda: self.loop.ended,
            record=self.history.record,
        )

    def _start_feed(self) -> None:
        pipeline, manifest = self.runner.pipeline, self.runner.manifest
        names = manifest.source.names
        named = None if isinstance(names, msgspec.UnsetType) else names
        demand = Demand(pipeline.stages, manifest.max_parallelism, self.loop.wanted_parallelism, named)
        if isinstance(self.feed, TellsLosses):
            self.feed.tell_losses(self._on_loss)
        self.feed.start(self.loop.offer, self.loop.end_of_source, self._on_feed_failure, demand)

    # -- asked for by the user -----------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        why = self.loop.waiting_for
        if why == NO_INPUT:
            return self.watch.source.silent() or why
        busy = self.coordinator.busy() if why is not None and "commit" in why else []
        return "; ".join([why, *(described(one, self.runner.clock()) for one in busy)]) if why is not None else None

    def rescale(self, parallelism: int | Mapping[str, int]) -> None:
        """Raises: `ConfigError`."""
        wanted = subtasks_asked(parallelism, self.runner.pipeline.stage_of(), self.runner.manifest.max_parallelism)
        if self._autoscaler is not None:
            self._autoscaler.leave_alone(wanted)
        for stage, count in wanted.items():
            old = self.runner.parallelism[stage]
            if old != count:
                self.history.record(Rescaled(at=utc_now(), stage=stage, old=old, new=count))
        self._rescale(wanted)

    def _rescale(self, wanted: dict[str, int]) -> None:
        self.loop.request_rescale(wanted)
        if isinstance(self.feed, Replans):
            self.feed.replan()

    def request_stop(self, *, drain: bool, savepoint: str | None = None, by: str = "query.stop()") -> None:
        """Asks for the end and returns at once; `by` says who asks, for people.

        Raises: `SavepointRefused` for a place that holds something.
        """
        if savepoint is not None:
            self.savepoints.require_place(savepoint)
            self._last_savepoint = savepoint
        self._drained = drain
        self._stopping = True
        self._stopped_by = self._stopped_by or by
        self.loop.request_stop(drain=drain)

    # -- how it ends ---------------------------------------------------------------------------------------------

    def end_with_program(self) -> None:
        """A program that ends without `stop` ends its query after the running epoch, and not in the middle of it."""
        self.process = os.getpid()
        atexit.register(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        if os.getpid() != self.process:
            return  # a forked child has none of the threads that it would wait for, and the query is not its own
        self.request_stop(drain=False, by="the program ended")
        if not wait_for(self.ended, EXIT_S):
            _log.warning("%s", self.not_ended(EXIT_S))
            self.runner.cluster.cancel()
            wait_for(self.ended, EXIT_S)

    def stop_signalled(self, signalled: KeyboardInterrupt | Terminated) -> None:
        """Ends the query after its running epoch.

        Raises: `KeyboardInterrupt`, `Terminated` when the user does not want to wait so long.
        """
        again = "Ctrl-C" if isinstance(signalled, KeyboardInterrupt) else "SIGTERM"
        try:
            self.stop_interrupted(again=again)
        except (KeyboardInterrupt, Terminated) as second:
            raise second from None  # one traceback says it all

    def stop_interrupted(self, *, again: str) -> None:
        """After Ctrl-C, when Spark has cancelled the running job, or after SIGTERM, when it has not.

        Ctrl-C while this method waits ends the waiting; `again` is what the user is told to repeat.
        """
        try:
            self.request_stop(drain=False, by=again)
            _log.warning("%s stops after its running epoch; %s once more stops it at once", self.name, again)
            wait_for(self.ended)
        except KeyboardInterrupt:
            atexit.unregister(self._stop_at_exit)
            self._record_end(self.loop.error, f"{again}, twice, so at once")
            self.runner.cluster.cancel()
            raise
        error = self.loop.error
        if error is not None:
            _log.warning("%s", error)

    def not_ended(self, waited_s: float) -> StopTimeout:
        return not_ended(self.name, waited_s, self._waits_for())

    def _waits_for(self) -> str:
        """The part that keeps the query from ending."""
        now_s, job = self.runner.clock(), self.runner.jobs.running
        waits = [described(busy, now_s) for busy in self.coordinator.busy()]
        if self._ending.waits_for is not None:
            return "; ".join([self._ending.waits_for, *waits])
        if job is not None:
            running = f"the job of stage {job.stage} for checkpoint {job.checkpoint}"
            waits.insert(0, f"{running}, which runs for {now_s - job.started_s:.0f} s")
        elif self.loop.waiting_for is not None:
            waits.insert(0, self.loop.waiting_for)
        rows = self.runner.manifest.rows_in_flight
        if self._drained and rows:
            waits.append(f"{rows} rows in flight to be processed")
        return "; ".join(waits) or "the running epoch"

    # -- what the parts say --------------------------------------------------------------------------------------

    def fail(self, error: PenstockError) -> None:
        self.loop.fail(self.loop.reason(error))

    def _on_published(self, result: EpochResult) -> None:
        said, changes = ({}, []) if self._autoscaler is None else self._autoscaler.observe(result)
        scaling = dict(said)
        event = msgspec.structs.replace(epoch_event(result), scaling=scaling)
        self.history.record(event)
        self._late.observe(event)
        self._collector.published(result.manifest)
        for change in changes:
            self.history.record(
                Rescaled(at=utc_now(), stage=change.stage, old=change.old, new=change.new, reason=change.why)
            )
        if changes:
            self._rescale({change.stage: change.new for change in changes})

    def _on_committed(self, event: Committed) -> None:
        self.history.record(event)
        self.loop.wake()

    def _on_collector_failure(self, error: BaseException) -> None:
        _log.warning("files that no checkpoint needs could not be removed: %s", error)

    def _on_savepoint(self, job: SavepointJob) -> None:
        self.history.record(savepoint_event(job))

    def _on_failed(self, checkpoint: CheckpointId, error: Exception, attempt: int) -> None:
        code = error.code if isinstance(error, PenstockError) else StageFailed.code
        self.history.record(
            EpochFailed(at=utc_now(), checkpoint=checkpoint, attempt=attempt, code=code, message=str(error))
        )

    def _on_storage_failed(self, what: str, error: StorageFailed, failures: int) -> None:
        _log.warning("%s: the storage failed to %s, trying again: %s", self.name, what, error.seen)
        self.history.record(StorageRetried(at=utc_now(), what=what, attempt=failures, message=str(error)))

    def _on_loss(self, loss: SourceLoss) -> None:
        source = ", ".join(source.name for source in self.runner.pipeline.sources)
        many = "records" if loss.offsets is None else f"{loss.offsets} records"
        _log.warning("%s: source %s had deleted %s before they were read: %s", self.name, source, many, loss.what)
        self.history.record(SourceLost(at=utc_now(), source=source, what=loss.what, offsets=loss.offsets))

    def _on_slow_commit(self, busy: CommitCall, waited_s: float) -> None:
        _log.warning("%s waits for %s", self.name, described(busy, busy.since_s + waited_s))
        self.history.record(slow_event(busy, waited_s))

    def _on_waiting(self, why: str) -> None:
        _log.debug("%s waits: %s", self.name, why)

    def _on_feed_failure(self, error: BaseException) -> None:
        if self._stopping or self.loop.error is not None:
            self.loop.end_of_source()
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
            self.runner.checkpoints.require_leader(self.runner.generation)
        except PenstockError as error:
            self.fail(error)
        else:
            _log.warning("%s stops: Spark's streaming query was stopped, not by query.stop(); start again", self.name)
            self.request_stop(drain=False, by="Spark's streaming query was stopped from outside")

    def _read_again(self, why: SourceContended | SourceCancelled) -> None:
        """Goes on from what the log says, unless it is this driver that was replaced."""
        try:
            self.runner.checkpoints.require_leader(self.runner.generation)
            seen = "another streaming query wrote to source/ at the same moment"
            if isinstance(why, SourceCancelled):
                seen = "the job that reads the source was cancelled"
            _log.warning("%s, reading again: %s", seen, why)
            self._start_feed()
        except Exception as error:
            self.fail(error if isinstance(error, PenstockError) else source_stopped(error))

    def _close_at_end(self) -> Pause:
        """One step: waits until the loop has ended, then ends everything else."""
        self.loop.join()
        ending = self._ending
        ending.feed(self.feed)
        ending.part("the upkeep of tables", self._upkeep.finish)
        ending.waits_for = "the last commits"
        busy = self.coordinator.finish(self.config.commit_timeout)
        if busy:
            self.loop.fail(given_up(busy, self.runner.clock()))
        ending.part("the watch over jobs", self.watch.finish)
        if self._last_savepoint is not None and self.loop.error is None:
            try:
                self.stopped_with = self.savepoints.begin(self._last_savepoint)
            except PenstockError as failure:
                self.stopped_with = failure
        ending.part("the savepoint", self.savepoints.finish, COPYING_S)
        ending.part("the removal of old files", self._collector.finish)
        error = self.loop.error
        for name, finish in self.beside:
            ending.part(name, finish)
        self._record_end(error, self._stopped_by)
        atexit.unregister(self._stop_at_exit)
        self._set_ended()
        return None

    def at_end(self, close: Callable[[], None]) -> None:
        """Has `close` called after the last word; at once if that was said."""
        with self._at_end_lock:
            if self._at_end is not None:
                self._at_end.append(close)
                return
        close()

    def _set_ended(self) -> None:
        with self._at_end_lock:
            closing, self._at_end = self._at_end, None
        for close in closing or ():
            close()
        self.ended.set()

    def _record_end(self, error: PenstockError | None, by: str | None) -> None:
        self.history.record(
            QueryStopped(
                at=utc_now(),
                reason=self._reason(error),
                error=None if error is None else error.to_report(),
                generation=self.runner.generation,
                by=by if error is None and self._stopping else None,
            )
        )

    def _on_closing_failure(self, error: BaseException) -> None:
        failure = PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock")
        self.loop.fail(failure)
        self._record_end(self.loop.error or failure, None)
        self._set_ended()

    def _reason(self, error: PenstockError | None) -> StopReason:
        if isinstance(error, Fenced):
            return "fenced"
        if error is not None:
            return "failed"
        if not self._stopping:
            return "finished"
        return "drained" if self._drained else "stopped"
