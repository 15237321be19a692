"""The handle of a running query: progress, rescaling, stopping, and the error that ended it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Literal, overload

import msgspec

from penstock.config import Config
from penstock.engine.autoscale import Autoscaler
from penstock.engine.background import Pause, Spawn
from penstock.engine.collect import Collector
from penstock.engine.commits import CommitCoordinator
from penstock.engine.epochs import EpochResult, EpochRunner
from penstock.engine.feed import Demand, Feed, SourceContended
from penstock.engine.history import History, epoch_event, savepoint_event, utc_now
from penstock.engine.loop import EpochLoop, LoopEvents
from penstock.engine.savepoint import Savepoint, SavepointJob, Savepoints
from penstock.engine.upkeep import Upkeeping
from penstock.errors import ConfigError, Fenced, PenstockError, StageFailed
from penstock.graph import Pipeline
from penstock.observe.events import Committed, EpochFailed, EpochPublished, QueryStopped, Rescaled, StopReason
from penstock.protocol.ids import CheckpointId, StageName
from penstock.protocol.manifest import Manifest
from penstock.store.base import Store

_log = logging.getLogger("penstock")

CONTENDED_MAX = 5
"""A driver that was replaced may write one entry of each of the source's logs before it notices."""


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
        self._loop: EpochLoop
        self._coordinator: CommitCoordinator
        self._collector: Collector
        self._upkeep: Upkeeping

    # -- for users -----------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    @property
    def generation(self) -> int:
        return int(self._runner.generation)

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        return self._loop.waiting_for

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
        wanted = _by_stage(self._pipeline, parallelism, self._runner.manifest.max_parallelism)
        if self._autoscaler is not None:
            self._autoscaler.leave_alone(wanted)
        for stage, count in wanted.items():
            old = self._runner.parallelism[stage]
            if old != count:
                self._history.record(Rescaled(at=utc_now(), stage=StageName(stage), old=old, new=count))
        self._loop.request_rescale(wanted)

    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[True] = True) -> Savepoint: ...
    @overload
    def savepoint(self, path: str | os.PathLike[str], *, wait: Literal[False]) -> SavepointJob: ...
    def savepoint(self, path: str | os.PathLike[str], *, wait: bool = True) -> Savepoint | SavepointJob:
        """Copies the newest checkpoint, with what is in flight, into a new folder while epochs go on (B14).

        With ``wait=False`` it returns at once; ``result()`` of what it returns waits.

        Raises: `SavepointRefused` for a folder that holds something; `StorageFailed` and others when it fails, and
        then nothing is under that name.
        """
        job = self._savepoints.begin(os.fspath(path))
        return job.result() if wait else job

    def await_termination(self, timeout: float | None = None) -> bool:
        """Waits for the end; True when the query ended in time. Ctrl-C stops the query after its running epoch.

        Raises: the `PenstockError` that ended the query.
        """
        try:
            ended = self._ended.wait(timeout)
        except KeyboardInterrupt:
            self.stop()
            raise
        error = self.exception()
        if ended and error is not None:
            raise error
        return ended

    def stop(self, *, drain: bool = False, savepoint: str | os.PathLike[str] | None = None) -> Savepoint | None:
        """Ends the query after its running epoch; with `drain`, after everything in flight was processed.

        With `savepoint`, the last checkpoint is copied there once everything was committed. Called from a listener it
        only asks for the end and returns at once.

        Raises: the `PenstockError` that ended the query before; that of the savepoint, the query has stopped then.
        """
        if savepoint is not None:
            self._savepoints.require_place(os.fspath(savepoint))
            self._last_savepoint = os.fspath(savepoint)
        self.request_stop(drain=drain)
        if threading.current_thread().name.startswith("penstock-"):
            return None  # called by a listener: waiting for our own thread would never end
        self._ended.wait()
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
        events = LoopEvents(published=self._on_published, failed=self._on_failed, waiting=self._on_waiting)
        self._loop = EpochLoop(self._runner, coordinator, self._config, events, spawn)
        collector.start(CheckpointId(self._runner.manifest.checkpoint))
        collector.published(self._runner.manifest)
        coordinator.start()
        upkeep.start()
        self._loop.start()
        spawn("penstock-query", self._close_at_end, self._on_closing_failure).start()
        try:
            self._start_feed()
        except Exception:
            self._loop.request_stop(drain=False)
            self._ended.wait()
            raise

    def _start_feed(self) -> None:
        pipeline, manifest = self._runner.pipeline, self._runner.manifest
        demand = Demand(pipeline.stages, manifest.max_parallelism, self._loop.wanted_parallelism)
        self._feed.start(self._loop.offer, self._loop.end_of_source, self._on_feed_failure, demand)

    def end_with_program(self) -> None:
        """A program that ends without `stop` ends its query after the running epoch, and not in the middle of it."""
        self._process = os.getpid()
        atexit.register(self._stop_at_exit)

    def _stop_at_exit(self) -> None:
        if os.getpid() != self._process:
            return  # a forked child has none of the threads that it would wait for, and the query is not its own
        self._stopping = True
        self._loop.request_stop(drain=False)
        self._ended.wait()

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
        scaling = {StageName(stage): why for stage, why in said.items()}
        self._history.record(msgspec.structs.replace(epoch_event(result), scaling=scaling))
        self._collector.published(result.manifest)
        for change in changes:
            self._history.record(
                Rescaled(at=utc_now(), stage=StageName(change.stage), old=change.old, new=change.new, reason=change.why)
            )
        if changes:
            self._loop.request_rescale({change.stage: change.new for change in changes})

    def _on_savepoint(self, job: SavepointJob) -> None:
        self._history.record(savepoint_event(job))

    def _on_failed(self, checkpoint: int, error: Exception, attempt: int) -> None:
        code = error.code if isinstance(error, PenstockError) else StageFailed.code
        self._history.record(
            EpochFailed(
                at=utc_now(), checkpoint=CheckpointId(checkpoint), attempt=attempt, code=code, message=str(error)
            )
        )

    def _on_waiting(self, why: str) -> None:
        _log.debug("%s waits: %s", self.name, why)

    def _on_feed_failure(self, error: BaseException) -> None:
        if self._stopping or self._loop.error is not None:
            self._loop.end_of_source()
        elif isinstance(error, SourceContended) and self._contended < CONTENDED_MAX:
            self._contended += 1
            self._read_again(error)
        else:
            self.fail(error if isinstance(error, PenstockError) else _source_stopped(error))

    def _read_again(self, contended: SourceContended) -> None:
        """Goes on from what the other one wrote, unless it is this driver that was replaced (C9)."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
            _log.warning("another streaming query wrote to source/ at the same moment, reading again: %s", contended)
            self._start_feed()
        except Exception as error:
            self.fail(error if isinstance(error, PenstockError) else _source_stopped(error))

    def _close_at_end(self) -> Pause:
        """One step: waits until the loop has ended for whatever reason, then ends everything else."""
        self._loop.join()
        try:
            self._feed.stop()
        except Exception as failure:
            _log.warning("Structured Streaming did not stop cleanly: %s", failure)
        self._upkeep.finish()
        self._coordinator.finish()
        if self._last_savepoint is not None and self._loop.error is None:
            try:
                self._stopped_with = self._savepoints.begin(self._last_savepoint)
            except PenstockError as failure:
                self._stopped_with = failure
        self._savepoints.finish()
        self._collector.finish()
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


def _source_stopped(error: BaseException) -> StageFailed:
    lines = [line for line in str(error).splitlines() if line.strip()]
    said = f"Structured Streaming stopped: {lines[0] if lines else type(error).__name__}"
    if isinstance(error, SourceContended):
        return StageFailed(
            said,
            cause="another streaming query, not one of Penstock, writes to the folder source/ of this checkpoint",
            next_step="stop that query; nothing published was lost, start again to go on",
        )
    return StageFailed(
        said,
        cause="the source failed, or the streaming query was stopped from outside",
        next_step="look at the Spark log; nothing published was lost, start again to go on",
    )


def _by_stage(pipeline: Pipeline, parallelism: int | Mapping[str, int], max_parallelism: int) -> dict[str, int]:
    stage_of = pipeline.stage_of()
    if isinstance(parallelism, int):
        parallelism = {stage.name: parallelism for stage in pipeline.stages}
    for operator, count in parallelism.items():
        if operator not in stage_of:
            raise ConfigError(
                f"there is no operator {operator!r}; operators are {', '.join(stage_of)}",
                cause="a typing error, or an operator without a name= of its own",
                next_step="use the names of operators as above",
            )
        if not 1 <= count <= max_parallelism:
            raise ConfigError(
                f"parallelism {count} of {operator} is not between 1 and {max_parallelism}",
                cause="a subtask needs at least one key group of its own",
                next_step=f"choose 1 to {max_parallelism}",
            )
    return {stage_of[operator]: count for operator, count in parallelism.items()}
