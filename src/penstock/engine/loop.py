"""The epoch loop: one background step after another asks `protocol.epoch.decide` what to do, and does it.

Structured Streaming's handler offers micro-batches and waits; the loop runs drain epochs by itself while nothing is
offered. A batch that was offered but not ingested is never reported as done: the handler raises instead, so Spark
offers it again after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from penstock.engine.background import AT_ONCE, Background, Pause, Spawn
from penstock.engine.cluster import JobCancelled, JobFailed, OfferedBatch
from penstock.engine.commits import CommitCoordinator
from penstock.engine.epochs import EpochResult, EpochRunner, Prepared
from penstock.engine.options import Config
from penstock.engine.watch import Watch
from penstock.errors import (
    Fenced,
    PenstockError,
    SourceMismatch,
    StageFailed,
    StorageFailed,
    SubtaskHung,
    may_pass,
)
from penstock.protocol import outage as outages
from penstock.protocol.epoch import Drain, Facts, Flush, Ingest, Stop, Stopping, Wait, backlog_limit, decide
from penstock.protocol.ids import CheckpointId, next_checkpoint
from penstock.protocol.outage import Outage
from penstock.protocol.recover import RefuseBatch, SkipBatch, TakeBatch, judge_batch

LEADER_CHECK_S = 5.0
"""A driver that publishes finds out that it was replaced. A driver that only waits must look, or it would take the
newer driver's micro-batches away from it."""


FLUSHES_MAX = 64
"""What comes out may make the next operator wait, so one flush is not enough. A timer that sets itself again waits for
ever."""


class NotIngested(Exception):
    """Ends the handler of a micro-batch that the loop did not take, because the query stops."""


@dataclass(slots=True)
class Offer:
    """A micro-batch on offer; `done` once it is part of a published checkpoint."""

    batch: OfferedBatch
    done: bool = False


@dataclass(frozen=True, slots=True)
class LoopEvents:
    """What the loop tells about itself."""

    published: Callable[[EpochResult], None]
    failed: Callable[[CheckpointId, Exception, int], None]
    storage_failed: Callable[[str, StorageFailed, int], None]
    waiting: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Unpublished:
    """An epoch that waits for the storage, and the micro-batch that is in it."""

    prepared: Prepared
    offer: Offer | None


class EpochLoop:
    """Runs epochs until it is asked to stop, its input ends, or something fails for good."""

    def __init__(
        self,
        runner: EpochRunner,
        coordinator: CommitCoordinator,
        config: Config,
        events: LoopEvents,
        watch: Watch,
        spawn: Spawn,
    ) -> None:
        self._runner, self._coordinator, self._config, self._events = runner, coordinator, config, events
        self._watch = watch
        self._unpublished: _Unpublished | None = None
        self._outage: Outage | None = None
        self._changed = threading.Condition()
        self._offer: Offer | None = None
        self._stopping = Stopping.NO
        self._source_ended = False
        self._flushes_left = FLUSHES_MAX
        self._wanted_parallelism: dict[str, int] = {}
        self._waiting_for: str | None = None
        self._leader_check_at = runner.clock() + LEADER_CHECK_S
        self._ended = False
        self.error: PenstockError | None = None
        self._background: Background = spawn("penstock-epochs", self.step, self._die)

    # -- called from other threads -------------------------------------------------------------------------------

    def start(self) -> None:
        self._background.start()

    def offer(self, batch: OfferedBatch) -> None:
        """Hands a micro-batch over and returns when it is part of a published checkpoint.

        Raises: `SourceMismatch`, `Fenced`; `NotIngested` when the query stops first.
        """
        offer = self.propose(batch)
        with self._changed:
            while not offer.done and not self.ended:
                self._changed.wait(1.0)
        self.require_ingested(offer)

    def propose(self, batch: OfferedBatch) -> Offer:
        """Puts a micro-batch on offer and returns at once; a replay is done already.

        Raises: `SourceMismatch`, `Fenced`.
        """
        match judge_batch(self._runner.manifest, batch.batch_id, batch.offsets_digest, batch.query_id):
            case SkipBatch():
                return Offer(batch, done=True)
            case RefuseBatch(why):
                error = self.reason(_source_mismatch(self._runner, batch, why))
                self.fail(error)
                raise error
            case TakeBatch():
                offer, now = Offer(batch), self._runner.now_us()
                with self._changed:
                    self._offer = offer
                    if self._runner.offered_at is None:
                        self._runner.offered_at = now
                self.wake()
                return offer

    def require_ingested(self, offer: Offer) -> None:
        """Raises: `NotIngested` for a micro-batch that is not part of a published checkpoint."""
        if not offer.done:
            raise NotIngested(f"micro-batch {offer.batch.batch_id} was not ingested: the query stopped")

    def wake(self) -> None:
        """Something changed: waiting threads look again."""
        with self._changed:
            self._changed.notify_all()
        self._background.wake()

    def end_of_source(self) -> None:
        with self._changed:
            self._source_ended = True
        self.wake()

    def request_stop(self, *, drain: bool) -> None:
        with self._changed:
            if self._stopping is not Stopping.NOW:
                self._stopping = Stopping.DRAINED if drain else Stopping.NOW
        self.wake()

    def request_rescale(self, parallelism: dict[str, int]) -> None:
        with self._changed:
            self._wanted_parallelism.update(parallelism)
        self.wake()

    def wanted_parallelism(self) -> dict[str, int]:
        """The number of subtasks of each stage from the next epoch on."""
        with self._changed:
            return {**self._runner.parallelism, **self._wanted_parallelism}

    def fail(self, error: PenstockError) -> None:
        with self._changed:
            self.error = self.error or error
            self._stopping = Stopping.NOW
        self.wake()

    def join(self) -> None:
        """Waits for the end of the running epoch, which has a limit of its own (`epoch_timeout`, `storage_timeout`)."""
        self._background.join()

    @property
    def ended(self) -> bool:
        """No micro-batch will be ingested any more."""
        return self._ended or self.error is not None

    @property
    def waiting_for(self) -> str | None:
        """Why no epoch runs right now, if none does."""
        return self._waiting_for

    # -- the loop ------------------------------------------------------------------------------------------------

    def step(self) -> Pause:
        """One epoch, or one look whether there is something to do."""
        try:
            pause = self._act()
        except PenstockError as error:
            self.fail(self.reason(error))
            pause = None
        except Exception as error:  # nothing may be swallowed
            self.fail(_fault(error))
            pause = None
        if pause is None:
            self._ended = True
            self.wake()
        return pause

    def reason(self, error: PenstockError) -> PenstockError:
        """A driver that was replaced finds its files swept, its batches taken: being replaced is what happened."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
        except PenstockError as reason:
            return reason if isinstance(reason, Fenced) else error
        return error

    def _die(self, error: BaseException) -> None:
        self._ended = True
        self.fail(_fault(error))

    def _act(self) -> Pause:
        if self._unpublished is not None:
            return self._publish(self._unpublished)
        with self._changed:
            action = decide(self._facts())
            if not isinstance(action, Wait):
                self._waiting_for = None
                self._runner.parallelism.update(self._wanted_parallelism)
                self._wanted_parallelism.clear()
        match action:
            case Stop():
                return None
            case Ingest():
                offer = self._offer
                assert offer is not None
                return self._epoch(offer)
            case Drain():
                return self._epoch(None)
            case Flush(watermark):
                self._flushes_left -= 1
                return self._epoch(None, watermark)
            case Wait(why):
                return self._wait(why)
            case _:
                assert_never(action)

    def _wait(self, why: str) -> float:
        if why != self._waiting_for:
            self._waiting_for = why
            self._events.waiting(why)
        now = self._runner.clock()
        if now >= self._leader_check_at:
            self._check_leader()
            self._leader_check_at = now + LEADER_CHECK_S
        due_in_s = self._runner.next_due_in_s()
        until_check_s = self._leader_check_at - now
        # Due already, and still we wait: for a commit, which wakes us.
        return min(until_check_s, due_in_s) if due_in_s else until_check_s

    def _check_leader(self) -> None:
        """Raises: `Fenced`; `StorageFailed` when that stayed unknown for too long."""
        try:
            self._runner.checkpoints.require_leader(self._runner.generation)
        except StorageFailed as error:
            self._storage_failed("look for a newer driver", error)
        else:
            self._outage = None

    def _storage_failed(self, what: str, error: StorageFailed) -> Outage:
        """Raises: the error, when it will not pass or has lasted too long."""
        now_s = self._runner.clock()
        self._outage = outage = outages.failed(self._outage, now_s)
        if not may_pass(error) or outages.is_over(outage, now_s, self._config.storage_timeout):
            raise error
        self._waiting_for = f"the storage, to {what} ({outage.failures} failures): {error.seen}"
        self._events.storage_failed(what, error, outage.failures)
        return outage

    def _facts(self) -> Facts:
        manifest = self._runner.manifest
        return Facts(
            batch_offered=self._offer is not None and not self._runner.rerouting,
            source_ended=self._source_ended,
            rows_in_flight=manifest.rows_in_flight,
            bytes_in_flight=manifest.bytes_in_flight,
            segments_in_flight=manifest.segments_in_flight,
            max_bytes_in_flight=self._config.max_in_flight,
            max_segments_in_flight=self._config.max_in_flight_segments,
            uncommitted=self._coordinator.uncommitted(),
            max_uncommitted=self._config.max_uncommitted,
            stopping=self._stopping,
            anything_due=self._runner.anything_due(),
            backlog_s=self._runner.backlog_s(),
            max_backlog_s=backlog_limit(self._config.max_backlog, self._runner.planned_s()),
            flush_to=self._flush_to(),
        )

    def _flush_to(self) -> int | None:
        wanted = self._config.flush == "end" and self._source_ended and self._flushes_left > 0
        return self._runner.flush_target() if wanted else None

    def _epoch(self, offer: Offer | None, flush_to: int | None = None) -> Pause:
        epoch = self._prepared(None if offer is None else offer.batch, flush_to)
        if epoch is None:
            return None
        self._unpublished = _Unpublished(epoch, offer)
        return self._publish(self._unpublished)

    def _prepared(self, batch: OfferedBatch | None, flush_to: int | None) -> Prepared | None:
        """None when the job was cancelled because the query stops.

        Raises: `StageFailed`, `SubtaskHung`, and whatever a subtask met.
        """
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._runner.prepare(batch, self._coordinator.states, flush_to)
            except (JobFailed, StorageFailed) as failure:
                hung = self._watch.verdict()
                error = hung or failure
                self._events.failed(next_checkpoint(self._runner.manifest.checkpoint), error, attempt)
                stopping = self._stopping is Stopping.NOW
                if stopping and hung is None and isinstance(failure, JobCancelled):
                    return None
                if attempt > self._config.epoch_retries or stopping or not _may_pass(error):
                    raise _for_good(error, attempt) from failure

    def _publish(self, epoch: _Unpublished) -> Pause:
        """Tries to publish, again and again while the storage refuses: the epoch's work is done and durable, and
        whether a try that failed has published it is seen by the next one."""
        now_s = self._runner.clock()
        if self._outage is not None and now_s < self._outage.again_s:
            return self._outage.again_s - now_s
        try:
            if self._outage is not None:
                self._runner.checkpoints.require_leader(self._runner.generation)
            result = self._runner.publish(epoch.prepared)
        except StorageFailed as error:
            outage = self._storage_failed(f"publish checkpoint {epoch.prepared.manifest.checkpoint}", error)
            return outage.again_s - now_s
        if epoch.offer is not None and self._outage is not None:
            # Nothing could be offered behind a micro-batch that the storage did not let be done.
            self._runner.away = round((self._runner.clock() - self._outage.since_s) * 1e6)
        self._unpublished = self._outage = self._waiting_for = None
        self._coordinator.published(result.manifest, result.winners)
        if epoch.offer is not None:
            self._done(epoch.offer)  # before it is told to anybody: Spark plans the next micro-batch meanwhile
        self._events.published(result)
        self._leader_check_at = self._runner.clock() + LEADER_CHECK_S
        return AT_ONCE

    def _done(self, offer: Offer) -> None:
        with self._changed:
            offer.done = True
            self._offer = self._runner.offered_at = None
            self._changed.notify_all()


def _fault(error: BaseException) -> PenstockError:
    return PenstockError(f"{type(error).__name__}: {error}", cause="a fault in Penstock")


def _source_mismatch(runner: EpochRunner, batch: OfferedBatch, why: str) -> SourceMismatch:
    position = runner.manifest.source
    return SourceMismatch(
        f"Structured Streaming offers micro-batch {batch.batch_id}, checkpoint {runner.manifest.checkpoint} ends with "
        f"micro-batch {position.batch_id}: {why}",
        cause="the folder source/ inside the checkpoint was changed, replaced, or comes from another run",
        next_step="put back the source/ folder that belongs to this checkpoint, or start with a new checkpoint folder",
        offered=batch.batch_id,
        ingested=position.batch_id,
    )


def _may_pass(error: Exception) -> bool:
    return may_pass(error) if isinstance(error, StorageFailed) else True


def _for_good(error: Exception, attempts: int) -> PenstockError:
    """What ends the query."""
    if isinstance(error, StorageFailed):
        return error
    if isinstance(error, SubtaskHung):
        tried = f"{error.seen}\n  (epoch tried {attempts} times)" if attempts > 1 else error.seen
        return SubtaskHung(tried, cause=error.cause, next_step=error.next_step, **error.fields)
    cause = "executors or Python workers were lost again and again, or the input cannot be read"
    if isinstance(error, JobCancelled):
        cause = "Ctrl-C, Spark's UI or the program itself cancelled Spark's jobs again and again"
    return StageFailed(
        f"{error} (epoch tried {attempts} times)",
        cause=cause,
        next_step="look at the Spark log for the first failure; nothing published was lost, start again to go on",
    )
